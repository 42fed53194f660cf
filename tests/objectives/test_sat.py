"""SAT: the clip's outward end contracts in the stale tail (Proposition 4.1 of arXiv 2607.18722, item by item)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from stale_rules import (
    autograd_agrees_with_finite_differences,
    gradient,
    obeys_the_rules,
    quadrants,
    some_advantages,
    stale_batch,
    unit_ratio_is_the_policy_gradient,
)
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.objectives.regions import contraction, upper_quantile

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("sat", {}),
    ("sat", {"kernel": "H2"}),
    ("sat", {"alpha": 0.5}),
    ("sat", {"level": "sequence", "alpha": 0.5}),
    ("sat-gspo", {"alpha": 0.5}),
]


def gated(name: str, options: dict[str, Any]) -> Tensor:
    """Where the interval's end moves with the token itself, so that only the gradient holds it fast."""
    batch, logp = stale_batch()
    objective = get(name, **options)
    d = torch.where(batch.mask, logp - batch.logp_behavior, 0.0)
    if objective.level == "sequence":
        d = (d.sum(1) / batch.mask.sum(1).clamp(min=1))[:, None].expand_as(d)
    size = d.abs()
    beyond = (size > upper_quantile(size[batch.mask], objective.alpha)) & batch.mask
    assert bool(beyond.any())
    assert not bool(beyond[batch.mask].all())
    return beyond


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_the_rules_of_all_methods(name: str, options: dict[str, Any]) -> None:
    obeys_the_rules(name, options)
    autograd_agrees_with_finite_differences(name, options, frozen=gated(name, options))
    if name == "sat" and "level" not in options:  # a sequence ratio of 1 averages the row's advantages first
        unit_ratio_is_the_policy_gradient(name, options)


def test_the_quantile_is_that_of_linear_interpolation() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 10, 11, 31, 500):
        x = torch.from_numpy(rng.exponential(size=n))
        for alpha in (0.0, 0.1, 0.5, 0.9, 0.97, 1.0):
            assert float(upper_quantile(x, alpha)) == pytest.approx(float(np.quantile(x, alpha)), abs=1e-14)
    assert float(upper_quantile(torch.zeros(0), 0.9)) == 0


def test_a_quantile_that_falls_on_a_value_is_that_value_exactly() -> None:
    for n in range(1, 400):
        x = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
        if (9 * (n - 1)) % 10 == 0:
            assert bool((x == upper_quantile(x, 0.9)).any())
        same = torch.full((n,), 0.1, dtype=torch.float64)
        assert float(upper_quantile(same, 0.9)) == 0.1


def test_golden_contraction() -> None:
    d = torch.arange(1, 11, dtype=torch.float64) / 100
    q = upper_quantile(d, 0.9)
    assert float(q) == pytest.approx(0.091, abs=1e-12)
    c = contraction(d, q, "H1", 2.0)
    assert (c < 1).tolist() == [False] * 9 + [True]
    assert float(c[-1]) == pytest.approx(0.990313, abs=1e-6)
    assert 1 + 0.2 * float(c[-1]) == pytest.approx(1.19806, abs=1e-5)
    assert float(contraction(d, q, "H2", 2.0)[-1]) == pytest.approx(1 / (1 + (0.1 / 0.091) ** 2), abs=1e-12)


def tail_batch(seed: int, tokens: int = 500, spread: float = 0.15) -> tuple[TokenBatch, Tensor, Tensor, Tensor]:
    """Tokens with log-ratios d; the batch, logp, A and d."""
    g = torch.Generator().manual_seed(seed)
    d = spread * torch.randn(1, tokens, generator=g, dtype=torch.float64)
    logp = torch.full_like(d, -1.0)
    a = torch.randn(1, tokens, generator=g, dtype=torch.float64)
    return TokenBatch(mask=torch.ones_like(d, dtype=torch.bool), logp_behavior=logp - d), logp, a, logp - (logp - d)


