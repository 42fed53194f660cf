from __future__ import annotations

import asyncio
from typing import Any

import pytest
from env_clients import ScriptedClient

from stretto.envs.gym import ReasoningGym
from stretto.errors import ConfigError
from stretto.models.tokenizer import LightTokenizer

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def make(chars: LightTokenizer, dataset: str = "chain_sum", seed: int = 0, **options: Any) -> ReasoningGym:
    env = ReasoningGym(dataset, **{"options": SMALL if dataset == "chain_sum" else {}, **options})
    env.bind(chars, seed)
    return env


def test_questions_are_functions_of_seed_and_index_and_held_out_ones_never_train(chars: LightTokenizer) -> None:
    env, again, other = make(chars), make(chars), make(chars, seed=1)
    train = [chars.decode(env.task(i).prompt) for i in range(600)]
    assert train[::-1] == [chars.decode(again.task(i).prompt) for i in reversed(range(600))]
    assert train != [chars.decode(other.task(i).prompt) for i in range(600)]
    held_out = {chars.decode(t.prompt) for t in env.eval_tasks(200)}
    assert len(held_out) > 5
    assert not held_out & set(train)
    assert held_out == {chars.decode(t.prompt) for t in other.eval_tasks(200)}


@pytest.mark.parametrize(
    ("extract", "completion", "reward"),
    [
        ("text", "{a}", 1.0),
        ("text", "it is {a}", 0.0),
        ("number", "it is {a}.", 1.0),
        ("tag", "so <answer>{a}</answer>", 1.0),
        ("tag", "{a}", 0.0),
    ],
)
def test_answers_are_extracted_and_scored(chars: LightTokenizer, extract: str, completion: str, reward: float) -> None:
    env = make(chars, extract=extract)
    task = env.task(0)
    ids = [*chars.encode(completion.format(a=task.answer)).tolist(), 1]
    assert asyncio.run(env.rollout(ScriptedClient([ids]), task)).reward == reward


def test_a_data_set_with_its_own_scoring_is_scored_by_it(chars: LightTokenizer) -> None:
    env = make(chars, "countdown")
    assert not env._plain
    task = env.task(0)
    for answer, reward in ((task.answer, 1.0), ("1+1", 0.0)):
        client = ScriptedClient([[*chars.encode(answer).tolist(), 1]])
        assert asyncio.run(env.rollout(client, task)).reward == reward


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'chain_sum'"):
        ReasoningGym("chainsum")
    with pytest.raises(ConfigError, match=r"env\.options of data set 'chain_sum'.*max_term"):
        ReasoningGym("chain_sum", options={"max_term": 2})
