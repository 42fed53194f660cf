"""The experiment of asynchronous TD, at the size of a test: exact tables whole, simulations short."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.papers import async_td
from stretto.papers.base import Outcome, Settings
from stretto.papers.run import save_figure
from stretto.tabular.td.three_state import three_state

QUICK = Settings(quick=True, first_seed=7)


def failed(outcome: Outcome) -> list[str]:
    return [c.name for c in outcome.checks if c.passed is False]


def test_parts_are_named_in_order() -> None:
    assert list(async_td.PARTS) == ["td-constants", "td-moments", "td-rate", "td-transient"]


def test_every_constant_comes_out(tmp_path: Any) -> None:
    outcome = async_td.constants(QUICK)
    assert failed(outcome) == []
    assert sum(c.reference is not None for c in outcome.checks) == 4 + 1 + 5 + 1 + 2
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "constants.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_wrong_chain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_td, "three_state", lambda *a, **k: three_state(*a, **k, skew=0.2))
    assert len(failed(async_td.constants(QUICK))) >= 10
    assert "T E[e e^T], decreasing: exact diagonal" in failed(
        async_td.finite_time(dataclasses.replace(QUICK, seeds=16))
    )


@pytest.mark.slow
def test_finite_time_moments(tmp_path: Any) -> None:
    outcome = async_td.finite_time(dataclasses.replace(QUICK, seeds=512))
    assert failed(outcome) == []
    assert len([c for c in outcome.checks if "standard errors" in c.name]) == 4
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "moments.png").stat().st_size > 10_000


def test_rate_and_simultaneity(tmp_path: Any) -> None:
    outcome = async_td.rate(dataclasses.replace(QUICK, seeds=64))
    assert failed(outcome) == []
    assert [c.name.split(":")[0] for c in outcome.checks] == ["H=8", "H=8", "H=16", "H=16", "H=8"]
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "rate.png").stat().st_size > 10_000


def test_the_transient_adds(tmp_path: Any) -> None:
    outcome = async_td.transient(dataclasses.replace(QUICK, seeds=128))
    assert failed(outcome) == []
    late = np.array([c.measured for c in outcome.checks if "90th" in c.name])
    expected = np.array(list(async_td.PASSAGE.values()))
    assert (np.abs(late[:3] / expected[:3] - 1) < 0.1).all()
    assert (np.abs(late / expected - 1) < 0.4).all()  # 128 seeds: 12 % of standard error where the hub rules
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "transient.png").stat().st_size > 10_000


def test_too_few_seeds_are_refused() -> None:
    for part in (async_td.finite_time, async_td.rate, async_td.transient):
        with pytest.raises(ConfigError, match="async-td: seeds = 3"):
            part(Settings(seeds=3))
