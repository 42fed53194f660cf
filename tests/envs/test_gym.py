from __future__ import annotations

import asyncio
from typing import Any

import pytest
from env_clients import ScriptedClient

from stretto.envs.gym import ReasoningGym
from stretto.kernel.errors import ConfigError
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


@pytest.mark.parametrize(
    ("right", "text", "handed_on"),
    [
        ("17576167456008", "so 17,576,167,456,008.", "17576167456008"),
        ("17576167456008", "17576167456007", "17576167456007"),
        ("-4471.6021000", "it is \u22124471.6021", "-4471.6021000"),
        ("0.1", "0.10000000000000001", "0.10000000000000001"),
        ("7", "007", "7"),
        ("1/2", "it is 1/2", "1/2"),
        ("1/2", "it is 2/4", "2/4"),
        ("5", "no number", ""),
        ("45a", " 45a ", "45a"),
        ("1e05", "it is **1e05**.", "1e05"),
        ("1e05", "it is 1e5", "1e5"),
        ("5", "it is -5", "-5"),
        ("5", "it is 2.5", "2.5"),
        ("1/2", "3/1/2 no 1/2", "1/2"),
    ],
)
def test_a_number_is_handed_on_as_it_is_written(chars: LightTokenizer, right: str, text: str, handed_on: str) -> None:
    assert make(chars, extract="number").answer_of(text, right) == handed_on


@pytest.mark.parametrize("dataset", ["products", "decimal_chain_sum", "coin_flip", "gcd"])
def test_a_tasks_own_answer_is_right_in_every_extraction(chars: LightTokenizer, dataset: str) -> None:
    for extract, text in (
        ("text", "{}"),
        ("number", "{}"),
        ("number", "first 3; it is {}."),
        ("tag", "<answer>{}</answer>"),
    ):
        env = ReasoningGym(dataset, extract=extract)
        for item in range(5):
            entry = env._source[item]
            answer = env.answer_of(text.format(entry["answer"]), entry["answer"])
            assert env._source.score_answer(answer, entry) == 1.0, (extract, text, entry["answer"], answer)


def test_numbers_are_not_looked_for_where_answers_are_none(chars: LightTokenizer) -> None:
    with pytest.raises(
        ConfigError, match=r"env\.extract = 'number': the answers of data set 'syllogism' are no numbers"
    ):
        ReasoningGym("syllogism", extract="number")


def test_a_task_without_one_right_answer_does_not_take_the_word_none_for_it(chars: LightTokenizer) -> None:
    env = ReasoningGym("propositional_logic")
    env.prompt_ids = lambda prompt: chars.encode("1")  # type: ignore[method-assign]  # its letters are not in the alphabet
    env.bind(chars, 0)
    task = env.task(0)
    assert task.answer is None
    assert env.answer_of("None", task.answer) != task.answer


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