@pytest.mark.parametrize("kernel", ["H1", "H2"])
def test_proposition_on_random_batches(kernel: str) -> None:
    sat, ppo = get("sat", kernel=kernel), get("ppo", aggregation="token-mean")
    for seed in range(200):
        batch, logp, a, d = tail_batch(seed)
        n = d.numel()
        q = upper_quantile(d.abs()[0], 0.9)
        c = contraction(d.abs(), q, kernel, 2.0)  # type: ignore[arg-type]
        assert bool(((c > 0) & (c <= 1)).all())
        assert 0 < int((c < 1).sum()) <= math.ceil(0.1 * n)
        with_statistics = batch.replace(statistics=sat.statistics(batch, logp))
        ours, _ = sat.token_loss(with_statistics, logp, a)
        theirs, _ = ppo.token_loss(batch, logp, a)
        assert bool((ours >= theirs - 1e-12).all())  # the surrogate, its negative, never exceeds the nominal one
        grad, nominal = gradient(sat, batch, logp, a)[1], gradient(ppo, batch, logp, a)[1]
        pull_back = a * d < 0
        assert torch.equal(ours[pull_back], theirs[pull_back])
        assert torch.equal(grad[pull_back], nominal[pull_back])
        r = d.exp()
        high, low = 1 + 0.2 * torch.where(d > 0, c, 1.0), 1 - 0.2 * torch.where(d < 0, c, 1.0)
        intercepted = ((a > 0) & (r > high) & (r <= 1.2)) | ((a < 0) & (r < low) & (r >= 0.8))
        assert bool((grad[intercepted] == 0).all())
        assert bool((nominal[intercepted] != 0).all())
        assert torch.equal(grad[~intercepted], nominal[~intercepted])
        m = sat(batch, logp, advantages=a).metrics
        assert m["sat/gated_tokens"] == pytest.approx(float((c < 1).double().mean()))
        assert m["sat/radius_high"] == pytest.approx(float((high - 1).mean()))
        assert m["sat/radius_low"] == pytest.approx(float((1 - low).mean()))
        assert max(m["sat/radius_high"], m["sat/radius_low"]) <= 0.2
        assert m["sat/contracted_by/max"] == pytest.approx(1 - float(c.min()))
        assert m["sat/log_ratio"] == pytest.approx(float(d.abs().mean()))


@pytest.mark.parametrize("kernel", ["H1", "H2"])
def test_one_scale_for_all_leaves_the_contraction(kernel: str) -> None:
    _, _, _, d = tail_batch(0)
    x = d.abs()[0]
    c = contraction(x, upper_quantile(x, 0.9), kernel, 2.0)  # type: ignore[arg-type]
    for k in (1e-6, 0.3, 7.0, 1e6):
        assert torch.allclose(contraction(k * x, upper_quantile(k * x, 0.9), kernel, 2.0), c, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["H1", "H2"])
@pytest.mark.parametrize("size", [0.0, 0.1, 0.5])
def test_without_a_tail_it_is_ppo_or_gspo_bit_for_bit(kernel: str, size: float) -> None:
    g = torch.Generator().manual_seed(2)
    mask = torch.ones(6, 5, dtype=torch.bool)
    sign = torch.where(torch.rand(6, 5, generator=g) < 0.5, -1.0, 1.0).double()
    logp = torch.full((6, 5), -1.0, dtype=torch.float64)
    a = some_advantages(logp)
    for name, row_sign, options in (
        ("ppo", sign, {}),
        ("grpo", sign, {}),
        ("gspo", sign[:, :1].expand(6, 5), {"reference": "behavior"}),
    ):
        # equal sizes to the last bit: the log-ratio is formed as logp - behaviour
        behavior = torch.where(row_sign > 0, -1.0 - size, -1.0 + size)
        batch = TokenBatch(mask=mask, logp_behavior=behavior)
        level = {"level": "sequence"} if name == "gspo" else {}
        widths = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token-mean"}
        plain, plain_grad = gradient(get(name, **widths, **options), batch, logp, a)
        loss, grad = gradient(get("sat", kernel=kernel, **level), batch, logp, a)
        assert torch.equal(loss.total, plain.total)
        assert torch.equal(grad, plain_grad)


