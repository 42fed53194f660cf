"""GMC-GRPO's experiment."""

from __future__ import annotations

import pytest

from stretto.papers import Settings, gmc_grpo
from stretto.papers.run import save_figure


def test_the_table_of_biases_is_the_references(tmp_path) -> None:  # type: ignore[no-untyped-def]
    outcome = gmc_grpo.enumerated(Settings())
    by = {check.name: check for check in outcome.checks}
    assert outcome.passed
    assert sum(check.passed is not None for check in outcome.checks) == 10
    price = by["E|g|^2 of GMC / TIC, eps = 0.2, G = 2, 8, 32, 128"].measured
    assert price[1] == pytest.approx(2.01, abs=0.01)
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "figure.png").stat().st_size > 10_000


def test_a_wrong_figure_fails() -> None:
    right = {"gmc": [0.0713, 0.021, 0.004, 0.0002], "tic_truncate": [0.0926] * 4, "tic_zero": [0.1] * 4}
    wrong = right | {"gmc": [0.0713, 0.021, 0.0043, 0.0002]}
    second = {name: [1.0] * 4 for name in right}
    assert [c.passed for c in gmc_grpo.at(0.2, right, second)[:3]] == [True, True, True]
    assert [c.passed for c in gmc_grpo.at(0.2, wrong, second)[:3]] == [True, True, False]
