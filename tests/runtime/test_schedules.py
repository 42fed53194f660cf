"""Fuzzed schedules: whatever completes, dies, hangs or fails in whatever order, no invariant breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.control.batch import Fifo
from stretto.control.hooks import build_rules
from stretto.kernel.errors import InvariantError, StrettoError

from .harness import assert_clean, fuzz_case, ledger, of, worst

FAST, ALL = 120, 1000


def run_case(seed: int, out: Path) -> bool:
    """One schedule; False if so many groups failed in a row that the run gave up."""
    case = fuzz_case(seed, out)
    try:
        events = case.run()
    except StrettoError as error:
        if "in a row failed" not in str(error):
            raise
        assert_clean(case.events)
        return False
    try:
        assert_clean(events)
        counts = ledger(events)
        assert counts["open"] == 0
        assert counts["rejected"] == 0
        assert len([e for e in of(events, "StepEnd") if not e["skipped"]]) == case.config.max_steps
        assert worst(events) <= case.config.lag_bound
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return True


def test_fuzzed_schedules_break_no_invariant(tmp_path: Path) -> None:
    ended = [run_case(seed, tmp_path / str(seed)) for seed in range(FAST)]
    assert sum(ended) >= 0.95 * FAST


@pytest.mark.slow
def test_a_thousand_fuzzed_schedules_break_no_invariant(tmp_path: Path) -> None:
    ended = [run_case(seed, tmp_path / str(seed)) for seed in range(FAST, ALL)]
    assert sum(ended) >= 0.95 * len(ended)


def test_a_weaker_batch_rule_does_not_survive_the_schedules(tmp_path: Path) -> None:
    """The fuzz can fail: training whatever is ready breaks the bound, and the step says so."""
    broken = 0
    for seed in range(40):
        case = fuzz_case(seed, tmp_path / str(seed))
        case.rules = replace(build_rules(case.config), batch=Fifo())
        try:
            case.run()
        except InvariantError as error:
            assert "the lag bound is" in str(error)  # noqa: PT017
            broken += 1
        except StrettoError:
            pass
    assert broken > 3