def test_a_quantile_of_zero_gates_nothing() -> None:
    d = torch.zeros(1, 20, dtype=torch.float64)
    d[0, 0] = 0.19
    logp = torch.full_like(d, -1.0)
    batch = TokenBatch(mask=torch.ones_like(d, dtype=torch.bool), logp_behavior=logp - d)
    assert get("sat")(batch, logp, advantages=torch.ones_like(d)).metrics["sat/gated_tokens"] == 0


def test_outward_updates_stop_earlier_in_the_tail_than_ppos() -> None:
    """A > 0 at r = 1.19 and A < 0 at r = 0.82, inside PPO's interval, at the end of a short tail."""
    inner = [0.001] * 38
    for x, a, sign in ((math.log(1.19), 1.0, 1), (-math.log(0.82), -1.0, -1)):
        d = torch.tensor([[*inner, x]], dtype=torch.float64) * sign
        logp = torch.full_like(d, -1.0)
        batch = TokenBatch(mask=torch.ones_like(d, dtype=torch.bool), logp_behavior=logp - d)
        advantages = torch.full_like(d, a)
        assert float(gradient(get("ppo"), batch, logp, advantages)[1][0, -1]) != 0
        for kernel in ("H1", "H2"):
            assert float(gradient(get("sat", kernel=kernel), batch, logp, advantages)[1][0, -1]) == 0
            assert float(gradient(get("sat", kernel=kernel), batch, logp, -advantages)[1][0, -1]) != 0
    assert quadrants("sat", {}) == pytest.approx([0, 0.2, 3.0, 0], abs=1e-12)
    assert quadrants("sat", {"dual_clip": 2.5}) == pytest.approx([0, 0.2, 0, 0], abs=1e-12)


def test_a_row_whose_sequence_ratio_is_the_quantile_is_not_gated() -> None:
    lengths = [4, 9, 7]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    logp = torch.full((3, 9), -1.0, dtype=torch.float64)
    d = torch.tensor([0.013, 0.017, 0.011], dtype=torch.float64)[:, None] / 3
    batch = TokenBatch(mask=mask, logp_behavior=logp - d)
    for kernel in ("H1", "H2"):
        m = get("sat", level="sequence", kernel=kernel)(batch, logp, advantages=torch.ones_like(logp)).metrics
        assert m["sat/gated_tokens"] == 0  # the longest row alone is the quantile, though the largest |d|


def test_the_scope_of_the_quantile_is_the_step_unless_asked_otherwise() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    rows = torch.arange(5)
    objective = get("sat", quantile_scope="micro-batch")
    assert objective.needs == set()
    assert get("sat").needs == {"statistics"}
    part = objective(batch.select(rows), logp[rows], advantages=a[rows])
    alone = get("sat")(batch.select(rows), logp[rows], advantages=a[rows])
    assert torch.equal(part.total, alone.total)
    step = batch.replace(statistics=get("sat").statistics(batch, logp))
    within = get("sat")(step.select(rows), logp[rows], advantages=a[rows])
    assert within.metrics["sat/contracted_by/max"] != part.metrics["sat/contracted_by/max"]


def test_options_are_checked() -> None:
    for options in ({"alpha": 1.5}, {"n": 0.0}, {"reference": "proximal"}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            get("sat", **options)
    with pytest.raises(ConfigError, match="kernel"):
        get("sat", kernel="H3")
    assert (get("sat").clip_low, get("sat").clip_high, get("sat").alpha, get("sat").n) == (0.2, 0.2, 0.9, 2.0)
    assert (get("sat-gspo").clip_low, get("sat-gspo").clip_high) == (3e-4, 4e-4)
