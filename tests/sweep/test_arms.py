"""Objectives as typed on a command line."""

from __future__ import annotations

import pytest

from stretto.config.load import load_config
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.sweep.arms import Arm, parse_arms, parse_numbers


def test_names_options_and_labels() -> None:
    arms = parse_arms("grpo, tis[cap=3,floor=0.5],plain = grpo[reference=proximal]")
    assert arms == [
        Arm("grpo", "grpo"),
        Arm("tis[cap=3,floor=0.5]", "tis", {"cap": 3, "floor": 0.5}),
        Arm("plain", "grpo", {"reference": "proximal"}),
    ]


def test_lists_and_flags_are_values() -> None:
    (arm,) = parse_arms("a=copc[clip=[0.5,2],keep=[0.2,5]]")
    assert arm.options == {"clip": [0.5, 2], "keep": [0.2, 5]}
    (arm,) = parse_arms("grpo[std=false]")
    assert arm.options == {"std": False}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grop", "did you mean 'grpo'"),
        ("grpo[clip_lo=1]", "unknown option 'clip_lo'"),
        ("grpo,grpo", "twice"),
        ("grpo[std", "can't read"),
        ("grpo[std]", "expected key=value"),
        ("entr", "missing option tau"),
        ("tis[cap=1,cap=2]", "'cap' is given twice"),
        ("tis[name=grpo]", "'name' is given twice"),
        ("tis[cap=1e300]", "more than a float32 holds"),
        ("tis[cap=nan]", "not a number"),
        ("", "names no objective"),
    ],
)
def test_what_can_not_be_read_is_said(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_arms(text)


def test_settings_of_an_arm_make_a_valid_configuration() -> None:
    for text in ("grpo", "gspo[reference=behavior]", "sat[kernel=H2]", "copc[clip=[0.5,2]]", "ppo"):
        (arm,) = parse_arms(text)
        config = load_config("stale", arm.settings("none"))
        assert config.objective.name == arm.name
        assert config.objective.options == arm.options
        assert (config.learner.critic.kind == "head") == (arm.name in ("copc", "ppo"))


def test_numbers() -> None:
    assert parse_numbers("0,8, 64", "--lag") == [0, 8, 64]
    for text in ("", "a", "1,1", "-1", "1.5"):
        with pytest.raises(ConfigError, match="--lag"):
            parse_numbers(text, "--lag")


def test_none_unsets_an_option_and_is_a_choice_where_it_is_one() -> None:
    adaptive, plain = parse_arms("sao[alpha=none,gae_lambda=0.9],decoupled-ppo[correction=none]")
    config = load_config("stale", adaptive.settings("none"))
    assert get("sao", **config.objective.options).alpha is None
    assert get("decoupled-ppo", **load_config("stale", plain.settings("none")).objective.options).correction == "none"
