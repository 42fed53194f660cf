"""What doesn't fit is refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular import arguments


@pytest.mark.parametrize(
    ("p", "said"),
    [
        ([[0.5, 0.4], [1, 0]], r"f: transitions\[0\] sums to 0.9"),
        ([[1, 0], [1.5, -0.5]], r"f: transitions\[1\] holds -0.5"),
        ([[math.nan, 1], [1, 0]], r"f: transitions\[0, 0\] = nan must be finite"),
        ([["a", 1]], "f: transitions must be an array of numbers"),
        ([[1, 0], [1]], "f: transitions must be an array of numbers"),
        ([["1", "0"]], "f: transitions must be an array of numbers"),
        (np.array([[1j, 1]]), "f: transitions must be an array of numbers"),
        ([[10**400, 0]], "f: transitions must be an array of numbers"),
        ([], "f: transitions must hold at least one"),
    ],
)
def test_rows_that_are_no_probabilities_are_named(p: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        arguments.probabilities("f", "transitions", p)


def test_a_single_law_is_checked_too() -> None:
    assert arguments.probabilities("f", "start", [0.25, 0.75]).tolist() == [0.25, 0.75]
    with pytest.raises(ConfigError, match=r"start sums to 0\.5"):
        arguments.probabilities("f", "start", [0.25, 0.25])


def test_shapes_are_told() -> None:
    with pytest.raises(ConfigError, match=r"f: x has shape \[2\] but must have \[any, 3\]"):
        arguments.array("f", "x", [1, 2], (None, 3))
    with pytest.raises(ConfigError, match=r"f: x has shape \[\] but must have \[any\]"):
        arguments.array("f", "x", 1.0, (None,))


@pytest.mark.parametrize(
    ("value", "limits", "said"),
    [
        (-1, {"low": 0}, "must be a number >= 0"),
        (0, {"above": 0}, "must be a number > 0"),
        (0.5, {"low": 0, "below": 0.5}, "must be a number >= 0 and < 0.5"),
        (2.5, {"low": 0, "whole": True}, "must be a whole number >= 0"),
        (math.inf, {}, "must be a number finite"),
        ("x", {}, "'x' must be a number"),
        (None, {}, "None must be a number"),
        ("3", {}, "'3' must be a number"),
        (10**400, {}, "too large"),
    ],
)
def test_numbers_outside_their_limits_are_refused(value: Any, limits: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"f: rate = {said}" if "'" in said or "None" in said else said):
        arguments.number("f", "rate", value, **limits)


def test_a_discount_of_one_is_refused() -> None:
    assert arguments.discount("f", 0.0) == 0
    with pytest.raises(ConfigError, match="f: gamma = 1 must be a number >= 0 and < 1"):
        arguments.discount("f", 1)


def test_seeds_are_distinct_whole_numbers() -> None:
    assert arguments.distinct_seeds("f", range(3)).tolist() == [0, 1, 2]
    bad: list[Any] = [[], [1, 1], [-1], [0.5], [[1, 2]]]
    for seeds in bad:
        with pytest.raises(ConfigError, match="f: seeds"):
            arguments.distinct_seeds("f", np.asarray(seeds))
    worse: list[Any] = [None, [[1, 2], [3]], [2**63], [2**70], "abc"]
    for seeds in worse:
        with pytest.raises(ConfigError, match="f: seeds"):
            arguments.distinct_seeds("f", seeds)
