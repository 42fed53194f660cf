"""The experiment of asynchronous pricing: its parts, what is asserted and what is reported, on short runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from stretto.games.pricing.ddpg import DDPG, train
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market
from stretto.papers import async_pricing, async_pricing_phase
from stretto.papers.async_pricing_ddpg import HIGH_BOX, LINES, LOW_BOX, Line, lagging, measure, myopic
from stretto.papers.base import Settings


def test_the_parts_have_their_names() -> None:
    assert list(async_pricing.PARTS) == ["pricing-tabular", "pricing-ddpg", "pricing-divergence"]


def test_two_boxes_have_midpoints_on_both_sides() -> None:
    middle = (Market().bertrand[0] + Market().monopoly[0]) / 2
    assert sum(LOW_BOX) / 2 < middle < sum(HIGH_BOX) / 2


@pytest.mark.slow
def test_a_line_is_read_off_with_the_midpoint_and_the_deviation_gain() -> None:
    assert len({line.name for line in LINES}) == len(LINES)
    line = Line(HIGH_BOX, 1e-5, Clocks(rho=0.05, delay=1.0), 2, (0.4, 0.31), False)
    found = measure(Market(), line, [0, 1], 1500)
    row = found.row
    assert row["Delta_mid"] == pytest.approx(0.709327, abs=1e-6)
    assert row["Delta"] == pytest.approx(row["Delta_mid"], abs=0.1)  # too short to have learnt
    assert row["deviation gain"] > 0  # and 1.7 against 1.7 isn't an equilibrium
    assert found.invalid == 0
    assert np.isfinite([*found.slopes, *found.information, found.recovery]).all()


def test_latency_is_read_off_the_trace() -> None:
    clocks = Clocks(rho=0.05, delay=1.0)
    done = train(Market(), clocks, [0, 1], DDPG(moves=600))
    assert lagging(done, 1.0) == 1
    assert lagging(done, 0.0) < 0.9
    assert lagging(train(Market(), clocks.live, [0], DDPG(moves=600)), 0.0) == 1


def test_sellers_without_foresight_end_at_bertrand_prices() -> None:
    assert myopic(Market(), [7]).price == pytest.approx(Market().bertrand[0], abs=0.06)


def test_intervals() -> None:
    shift = np.random.default_rng(0).normal(0, 1, 40)
    assert async_pricing.difference(shift + 1, shift) == pytest.approx([1, 1, 1])  # paired
    mean, low, high = async_pricing.difference(shift + 3, shift[:20])
    assert low < mean < high


@pytest.mark.slow
def test_divergence_is_counted_and_marks_the_cell() -> None:
    outcome = async_pricing.divergence(Settings(quick=True))
    assert [c.name for c in outcome.checks if c.passed is False] == []
    assert sum(c.passed is not None for c in outcome.checks) == 4  # all without a target network, none with slow ones
    found = {c.name: c.measured for c in outcome.checks}
    assert found["no target network, lambda=1"]["cell"] == "invalid"
    assert found["soft .005, critic lr 1e-3, lambda=1"]["|target| > 2.4"] == "0/2"
    assert outcome.plot is not None
    outcome.plot(Figure())


@pytest.mark.slow
def test_quick_runs_report_everything_and_draw() -> None:
    outcome = async_pricing.reproduce(Settings(quick=True))
    assert outcome.passed
    names = [c.name for c in outcome.checks]
    assert sum(n.startswith("pricing-ddpg") for n in names) >= len(LINES)
    assert outcome.plot is not None
    outcome.plot(Figure())


def test_the_offline_diagram(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "phase.png"
    async_pricing_phase.main(
        ["--rates", "1", "--delays", "0", "1", "--seeds", "2", "--moves", "600", "--out", str(out)]
    )
    assert out.exists()
    assert len(capsys.readouterr().out.splitlines()) == 3
