"""RAC: rewards that arrive after their trajectory trained."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from stale_rules import (
    gradient,
    obeys_the_rules,
    quadrants,
    some_advantages,
    stale_batch,
    unit_ratio_is_the_policy_gradient,
)
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.retroactive import (
    BRANCH_CROSSING,
    adaptive_tau,
    age_kernel,
    age_weight,
    bias_bound,
    cumulated,
    geometric_mass,
    kernel_mass,
)

NAN = math.nan


def returned(ratio: float, slow: float, fast: float, delay: int, tokens: int = 2) -> tuple[TokenBatch, Tensor]:
    """A trajectory that comes back for its slow reward, and a fresh one, with the ratio spread over the tokens."""
    logp = torch.full((2, tokens), -1.0, dtype=torch.float64)
    return TokenBatch(
        mask=torch.ones(2, tokens, dtype=torch.bool),
        logp_behavior=logp - torch.tensor([[math.log(ratio) / tokens], [0.0]], dtype=torch.float64),
        group=torch.tensor([0, 1]),
        trajectory=torch.tensor([0, 1]),
        reward_fast=torch.tensor([fast, 0.3], dtype=torch.float64),
        reward_slow=torch.tensor([slow, NAN], dtype=torch.float64),
        trained_at=torch.tensor([20 - delay, -1]),
        version=20,
    ), logp


def weight(ratio: float, slow: float, fast: float, delay: int, a: float = 0.0, **options: Any) -> list[float]:
    """What multiplies the score of the returned and of the fresh trajectory; A is ``a`` for both."""
    batch, logp = returned(ratio, slow, fast, delay)
    _, grad = gradient(get("rac", **options), batch, logp, torch.full((2,), a, dtype=torch.float64))
    return (-grad[:, 0] * 4).tolist()


@pytest.mark.parametrize("options", [{}, {"rho_on_slow": "twice"}, {"slow_mode": "add", "tau_age": 3.0}])
def test_the_rules_of_all_methods(options: dict[str, Any]) -> None:
    obeys_the_rules("rac", options)
    unit_ratio_is_the_policy_gradient("rac", options)


def test_golden_correction() -> None:
    assert weight(1.5, 0.9, 0.4, 10)[0] == pytest.approx(0.4912384518, abs=1e-9)
    assert weight(1.5, 0.9, 0.4, 10, rho_on_slow="twice")[0] == pytest.approx(1.2 * 0.4912384518, abs=1e-9)
    assert weight(1.5, 0.9, 0.4, 10, slow_mode="add")[0] == pytest.approx(math.exp(-0.2) * 1.2 * 0.9, abs=1e-9)
    assert weight(0.5, 0.9, 0.4, 10)[0] == pytest.approx(math.exp(-0.2) * 0.5 * 0.5, abs=1e-9)  # clipped above only
    assert weight(1.5, 0.9, 0.4, 10, alpha=0.5)[0] == pytest.approx(0.4912384518 / 2, abs=1e-9)


def test_once_and_twice_agree_at_unit_ratio() -> None:
    once = weight(1.0, 0.9, 0.4, 10)
    assert weight(1.0, 0.9, 0.4, 10, rho_on_slow="twice") == pytest.approx(once, abs=1e-15)


def test_a_returned_row_has_no_fast_part_and_a_fresh_one_no_correction() -> None:
    assert weight(1.5, 0.9, 0.4, 10, a=7.0)[0] == pytest.approx(0.4912384518, abs=1e-9)
    assert weight(1.5, 0.9, 0.4, 10, a=7.0)[1] == pytest.approx(7.0, abs=1e-12)
    batch, logp = returned(1.5, NAN, 0.4, 10)  # nothing came yet
    _, grad = gradient(get("rac"), batch, logp, torch.full((2,), 7.0, dtype=torch.float64))
    assert (-4 * grad[:, 0]).tolist() == pytest.approx([0, 7], abs=1e-12)


def test_the_correction_is_bounded_and_expires() -> None:
    assert weight(1.0, 1e6, 0.0, 0)[0] == 5.0
    assert weight(1.0, -1e6, 0.0, 0)[0] == -5.0
    assert weight(1.0, 1e6, 0.0, 0, max_corr=2.0)[0] == 2.0
    assert weight(1.0, 0.9, 0.4, 20, lifetime=20)[0] == pytest.approx(math.exp(-0.4) * 0.5)
    assert weight(1.0, 0.9, 0.4, 20, lifetime=19)[0] == 0


def test_returned_rows_leave_the_baseline_of_fresh_ones_alone() -> None:
    batch, logp = stale_batch()
    objective = get("rac")
    a = objective.advantages(batch, logp)
    among_fresh = get("grpo").advantages(batch.select(torch.arange(9)))
    assert torch.equal(a[:9], among_fresh)
    assert bool((a[9] == 0).all())
    same_group = batch.replace(group=torch.where(batch.group == 3, 0, batch.group))
    assert torch.equal(objective.advantages(same_group), a)


def test_all_rows_stay_in_the_denominator() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    whole = get("rac")(batch, logp, advantages=a).total.item()
    fresh = batch.select(torch.arange(9))
    part = get("rac")(fresh, logp[:9], advantages=a[:9]).total.item()
    d = torch.where(batch.mask[9], logp[9] - batch.logp_behavior[9], 0.0).sum()
    corr = math.exp(-6 / 50) * min(1.2, float(d.exp())) * (2.5 - 0.5)
    late = -float((corr * logp[9])[batch.mask[9]].sum())
    n = int(batch.mask.sum())
    assert whole == pytest.approx((part * int(fresh.mask.sum()) + late) / n, abs=1e-12)


def test_without_lag_it_is_v_trace_and_its_fixed_point_mixes_the_policies() -> None:
    """E_mu[min(rho_bar, pi / mu) (r - V)] = 0 at the value of the policy proportional to min(rho_bar mu, pi)."""
    mu = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    pi = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    r = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    fixed = torch.tensor([0.2, 0.2, 0.24], dtype=torch.float64) / 0.64
    value = float((fixed * r).sum())
    total = 0.0
    for action in range(3):
        ratio = float(pi[action] / mu[action])
        w = weight(ratio, float(r[action]), value, 0)[0]
        assert w == pytest.approx(min(1.2, ratio) * (float(r[action]) - value), abs=1e-12)
        total += float(mu[action]) * w
    assert total == pytest.approx(0, abs=1e-12)
    assert fixed.tolist() == pytest.approx([0.3125, 0.3125, 0.375], abs=1e-12)


def test_quadrants_of_a_one_sided_clip() -> None:
    assert quadrants("rac", {}) == pytest.approx([1.2, 0.2, 1.2, 0.2], abs=1e-12)


def test_the_ratio_is_that_of_the_whole_trajectory() -> None:
    batch, logp = returned(1.0, 0.9, 0.4, 0)
    behavior = logp - torch.tensor([[math.log(0.5)] * 2, [math.log(0.8)] * 2], dtype=torch.float64)
    fresh = batch.replace(
        logp_behavior=behavior, trajectory=torch.tensor([4, 4]), trained_at=torch.tensor([-1, -1]),
        reward_slow=torch.full((2,), NAN, dtype=torch.float64),
    )  # fmt: skip
    _, grad = gradient(get("rac"), fresh, logp, torch.ones_like(logp))
    assert (-4 * grad).flatten().tolist() == pytest.approx([0.25 * 0.64] * 4, abs=1e-12)


def test_a_kernel_of_mass_one_delivers_everything_and_of_less_that_much_less() -> None:
    contributions = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)
    full = torch.tensor([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(cumulated(full, contributions), contributions.sum(0), atol=1e-12)
    part = 0.85 * full
    assert torch.allclose(
        cumulated(part, contributions) - contributions.sum(0), -0.15 * contributions.sum(0), atol=1e-12
    )
    assert kernel_mass(part).tolist() == pytest.approx([0.85, 0.85])


@pytest.mark.parametrize(("p", "tau"), [(0.1, 50.0), (0.5, 1000.0), (0.02, 5.0), (1.0, 3.0)])
def test_the_mass_under_geometric_delays(p: float, tau: float) -> None:
    delays = torch.arange(5000, dtype=torch.float64)
    chance = p * (1 - p) ** delays
    mass = float(kernel_mass(age_kernel(chance[None], tau))[0])
    assert mass == pytest.approx(geometric_mass(p, tau), abs=1e-12)
    assert mass <= 1
    assert float(age_weight(torch.tensor(10.0), 50.0)) == pytest.approx(math.exp(-0.2))


def test_the_branches_of_the_bias_bound_cross_where_both_are_equal() -> None:
    low, high = 0.1, 5.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle / 2 < 1 - math.exp(-middle) else (low, middle)
    assert pytest.approx(low, abs=1e-12) == BRANCH_CROSSING
    other_form = 1 - 0.5 * math.exp(-BRANCH_CROSSING)
    assert abs(other_form - BRANCH_CROSSING / 2) > 0.05  # a different bound, crossing elsewhere
    for kl in (0.0, 0.01, 1.0, 1.5, 1.7, 10.0, 700.0):
        expected = 2 * 3 / (1 - 0.9) * math.sqrt(kl / 2 if kl < BRANCH_CROSSING else 1 - math.exp(-kl))
        assert bias_bound(kl, 3.0, 0.9) == pytest.approx(expected, abs=1e-9)


def test_tau_follows_the_delays_once_there_are_enough() -> None:
    assert adaptive_tau(torch.tensor([3, 4, 5, 6]), 2.0) == 50.0
    assert adaptive_tau(torch.arange(101), 0.5) == pytest.approx(47.5)
    assert adaptive_tau(torch.zeros(9), 0.5) == 1.0
    with pytest.raises(ConfigError, match="kappa"):
        adaptive_tau(torch.zeros(9), 0.0)


def test_what_is_missing_is_an_error_never_a_silent_nothing() -> None:
    batch, logp = returned(1.0, 0.9, 0.4, 10)
    for field in ("reward_slow", "trained_at", "reward_fast"):
        with pytest.raises(DataError, match=f"{field} is missing"):
            get("rac")(batch.replace(**{field: None}), logp, advantages=torch.ones_like(logp))
    with pytest.raises(DataError, match="no fast one"):
        get("rac")(batch.replace(reward_fast=batch.reward_fast * NAN), logp, advantages=torch.ones_like(logp))
    for options in ({"tau_age": 0.0}, {"is_clip": -0.1}, {"max_corr": 0.0}, {"lifetime": -1}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            get("rac", **options)
    assert get("rac").needs == {"late"}
    m = get("rac")(batch, logp, advantages=torch.ones_like(logp)).metrics
    assert m["rac/returned_rows"] == 0.5
    assert m["rac/delay/mean"] == 10
    assert m["rac/correction/mean"] == pytest.approx(math.exp(-0.2) * 0.5)
