from __future__ import annotations

import asyncio

import pytest
from env_clients import ScriptedClient

from counting import calls
from stretto.envs.arithmetic import Arithmetic, solve
from stretto.envs.base import ENVIRONMENTS
from stretto.kernel.errors import ConfigError
from stretto.models.tokenizer import LightTokenizer


def make(chars: LightTokenizer, seed: int = 0, **options: object) -> Arithmetic:
    env = Arithmetic(**options)  # type: ignore[arg-type]
    env.bind(chars, seed)
    return env


def test_a_task_is_a_function_of_seed_and_index(chars: LightTokenizer) -> None:
    one, two, other = make(chars, 3), make(chars, 3), make(chars, 4)
    order = [5, 0, 9, 5]
    assert [one.task(i).answer for i in order] == [two.task(i).answer for i in order]
    assert [one.task(i).prompt.tolist() for i in range(20)] == [two.task(i).prompt.tolist() for i in range(20)]
    assert [one.task(i).prompt.tolist() for i in range(20)] != [other.task(i).prompt.tolist() for i in range(20)]


@pytest.mark.parametrize("seed", [0, 1])
def test_evaluation_tasks_are_never_drawn_by_training(chars: LightTokenizer, seed: int) -> None:
    env = make(chars, seed, digits=1, operators=("+", "-"))
    held_out = {chars.decode(t.prompt) for t in env.eval_tasks(1000)}
    drawn = {chars.decode(env.task(i).prompt) for i in range(4000)}
    assert len(held_out) + len(drawn) == 200  # together they are the whole space
    assert not held_out & drawn
    assert 8 <= len(held_out) <= 34
    assert [t.index for t in env.eval_tasks(3)] == [-1, -2, -3]


def test_problems_have_the_digits_and_operators_asked_for(chars: LightTokenizer) -> None:
    env = make(chars, digits=3, operators=("-",))
    for i in range(50):
        task = env.task(i)
        problem = chars.decode(task.prompt)
        a, b = problem[:-1].split("-")
        assert len(a) == len(b) == 3
        assert int(task.answer) == int(a) - int(b) == solve(problem[:-1])


@pytest.mark.parametrize(("answer", "reward"), [("{a}", 1.0), ("{a}0", 0.0), ("", 0.0), ("{a}\n", 0.0)])
def test_reward_is_exact(chars: LightTokenizer, answer: str, reward: float) -> None:
    env = make(chars)
    task = env.task(0)
    ids = [*chars.encode(answer.format(a=task.answer)).tolist(), chars.eos_ids[0]]
    trajectory = asyncio.run(env.rollout(ScriptedClient([ids]), task))
    assert trajectory.reward == reward
    assert trajectory.terminated
    assert not trajectory.truncated
    assert trajectory.mask.sum() == len(ids)
    assert trajectory.tokens[trajectory.mask].tolist() == ids  # the final eos trains


def test_a_completion_cut_at_its_limit_is_truncated_and_not_terminated(chars: LightTokenizer) -> None:
    env = make(chars)
    trajectory = asyncio.run(env.rollout(ScriptedClient([chars.encode("9999").tolist()]), env.task(0)))
    assert (trajectory.terminated, trajectory.truncated, trajectory.reward) == (False, True, 0.0)


def test_scoring_an_answer_costs_a_few_calls(chars: LightTokenizer) -> None:
    env = make(chars)
    task = env.task(0)
    ids = chars.encode(task.answer + "1")

    async def many() -> None:
        for _ in range(2000):
            await env.own_score(None, task, ids)

    asyncio.run(many())
    assert calls(lambda: asyncio.run(many())) / 2000 < 10


def test_impossible_options_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"env\.digits"):
        ENVIRONMENTS.build("arithmetic", {"digits": 0}, "env")
    with pytest.raises(ConfigError, match="did you mean 'operators'"):
        ENVIRONMENTS.build("arithmetic", {"operator": ["+"]}, "env")
    with pytest.raises(ConfigError, match="operators"):
        ENVIRONMENTS.build("arithmetic", {"operators": ["/"]}, "env")
