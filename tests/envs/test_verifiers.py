from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import pytest
from env_clients import ScriptedClient
from scoring_functions import fail

from stretto.config.schema import RunConfig
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.build import build_environment
from stretto.envs.scoring import ScoringPool
from stretto.envs.verifiers import Score, make_verifier, normalize, score
from stretto.kernel.errors import ConfigError, DataError, WorkerError, origin, trace
from stretto.models.tokenizer import LightTokenizer


@pytest.mark.parametrize(
    ("kind", "options", "text", "answer", "reward"),
    [
        ("exact", {}, " 46 ", "46", 1.0),
        ("exact", {}, "Yes", "yes", 0.0),
        ("exact", {"ignore_case": True}, "Yes", "yes", 1.0),
        ("exact", {}, "7", 7, 1.0),
        ("exact", {}, "7", 7.0, 1.0),
        ("exact", {}, "7.0", 7.0, 1.0),
        ("exact", {}, "7.0", 7, 0.0),
        ("exact", {}, "true", True, 1.0),
        ("exact", {}, "1", True, 0.0),
        ("exact", {}, "caf\u00e9", "cafe\u0301", 1.0),
        ("exact", {}, "b", ["a", "b"], 1.0),
        ("exact", {}, "c", ["a", "b"], 0.0),
        ("exact", {}, "a  b", "a b", 0.0),
        ("exact", {"ignore_space": True}, "a \n b", "a b", 1.0),
        ("numeric", {}, "so 12 + 34 is 46.", "46", 1.0),
        ("numeric", {}, "1,234.50", 1234.5, 1.0),
        ("numeric", {}, "46 or 47", "46", 0.0),
        ("numeric", {}, "none", "46", 0.0),
        ("numeric", {"tolerance": 0.1}, "3.1", "3.14", 1.0),
        ("numeric", {}, "-2e-3", "-0.002", 1.0),
        ("exact", {}, "0.0000001", 1e-7, 1.0),
        ("exact", {}, "1e-07", 1e-7, 1.0),
        ("exact", {}, "0", -0.0, 1.0),
        ("exact", {}, "0.1", 1e-7, 0.0),
        ("regex", {"pattern": r"answer: (\w+)"}, "answer: a answer: b", "b", 1.0),
        ("regex", {"pattern": r"answer: (\w+)"}, "b", "b", 0.0),
        ("regex", {}, "it is 40 or 46", r"\b4[56]\b", 1.0),
        ("regex", {}, "it is 7", 7, 1.0),
        ("regex", {}, "it is 7x0", 7.0, 1.0),
        ("regex", {}, "it is 8", ["7", "8"], 1.0),
        ("regex", {"pattern": r"(a)|(b)"}, "b", "b", 0.0),
        ("regex", {"pattern": r"\d+"}, "3 then 46", 46, 1.0),
        ("math-verify", {}, r"\boxed{\frac{2}{4}}", r"\frac{1}{2}", 1.0),
        ("math-verify", {}, "3", r"\frac{1}{2}", 0.0),
    ],
)
def test_verifier(kind: str, options: dict[str, Any], text: str, answer: Any, reward: float) -> None:
    assert normalize(make_verifier(kind, options)(text, answer, {})) == Score(reward)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [("exact", None), ("exact", {"a": 1}), ("exact", []), ("exact", ""), ("exact", float("nan")),
     ("regex", "("), ("regex", ["a", "["]),
     ("regex", None), ("numeric", []), ("math-verify", [])],
)  # fmt: skip
def test_an_expected_answer_that_cannot_be_compared_is_absent(kind: str, answer: Any) -> None:
    result = normalize(make_verifier(kind)("a", answer, {}))
    assert result.reward is None
    assert "the expected answer" in result.reason


def test_only_verifiers_that_cannot_hang_run_inline() -> None:
    cheap = {k: make_verifier(k).cheap for k in ("exact", "numeric", "regex", "math-verify")}
    assert cheap == {"exact": True, "numeric": True, "regex": False, "math-verify": False}
    assert not make_verifier("scoring_functions:reward").cheap


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1.0", [1], object()])
def test_what_is_not_a_finite_number_is_an_absent_reward_with_a_reason(value: Any) -> None:
    result = normalize(value)
    assert result.reward is None
    assert len(result.reason) > 10


@pytest.mark.parametrize("value", [1j, 10**400, [1.0], {"a": 1}, b"1"])
def test_what_float_would_refuse_or_cut_is_no_reward(value: Any) -> None:
    import numpy as np

    for odd in (value, np.array([1.0]), np.complex128(1)):
        result = normalize(odd, "reward my:own")
        assert result.reward is None
        assert result.reason.startswith("reward my:own returned")


