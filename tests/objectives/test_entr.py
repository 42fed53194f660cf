"""ENTR: the region's width is the behaviour's entropy."""

from __future__ import annotations

import math
from typing import Any

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

from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.regions import entropy_region


def test_the_rules_of_all_methods() -> None:
    obeys_the_rules("entr", {"tau": 0.2})
    autograd_agrees_with_finite_differences("entr", {"tau": 0.2})
    for tau in (0.0, 0.2):
        unit_ratio_is_the_policy_gradient("entr", {"tau": tau})


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_an_infinite_region_is_ppo(name: str) -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    options: dict[str, Any] = {"clip_high": 0.28, "aggregation": "token-mean"}
    plain, plain_grad = gradient(get(name, **options), batch, logp, a)
    loss, grad = gradient(get("entr", tau=math.inf), batch, logp, a)
    assert torch.equal(loss.total, plain.total)
    assert torch.equal(grad, plain_grad)


def scalar(x: float) -> torch.Tensor:
    return torch.tensor([x], dtype=torch.float64)


def kept(d: float, entropy: float, tau: float = 0.2, eps: float = 0.01) -> bool:
    return bool(entropy_region(scalar(d), scalar(entropy), tau, eps))


def test_golden_score_and_its_flip_at_low_entropy() -> None:
    score = 0.3**2 / 0.51
    assert score == pytest.approx(0.17647, abs=1e-5)
    assert kept(0.3, 0.5)
    assert kept(0.3, 0.5, tau=score * (1 + 1e-12))
    assert not kept(0.3, 0.5, tau=score * (1 - 1e-12))
    assert not kept(0.3, 0.2)


def test_monotone_in_entropy_and_distance_and_symmetric() -> None:
    distances = [0.0, 0.05, 0.2, 0.4, 0.9, 3.0, 500.0]
    entropies = [0.0, 0.1, 0.5, 2.0, 9.0]
    for h in entropies:
        over_d = [kept(d, h) for d in distances]
        assert over_d == sorted(over_d, reverse=True)
        assert [kept(-d, h) for d in distances] == over_d
        assert kept(0.0, h, tau=0.0)
    for d in distances:
        over_h = [kept(d, h) for h in entropies]
        assert over_h == sorted(over_h)


def test_constant_entropy_or_a_large_eps_is_a_fixed_threshold() -> None:
    g = torch.Generator().manual_seed(0)
    d = torch.randn(1000, generator=g, dtype=torch.float64)
    fixed = d.abs() <= math.sqrt(0.2 * (0.7 + 0.01))
    assert torch.equal(entropy_region(d, torch.full_like(d, 0.7), 0.2, 0.01), fixed)
    h = torch.rand(1000, generator=g, dtype=torch.float64) * 5
    threshold = 0.3
    assert torch.equal(entropy_region(d, h, threshold / 1e12, 1e12), d.abs() <= math.sqrt(threshold))


def test_the_threshold_belongs_to_the_engine_and_moves_with_nothing_else() -> None:
    """The same log-ratios at other probabilities are masked alike."""
    batch, logp = stale_batch()
    a = torch.ones_like(logp)
    objective = get("entr", tau=0.2, clip_low=1.0, clip_high=1e9)
    _, grad = gradient(objective, batch, logp, a)
    _, shifted = gradient(objective, batch.replace(logp_behavior=batch.logp_behavior - 3), logp - 3, a)
    assert torch.equal(grad == 0, shifted == 0)
    d = (logp - batch.logp_behavior).abs()
    expected = batch.mask & (d <= (0.2 * (batch.entropy + 0.01)).sqrt())
    assert torch.equal(grad != 0, expected)
    assert 0 < int(expected.sum()) < int(batch.mask.sum())


def test_quadrants_inside_and_outside() -> None:
    assert quadrants("entr", {"tau": 10.0}) == pytest.approx([0, 0.2, 3.0, 0], abs=1e-12)
    assert quadrants("entr", {"tau": 0.1}) == [0, 0, 0, 0]


def test_masked_share_and_version_spread_are_logged() -> None:
    batch, logp = stale_batch()
    m = get("entr", tau=0.2)(batch, logp, advantages=torch.ones_like(logp)).metrics
    d = logp - batch.logp_behavior
    out = (d.square() / (batch.entropy + 0.01) > 0.2) & batch.mask
    assert m["gate/masked_tokens"] == pytest.approx(float(out.sum() / batch.mask.sum()))
    inside, after = [], []
    for trajectory in range(9):
        v = batch.versions[batch.trajectory == trajectory][batch.mask[batch.trajectory == trajectory]].tolist()
        if v:
            inside.append(max(v) - min(v))
            after.append(8 - max(v))
    assert len(inside) == 8  # one trajectory has no policy tokens
    assert m["staleness/inside"] == pytest.approx(sum(inside) / 8)
    assert m["staleness/after"] == pytest.approx(sum(after) / 8)


def test_tau_has_no_default_and_entropy_must_be_recorded() -> None:
    with pytest.raises(ConfigError, match="missing option tau"):
        get("entr")
    for options in ({"tau": -1.0}, {"tau": 0.1, "eps": 0.0}, {"tau": 0.1, "reference": "old"}):
        with pytest.raises(ConfigError, match=list(options)[-1]):
            get("entr", **options)
    batch, logp = stale_batch()
    with pytest.raises(DataError, match="entropy is missing"):
        get("entr", tau=0.2)(batch.replace(entropy=None), logp)
    with pytest.raises(DataError, match="entropy, which the engine must record, is nan"):
        get("entr", tau=0.2)(batch.replace(entropy=batch.entropy * math.nan), logp)
