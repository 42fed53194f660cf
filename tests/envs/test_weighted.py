"""Several reward functions: the weighted sum, each one's value, and what an absent one does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from env_clients import ScriptedClient

from stretto.config.load import to_toml, validate
from stretto.config.schema import RunConfig
from stretto.data.trajectory import Trajectory
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.build import build_environment, scoring_imports
from stretto.kernel.errors import ConfigError
from stretto.models.tokenizer import LightTokenizer
from stretto.observe.completed import completed
from stretto.observe.tally import Done

SEVERAL: list[Any] = [
    {"name": "numeric", "weight": 2.0},
    {"name": "exact", "weight": 0.5, "ignore_case": True},
    {"name": "scoring_functions:reward", "weight": 0.25, "required": False, "label": "own"},
]


def play(chars: LightTokenizer, text: str, reward: Any = SEVERAL) -> Trajectory:
    env = build_environment(RunConfig.model_validate({"reward": reward, "env": {"name": "arithmetic"}}))
    assert isinstance(env, Arithmetic)
    env.bind(chars, 0)
    task = env.task(0)
    client = ScriptedClient([])
    result = asyncio.run(env.verifier.score(client, text.format(a=task.answer), task.answer, {}))  # type: ignore[union-attr]
    ids = [*chars.encode("1").tolist(), 1]
    trajectory = asyncio.run(env.rollout(ScriptedClient([ids]), task))
    trajectory.reward, trajectory.info = result.reward, result.info or {}
    return trajectory


@pytest.mark.parametrize(
    ("text", "reward", "parts"),
    [
        ("{a}", 2.75, {"numeric": 1.0, "exact": 1.0, "own": 1.0}),
        ("it is {a}", 2.0, {"numeric": 1.0, "exact": 0.0, "own": 0.0}),
        ("true:{a}", 2.25, {"numeric": 1.0, "exact": 0.0, "own": 1.0}),
        ("nan:{a}", 2.0, {"numeric": 1.0, "exact": 0.0, "own": None}),
        ("raise:{a}", 2.0, {"numeric": 1.0, "exact": 0.0, "own": None}),
    ],
)
def test_the_reward_is_the_weighted_sum_and_keeps_its_parts(
    chars: LightTokenizer, text: str, reward: float, parts: dict[str, float | None]
) -> None:
    trajectory = play(chars, text)
    assert trajectory.reward == reward
    assert trajectory.info["rewards"] == parts


@pytest.mark.parametrize(("text", "reason"), [("nan:", "returned nan"), ("raise:", "raised ValueError at scoring_")])
def test_an_absent_required_function_makes_the_reward_absent(chars: LightTokenizer, text: str, reason: str) -> None:
    trajectory = play(chars, text, ["exact", "scoring_functions:reward"])
    assert trajectory.reward is None
    assert reason in trajectory.info["reward_absent"]
    assert ("reward_error" in trajectory.info) == (text == "raise:")
    assert trajectory.info["rewards"] == {"exact": 0.0, "scoring_functions:reward": None}
    assert play(chars, "nan:", [SEVERAL[2]]).reward is None, "nothing is left to sum"


def test_weight_0_only_watches_and_options_reach_their_function(chars: LightTokenizer) -> None:
    functions = [{"name": "numeric", "which": "first"}, {"name": "exact", "weight": 0}]
    trajectory = play(chars, "{a} or 3", functions)
    assert trajectory.reward == 1.0
    assert trajectory.info["rewards"] == {"numeric": 1.0, "exact": 0.0}


def test_each_function_has_its_mean_and_its_failed_share_in_the_metrics() -> None:
    base = {"group": 0, "tokens": 3, "versions": [], "turns": 1, "truncated": False}
    rewards: list[dict[str, float | None]] = [{"a": 1.0, "b": None}, {"a": 0.0, "b": 0.5}]
    row = completed([Done({**base, "reward": 1.0, "rewards": found}) for found in rewards])
    assert {key: value for key, value in row.items() if "/fn/" in key} == {
        "reward/fn/a/mean": 0.5, "reward/fn/a/failed": 0.0, "reward/fn/b/mean": 0.5, "reward/fn/b/failed": 0.5,
    }  # fmt: skip
    assert not any("/fn/" in key for key in completed([Done({**base, "reward": 1.0})]))


def test_a_list_survives_its_file_and_its_imports_are_loaded_once(tmp_path: Path) -> None:
    import tomllib

    config = RunConfig.model_validate({"reward": [*SEVERAL, "math-verify"], "env": {"name": "arithmetic"}})
    assert validate(tomllib.loads(to_toml(config))) == config
    imports = scoring_imports(build_environment(config))
    assert imports.count("scoring_functions:reward") == 1
    assert "math_verify" in imports
    assert RunConfig.model_validate({"reward": "exact"}).reward == "exact"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": []}, "an empty list"),
        ({"reward": [3]}, "entry 1 is 3: expected a name or a table"),
        ({"reward": ["exact", {"weight": 1}]}, "entry 2: name"),
        ({"reward": ["exact", "exact"]}, "'exact' comes twice: give each one a `label`"),
        ({"reward": [{"name": "exact", "weight": "much"}]}, "entry 1: weight"),
        ({"reward": [{"name": "exact", "weight": float("inf")}]}, "finite"),
        ({"reward": [{"name": "exact", "wieght": 1}]}, "unknown option 'wieght'"),
        ({"reward": [{"name": "exakt"}]}, "did you mean 'exact'"),
        ({"reward": [{"name": "scoring_functions:reward", "which": "last"}]}, "takes none"),
        ({"reward": ["exact"], "reward_options": {"ignore_case": True}}, "beside the `name`"),
    ],
)
def test_a_wrong_list_is_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_environment(validate({**settings, "env": {"name": "arithmetic"}}))


def test_weights_that_make_no_reward_are_refused_or_absent(chars: LightTokenizer) -> None:
    with pytest.raises(ValueError, match="every weight is 0"):
        RunConfig.model_validate({"reward": [{"name": "exact", "weight": 0}]})
    huge = [{"name": "exact", "weight": 1e308}, {"name": "numeric", "weight": 1e308}]
    trajectory = play(chars, "{a}", huge)
    assert trajectory.reward is None
    assert "weighted sum is inf" in trajectory.info["reward_absent"]