def test_numbers_and_booleans_are_rewards() -> None:
    import numpy as np

    assert [normalize(v) for v in (True, 0, 0.5, np.float32(1), np.bool_(True), Fraction(1, 2))] == [
        Score(1.0), Score(0.0), Score(0.5), Score(1.0), Score(1.0), Score(0.5),
    ]  # fmt: skip


@contextmanager
def pooled() -> Iterator[tuple[asyncio.Runner, ScriptedClient]]:
    with asyncio.Runner() as runner:

        async def make() -> ScoringPool:
            return ScoringPool(1, deadline_s=10)

        pool = runner.run(make())
        try:
            yield runner, ScriptedClient([], scoring=pool)
        finally:
            runner.run(pool.close())


def test_user_rewards_run_in_their_process_and_every_misbehaviour_stays_with_its_rollout() -> None:
    verifier = make_verifier("scoring_functions:reward")
    with pooled() as (runner, client):

        def play(text: str) -> Score:
            return runner.run(score(verifier, client, text, "46", {}))

        assert play("46") == Score(1.0)
        assert play("true:") == Score(1.0)
        reasons = {"nan": "nan", "inf": "inf", "none": "None", "str": "not a number", "list": "list"}
        for kind, reason in reasons.items():
            result = play(f"{kind}:")
            assert result.reward is None
            assert reason in result.reason
            assert result.reason.startswith("reward scoring_functions:reward returned")
        with pytest.raises(
            DataError,
            match=r"functions:reward raised ValueError at scoring_functions\.py:\d+ in reward: bad unit",
        ):
            play("raise:")
        with pytest.raises(WorkerError, match="the last words"):
            play("die:")
        assert play("47") == Score(0.0)


def test_an_exception_names_its_line_and_carries_its_traceback_out_of_the_process() -> None:
    with pooled() as (runner, client):
        for name, raised in (("deep_error", "ZeroDivisionError"), ("leaves", "SystemExit")):
            with pytest.raises(DataError) as caught:
                runner.run(score(make_verifier(f"scoring_functions:{name}"), client, "3", "46", {}))
            where = origin(caught.value)
            assert re.fullmatch(r"scoring_functions\.py:\d+ in (_fails|leaves)", where)
            assert f" at {where}: " in str(caught.value)
            assert f"in {name}" in trace(caught.value)
            assert raised in trace(caught.value)
        with pytest.raises(KeyError) as tool:  # a tool of a user's environment
            runner.run(client.call(fail))
        assert origin(tool.value).endswith("in fail")


def test_async_rewards_are_awaited_in_their_process() -> None:
    with pooled() as (runner, client):
        assert runner.run(score(make_verifier("scoring_functions:odd_async_reward"), client, "", "", {})) == Score(0.5)


def test_a_reward_that_hangs_is_absent_after_its_deadline(chars: LightTokenizer) -> None:
    with pooled() as (runner, client):
        client.scoring._deadline_s = 0.5
        env = Arithmetic()
        env.bind(chars, 0)
        env.use_verifier(make_verifier("scoring_functions:reward"))
        client.turns = [[*chars.encode("h").tolist(), *chars.encode("ang:").tolist(), 1]]
        trajectory = runner.run(env.rollout(client, env.task(0)))
        assert trajectory.reward is None
        assert "deadline" in trajectory.info["reward_absent"]


def test_a_catastrophic_pattern_cannot_freeze_the_loop() -> None:
    verifier = make_verifier("regex", {"pattern": "(a+)+$"})
    with pooled() as (runner, client):
        client.scoring._deadline_s = 0.5
        result = runner.run(score(verifier, client, "a" * 60 + "b", "a", {}))
        assert result.reward is None


def test_the_configured_reward_replaces_the_environments_own(chars: LightTokenizer) -> None:
    config = RunConfig.model_validate({"reward": "numeric", "env": {"name": "arithmetic"}})
    env = build_environment(config)
    env.bind(chars, 0)
    task = env.task(0)
    client = ScriptedClient([[*chars.encode(f"it is {task.answer}").tolist(), 1]])
    assert asyncio.run(env.rollout(client, task)).reward == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "exakt"}, "did you mean 'exact'"),
        ({"reward": "scoring_functions:rewart"}, "did you mean 'reward'"),
        ({"reward": "no_such_module:f"}, "can't import 'no_such_module': No module named 'no_such_module'$"),
        ({"reward": "scoring_functions:not_a_function"}, "not a function; expected f"),
        ({"reward": "scoring_functions:two_arguments"}, "too many positional arguments; expected f"),
        ({"reward": "module:"}, "expected 'module:name'"),
        ({"reward": "regex", "reward_options": {"pattern": "("}}, "reward_options"),
        ({"reward": "numeric", "reward_options": {"tol": 1}}, "unknown option 'tol'"),
        ({"reward_options": {"tolerance": 1}}, "reward is not"),
    ],
)
def test_a_wrong_reward_setting_is_refused_before_anything_starts(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_environment(RunConfig.model_validate(settings))
