"""The experiment of closed-loop PPO: its parts, their verdicts and their figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stretto.papers import closed_loop_ppo, closed_loop_ppo_delay, closed_loop_ppo_depth, closed_loop_ppo_update
from stretto.papers.base import Outcome, Settings
from stretto.papers.catalog import find
from stretto.papers.run import Verdict, save_figure
from stretto.tabular.ppo import layered


def named(outcome: Outcome, words: str) -> list[object]:
    return [check.measured for check in outcome.checks if words in check.name]


def test_the_parts_are_those_of_the_catalog() -> None:
    assert tuple(closed_loop_ppo.PARTS) == find("closed-loop-ppo").parts


@pytest.mark.slow
def test_depth_costs_the_lock_a_factor_a_layer(tmp_path: Path) -> None:
    outcome = closed_loop_ppo_depth.horizon(Settings(quick=True))
    assert outcome.passed
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "figure.png").stat().st_size > 10_000


def test_the_parts_of_the_error_are_reported(tmp_path: Path) -> None:
    outcome = closed_loop_ppo.coupling(Settings(quick=True, seeds=2))
    assert outcome.verdict == "reported"
    assert not outcome.failed, "nothing is asked, so nothing can fail"
    by = {check.name.split(":")[0]: check.measured for check in outcome.checks}
    assert by["no clip"]["clipped, last epoch"] == 0 < by["default"]["clipped, last epoch"]
    assert by["n = 2"]["batch"] > by["n = 32"]["batch"]
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "figure.png").stat().st_size > 10_000


def test_a_goal_that_is_missed_is_a_failure_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop_ppo_depth, "MOST", 5)
    outcome = closed_loop_ppo_depth.horizon(Settings(seeds=2))
    assert outcome.verdict == "FAIL"
    assert named(outcome, "log-log slope") == [[float("inf")] * 3]
    record = Verdict(find("ppo-horizon"), outcome, 1.0, None).record()
    assert json.loads(json.dumps(record))["verdict"] == "FAIL"


def test_one_update_shows_what_each_of_its_parts_does() -> None:
    checks = closed_loop_ppo_update.update_checks(layered(0), Settings(quick=True))
    assert [check.passed for check in checks] == [True] * 4
    for check in checks[:3]:
        assert check.measured[1] <= 0.1, "a missing part would be ten standard errors away"


def test_other_figures_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loop_ppo_delay, "STATIONARY", {2: (0.0168, 0.0482, 0.2464)})
    outcome = closed_loop_ppo_delay.delay(Settings(quick=True, seeds=6))
    assert [check.passed for check in outcome.checks] == [False, True, True]


@pytest.mark.slow
def test_the_rates_are_those_of_the_table() -> None:
    outcome = closed_loop_ppo.rate(Settings())
    assert outcome.passed
    for check in outcome.checks:
        if check.reference is not None:
            slopes = [value for value, _, _ in check.measured.values()]
            assert slopes == pytest.approx(list(check.reference), abs=0.1), check.name


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 100])
@pytest.mark.parametrize("quick", [False, True])
def test_the_verdict_holds_for_other_seeds(first_seed: int, quick: bool) -> None:
    assert closed_loop_ppo.reproduce(Settings(first_seed=first_seed, quick=quick)).passed
