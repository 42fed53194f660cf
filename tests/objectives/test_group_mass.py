"""GMC-GRPO and TIC-GRPO: the group's mass under a cap, and a trajectory's."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from stale_rules import gradient, obeys_the_rules, quadrants, unit_ratio_is_the_policy_gradient
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.regions import group_mass_scale, upper_cap

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("gmc-grpo", {}),
    ("gmc-grpo", {"length_norm": False}),
    ("gmc-grpo", {"variant": "tic_zero"}),
    ("tic-grpo", {}),
    ("tic-grpo", {"variant": "tic_zero"}),
]


def weights(r: list[float], name: str, **options: Any) -> list[float]:
    """w_i of one group of one-token trajectories with ratios ``r``, read off the gradient."""
    logp = torch.full((len(r), 1), -1.0, dtype=torch.float64)
    d = torch.tensor(r, dtype=torch.float64).log()[:, None]
    batch = TokenBatch(
        mask=torch.ones(len(r), 1, dtype=torch.bool), logp_behavior=logp - d, group=torch.zeros(len(r)).long()
    )
    _, grad = gradient(get(name, **options), batch, logp, torch.ones_like(logp))
    return (-grad[:, 0] * len(r)).tolist()


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_the_rules_of_all_methods(name: str, options: dict[str, Any]) -> None:
    obeys_the_rules(name, options)


@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("name", "options"), METHODS)
def test_unit_ratios_leave_every_weight_at_one(name: str, options: dict[str, Any], eps: float) -> None:
    unit_ratio_is_the_policy_gradient(name, {**options, "eps": eps})


def test_golden_weights() -> None:
    r = [4, 1, 0.5, 0.5]
    assert weights(r, "gmc-grpo") == pytest.approx([3.2, 0.8, 0.4, 0.4], abs=1e-9)
    assert weights(r, "tic-grpo") == pytest.approx([1.2, 1, 0.5, 0.5], abs=1e-9)
    assert weights(r, "tic-grpo", variant="tic_zero") == pytest.approx([0, 1, 0.5, 0.5], abs=1e-9)
    assert weights(r, "gmc-grpo", variant="tic_zero") == pytest.approx([0, 1, 0.5, 0.5], abs=1e-9)


def test_the_cap_bounds_the_mean_and_keeps_relative_weights() -> None:
    g = torch.Generator().manual_seed(4)
    for eps, spread in itertools.product((0.0, 0.2, 1.0), (0.1, 1.0, 3.0)):
        for _ in range(20):
            r = (spread * torch.randn(8, generator=g, dtype=torch.float64)).exp()
            w = torch.tensor(weights(r.tolist(), "gmc-grpo", eps=eps), dtype=torch.float64)
            tic = torch.tensor(weights(r.tolist(), "tic-grpo", eps=eps), dtype=torch.float64)
            active = float(r.mean()) > 1 + eps
            assert float(w.mean()) <= 1 + eps + 1e-9
            if active:
                assert float(w.mean()) == pytest.approx(1 + eps, abs=1e-9)
            assert torch.allclose(w / w[0], r / r[0], rtol=1e-9)
            lost = max(float(r.mean()) - 1 - eps, 0.0)
            assert float((r - w).mean()) == pytest.approx(lost, abs=1e-9)
            tic_lost = float((r - 1 - eps).clamp(min=0).mean())
            assert float((r - tic).mean()) == pytest.approx(tic_lost, abs=1e-9)
            assert lost <= tic_lost + 1e-12
            # no other weights under the same cap have a smaller worst relative loss
            other = torch.rand(8, generator=g, dtype=torch.float64) * r
            other = other * min(1.0, (1 + eps) / float(other.mean()))
            assert float((1 - w / r).max()) <= float((1 - other / r).max()) + 1e-12


def test_order_of_the_group_does_not_matter_and_a_group_of_one_is_tic() -> None:
    r = [4.0, 0.3, 1.7, 2.2]
    w = weights(r, "gmc-grpo")
    assert weights(r[::-1], "gmc-grpo") == pytest.approx(w[::-1], abs=1e-12)
    for x in (0.2, 1.1, 1.3, 40.0):
        assert weights([x], "gmc-grpo") == pytest.approx(weights([x], "tic-grpo"), abs=1e-12)


def test_a_uniform_gap_of_500_nats_is_capped_exactly() -> None:
    d = torch.tensor([500.0, 500.0, -500.0, 0.0], dtype=torch.float64)
    group = torch.tensor([0, 0, 1, 1])
    w = (d + group_mass_scale(d, group, 0.2)).exp()
    assert w.tolist() == pytest.approx([1.2, 1.2, 0.0, 1.0], abs=1e-9)
    assert upper_cap(d, 0.2, "truncate")[0].exp().tolist() == pytest.approx([1.2, 1.2, 0, 1], abs=1e-9)
    assert upper_cap(d, 0.2, "zero")[0].exp().tolist() == pytest.approx([0, 0, 0, 1], abs=1e-9)


def test_the_gradient_is_bounded_by_the_cap() -> None:
    g = torch.Generator().manual_seed(5)
    for _ in range(20):
        r = (2 * torch.randn(8, generator=g, dtype=torch.float64)).exp()
        a = torch.randn(8, generator=g, dtype=torch.float64)
        w = torch.tensor(weights(r.tolist(), "gmc-grpo"), dtype=torch.float64)
        assert float((w * a).mean().abs()) <= 1.2 * float(a.abs().max())


def test_a_trajectory_of_several_rows_has_one_ratio_their_product() -> None:
    logp = torch.full((4, 2), -1.0, dtype=torch.float64)
    d = torch.tensor([[2.0, 1.0], [3.0, 0.5], [1.0, 0.5], [1.0, 1.0]], dtype=torch.float64).log()
    batch = TokenBatch(
        mask=torch.ones(4, 2, dtype=torch.bool), logp_behavior=logp - d, group=torch.zeros(4).long(),
        trajectory=torch.tensor([7, 7, 2, 5]),
    )  # fmt: skip
    a = torch.ones_like(logp)
    scale = 3 * 1.2 / (3 + 0.5 + 1)
    _, grad = gradient(get("gmc-grpo"), batch, logp, a)
    expected = torch.tensor([3, 3, 0.5, 1], dtype=torch.float64)[:, None].expand(4, 2) * scale / 8
    assert torch.allclose(-grad, expected, atol=1e-12)
    _, grad = gradient(get("tic-grpo"), batch, logp, a)
    assert (-8 * grad[:, 0]).tolist() == pytest.approx([1.2, 1.2, 0.5, 1], abs=1e-12)
    _, grad = gradient(get("tic-grpo", length_norm=False), batch, logp, a)
    assert (-4 * grad[:, 0]).tolist() == pytest.approx([1.2, 1.2, 0.5, 1], abs=1e-12)


def test_all_four_quadrants_have_the_ratio_times_the_group_scale() -> None:
    assert quadrants("gmc-grpo", {}) == pytest.approx([1.2, 0.2, 1.2, 0.2], abs=1e-12)
    assert quadrants("tic-grpo", {}) == pytest.approx([1.2, 0.2, 1.2, 0.2], abs=1e-12)
    assert quadrants("tic-grpo", {"variant": "tic_zero"}) == pytest.approx([0, 0.2, 0, 0.2], abs=1e-12)


MU, PI, ADVANTAGE = torch.tensor([[0.6, 0.3, 0.1], [0.3, 0.3, 0.4], [-0.4, 0.1, 0.6]], dtype=torch.float64)
ADVANTAGE = ADVANTAGE - (PI * ADVANTAGE).sum()
RATIO = PI / MU
SCORED = ADVANTAGE[:, None] * (torch.eye(3, dtype=torch.float64) - PI)
TRUE_GRADIENT = (PI[:, None] * SCORED).sum(0)


def counts_of(size: int) -> tuple[Tensor, Tensor]:
    """All multinomial counts [n,3] of ``size`` draws from MU, and their probabilities."""
    n = torch.tensor([(i, j, size - i - j) for i in range(size + 1) for j in range(size + 1 - i)], dtype=torch.float64)
    logp = math.lgamma(size + 1) - torch.lgamma(n + 1).sum(1) + (n * MU.log()).sum(1)
    return n, logp.exp()


def gmc_gradients(eps: float, size: int) -> tuple[Tensor, Tensor]:
    """The gradient for each possible group of ``size``, and the probabilities."""
    n, chance = counts_of(size)
    flat = n.long().flatten()
    arm = torch.arange(3).repeat(len(n)).repeat_interleave(flat)
    group = torch.arange(len(n)).repeat_interleave(3).repeat_interleave(flat)
    d = RATIO.log()[arm]
    w = (d + group_mass_scale(d, group, eps)).exp()
    out = torch.zeros(len(n), 3, dtype=torch.float64).index_add(0, group, w[:, None] * SCORED[arm]) / size
    return out, chance


TABLE = {
    0.05: (0.0976, {2: 0.0800, 8: 0.0326, 32: 0.0133, 128: 0.0043}),
    0.2: (0.0926, {2: 0.0713, 8: 0.0210, 32: 0.0040, 128: 0.0002}),
    1.0: (0.0661, {2: 0.0244, 8: 0.0006, 32: 0.0, 128: 0.0}),
}


@pytest.mark.parametrize("eps", list(TABLE))
def test_the_bias_of_a_group_cap_vanishes_with_the_group_that_of_a_trajectory_cap_stays(eps: float) -> None:
    assert float(TRUE_GRADIENT.norm()) == pytest.approx(0.2446, abs=1e-4)
    tic, gmc = TABLE[eps]
    capped = upper_cap(RATIO.log(), eps, "truncate")[0].exp()
    per_draw = capped[:, None] * SCORED
    tic_bias = float(((MU[:, None] * per_draw).sum(0) - TRUE_GRADIENT).norm())
    assert tic_bias == pytest.approx(tic, abs=1e-4)
    for size in (2, 8, 32):  # the same for any group: its expectation is that of one draw
        n, chance = counts_of(size)
        mean = (chance[:, None] * (n @ per_draw) / size).sum(0)
        assert float((mean - TRUE_GRADIENT).norm()) == pytest.approx(tic_bias, abs=1e-12)
    last = math.inf
    for size, published in gmc.items():
        g, chance = gmc_gradients(eps, size)
        bias = float(((chance[:, None] * g).sum(0) - TRUE_GRADIENT).norm())
        assert bias == pytest.approx(published, abs=1e-4)
        assert bias < tic_bias
        assert bias < last or last < 1e-9
        last = bias


def test_the_price_is_a_larger_second_moment() -> None:
    g, chance = gmc_gradients(0.2, 8)
    gmc = float((chance * g.square().sum(1)).sum())
    n, chance = counts_of(8)
    capped = upper_cap(RATIO.log(), 0.2, "truncate")[0].exp()
    tic = float((chance * (n @ (capped[:, None] * SCORED) / 8).square().sum(1)).sum())
    assert 1.5 < gmc / tic < 2.5


def test_options_and_missing_groups_are_named() -> None:
    with pytest.raises(ConfigError, match="eps"):
        get("gmc-grpo", eps=-0.1)
    with pytest.raises(ConfigError, match="gmc-grpo"):
        get("tic-grpo", variant="gmc")
    with pytest.raises(ConfigError, match="length_norm"):
        get("tic-grpo", length_norm=False, aggregation="token-mean")
    assert get("gmc-grpo").needs == {"statistics"}
    assert get("tic-grpo").needs == set()
    one = torch.zeros(1, 1, dtype=torch.float64)
    batch = TokenBatch(mask=torch.ones(1, 1, dtype=torch.bool), logp_behavior=one)
    with pytest.raises(DataError, match="group is missing"):
        get("gmc-grpo")(batch, one, advantages=one)
