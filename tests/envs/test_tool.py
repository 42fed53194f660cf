from __future__ import annotations

import asyncio

import numpy as np
import pytest
from env_clients import ScriptedClient

from stretto.data.trajectory import Trajectory
from stretto.envs.tool import REFUSED, ToolAgent, calculate, steps
from stretto.kernel.errors import ConfigError
from stretto.models.tokenizer import LightTokenizer


def make(chars: LightTokenizer, seed: int = 0, **options: object) -> ToolAgent:
    env = ToolAgent(**options)  # type: ignore[arg-type]
    env.bind(chars, seed)
    return env


def play(
    env: ToolAgent, turns: list[str], end: str = "answer", trajectory: int = 0
) -> tuple[Trajectory, ScriptedClient]:
    """Calls are cut at ``]`` by the engine, the answer ends with eos."""
    ids = [env.tokenizer.encode(text).tolist() + ([] if "]" in text or end == "cut" else [1]) for text in turns]
    client = ScriptedClient(ids, trajectory=trajectory)
    return asyncio.run(env.rollout(client, env.task(0))), client


def test_tool_tokens_are_masked_out_and_every_sampled_token_is_trained(chars: LightTokenizer) -> None:
    env = make(chars)
    task = env.task(0)
    call = f"[{task.info['problem']}]"
    trajectory, client = play(env, [call, task.answer])
    assert trajectory.reward == 1.0
    assert trajectory.turns == 2
    assert chars.decode(trajectory.tokens[trajectory.mask], special=True) == f"{call}{task.answer}<eos>"
    assert chars.decode(trajectory.tokens[~trajectory.mask]) == f"{task.info['problem']}={task.answer}>"
    assert env.text(trajectory) == f"{task.info['problem']}={call}{task.answer}>{task.answer}<eos>"
    assert len(client.sleeps) == 1


def test_the_worked_transcript_is_what_a_perfect_rollout_records(chars: LightTokenizer) -> None:
    env = make(chars, digits=1, terms=4)
    task = env.task(0)
    problem = task.info["problem"]
    trajectory, _ = play(env, [*(f"[{call}]" for call, _ in steps(problem)), task.answer])
    tokens, mask = env.demonstration(0)
    assert trajectory.reward == 1.0
    assert trajectory.tokens.tolist() == tokens
    assert trajectory.mask.tolist() == mask


def test_chained_calls_give_the_value_from_left_to_right() -> None:
    assert steps("7-9*3+10") == [("7-9", "-2"), ("-2*3", "-6"), ("-6+10", "4")]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("[3*7]", "21>"),
        ("so [12-40]", "-28>"),
        ("[-2*3]", "-6>"),
        ("[3*]", REFUSED),
        ("]", REFUSED),
        ("[3**7]", REFUSED),
    ],
)
def test_the_calculator_answers_or_refuses(text: str, result: str) -> None:
    assert calculate(text) == result


def test_a_refused_call_goes_on_and_too_many_calls_truncate(chars: LightTokenizer) -> None:
    env = make(chars, max_calls=2)
    trajectory, _ = play(env, ["[]", env.task(0).answer])
    assert trajectory.reward == 1.0
    endless, client = play(env, ["[1+1]"] * 3)
    assert (endless.terminated, endless.truncated, endless.reward, endless.turns) == (False, True, 0.0, 3)
    assert client.turns == []
    cut, _ = play(env, ["12"], end="cut")
    assert (cut.terminated, cut.truncated, cut.reward) == (False, True, 0.0)


def test_latency_is_heavy_tailed_with_the_median_asked_for_and_a_function_of_trajectory_and_turn(
    chars: LightTokenizer,
) -> None:
    for law in ("lognormal", "pareto"):
        env = make(chars, wait_median_s=0.5, wait_sigma=1.0, wait_max_s=1e9, wait_law=law)
        waits = np.array([env.latency_s((i + 0.5) / 2000) for i in range(2000)])
        assert abs(np.median(waits) - 0.5) < 0.01
        assert waits.max() > 8 * np.median(waits)
        assert (np.diff(waits) > 0).all()
    env = make(chars, wait_median_s=0.5)
    sleeps = [play(env, ["[1+1]", "[1+1]", "2"], trajectory=k)[1].sleeps for k in (4, 4, 5)]
    assert sleeps[0] == sleeps[1] != sleeps[2]
    assert sleeps[0][0] != sleeps[0][1]
    assert make(chars, wait_median_s=0.0).latency_s(0.999) == 0.0


def test_evaluation_problems_are_never_drawn_by_training(chars: LightTokenizer) -> None:
    env = make(chars, digits=1)
    held_out = {t.info["problem"] for t in env.eval_tasks(1000)}
    drawn = {env.task(i).info["problem"] for i in range(4000)}
    assert 10 < len(held_out) < 60
    assert not held_out & drawn


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_calls"):
        ToolAgent(terms=4, max_calls=1)
    with pytest.raises(ConfigError, match="12 digits"):
        ToolAgent(digits=4, terms=4)
    with pytest.raises(ConfigError, match="negative"):
        ToolAgent(wait_median_s=-1)
