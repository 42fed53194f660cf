"""Effects of paired runs."""

from __future__ import annotations

import pytest

from stretto.papers.effects import difference, effect, required


def test_an_interval_above_zero_is_there_and_one_across_it_is_not_reproduced() -> None:
    assert effect("more", [0.5, 0.6, 0.7], [0.4, 0.5, 0.6]).verdict == "reported"
    assert effect("more", [0.5, 0.6], [0.6, 0.5]).verdict == "not reproduced"
    assert effect("less", [0.4, 0.5, 0.6], [0.5, 0.6, 0.7]).verdict == "not reproduced"


def test_a_required_effect_fails_where_it_is_not_there() -> None:
    assert required("more", [0.5, 0.6, 0.7], [0.4, 0.5, 0.6]).verdict == "pass"
    assert required("more", [0.5, 0.6], [0.6, 0.5]).verdict == "FAIL"
    assert required("above zero", [0.1, 0.12, 0.11]).verdict == "pass"


def test_of_one_seed_nothing_is_said() -> None:
    assert effect("more", [0.5], [0.6]).verdict == "reported"
    assert required("more", [0.5], [0.6]).verdict == "reported"
    assert difference([0.5], [0.6])[0] == pytest.approx(-0.1)
