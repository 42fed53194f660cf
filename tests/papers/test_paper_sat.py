"""SAT's experiment."""

from __future__ import annotations

import pytest

from stretto.papers import Settings, sat


@pytest.mark.parametrize("kernel", sat.KERNELS)
def test_the_properties_hold_on_random_batches(kernel: str) -> None:
    checks = sat.properties(kernel, first_seed=1000, batches=25)
    assert all(check.passed for check in checks)
    assert set(checks[0].measured.values()) == {0}


def test_a_single_epoch_at_lag_0_is_ppo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sat, "STEPS", 8)
    one, four = sat.synchronous(3, (1, 4))
    assert one.passed
    assert four.passed is None


def test_windows_from_ppos_policies_are_ppos_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sat, "STEPS", 12)
    whole, _ = sat.learn("ppo", 2, 1.0, seed=5)
    assert sat.paired(2, 1.0, seed=5)["ppo"] == pytest.approx(whole.kl[2::3].mean(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 100])
def test_the_experiment_passes(seed: int) -> None:
    assert sat.reproduce(Settings(first_seed=seed)).passed
