"""Every method against hand-made numbers, the quadrant table, and the rules that all losses obey."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get, names

ALL = ["reinforce", "grpo", "ppo", "decoupled-ppo", "tis", "mis"]
BEHAVIOR = [math.log(0.5), math.log(0.25), math.log(0.8)]
PROXIMAL = [math.log(0.4), math.log(0.3), math.log(0.6)]
OLD = [math.log(0.1), math.log(0.9), math.log(0.05)]
CURRENT = [math.log(0.45), math.log(0.5), math.log(0.2)]
A = [1.0, -2.0, 3.0]


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def three_tokens(**changes: Any) -> TokenBatch:
    fields: dict[str, Any] = {
        "mask": torch.ones(1, 3, dtype=torch.bool),
        "logp_behavior": row(BEHAVIOR),
        "logp_proximal": row(PROXIMAL),
        "logp_old": row(OLD),
        "values": row([0.1, 0.2, 0.3]),
        "rewards": row([0, 0, 1.0]),
        "group": torch.tensor([0]),
    }
    return TokenBatch(**(fields | changes))


def random_batch(seed: int = 0, rows: int = 6, width: int = 5) -> tuple[TokenBatch, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[:, -1] = True
    mask[1, :] = False
    logp = -torch.rand(rows, width, generator=g, dtype=torch.float64) * 3

    def near(scale: float) -> Tensor:
        return logp + scale * torch.randn(rows, width, generator=g, dtype=torch.float64)

    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, -1] = torch.randint(0, 3, (rows,), generator=g).double()
    batch = TokenBatch(
        mask=mask, logp_behavior=near(0.6), logp_proximal=near(0.4), logp_old=near(0.5), rewards=rewards,
        values=torch.randn(rows, width, generator=g, dtype=torch.float64),
        group=torch.arange(rows) // 3, trajectory=torch.arange(rows),
    )  # fmt: skip
    return batch, logp


def gradient(objective: Any, batch: TokenBatch, logp: Tensor, advantages: Tensor | None = None) -> tuple[Any, Tensor]:
    logp = logp.clone().requires_grad_()
    loss = objective(batch, logp, advantages=advantages)
    (grad,) = torch.autograd.grad(loss.total, logp)
    return loss, grad


def test_the_shipped_methods_are_listed() -> None:
    assert set(ALL) <= set(names())
    with pytest.raises(ConfigError, match="did you mean 'tis'"):
        get("tiss")
    with pytest.raises(ConfigError, match="clip_low"):
        get("grpo", clip_lo=0.1)


CASES: list[tuple[str, dict[str, Any], list[float]]] = [
    # multiplier of A grad logp per token, by hand: current/behaviour = 0.9, 2, 0.25; proximal/behaviour = 0.8, 1.2,
    # 0.75; current/proximal = 1.125, 5/3, 1/3; sequence 0.45; sequence proximal 0.72
    ("reinforce", {}, [1, 1, 1]),
    ("grpo", {"aggregation": "token-mean"}, [0.9, 2, 0.25]),
    ("ppo", {}, [0.9, 2, 0.25]),
    ("grpo", {"aggregation": "token-mean", "dual_clip": 1.5}, [0.9, 0, 0.25]),
    ("decoupled-ppo", {}, [0.8 * 1.125, 1.2 * 5 / 3, 0.75 / 3]),
    ("decoupled-ppo", {"cap": 1.1}, [0.8 * 1.125, 0, 0.75 / 3]),
    ("decoupled-ppo", {"clip_high": 0.1}, [0, 1.2 * 5 / 3, 0.75 / 3]),
    ("tis", {"cap": 1.5}, [0.9, 1.5, 0.25]),
    ("tis", {"cap": 1.5, "floor": 0.5}, [0.9, 1.5, 0.5]),
    ("tis", {"numerator": "proximal", "cap": 1.1}, [0.8, 1.1, 0.75]),
    ("tis", {"level": "sequence"}, [0.45] * 3),
    ("tis", {"level": "sequence", "numerator": "proximal"}, [0.72] * 3),
    ("mis", {}, [0.9, 2 * (2 <= 2.0), 0]),
    ("mis", {"high": 1.9}, [0.9, 0, 0]),
    ("mis", {"level": "sequence", "low": 0.4}, [0.45] * 3),
    ("mis", {"level": "sequence"}, [0, 0, 0]),
    ("mis", {"level": "geometric"}, [0.45 ** (1 / 3)] * 3),
    ("mis", {"level": "geometric", "weights": "token"}, [0.9, 2, 0.25]),
    ("mis", {"level": "geometric", "weights": "none"}, [1, 1, 1]),
    ("mis", {"level": "geometric", "veto": 0.3}, [0, 0, 0]),
    ("mis", {"numerator": "proximal", "low": 0.78}, [0.8, 1.2, 0]),
]


@pytest.mark.parametrize(("name", "options", "multiplier"), CASES)
def test_three_tokens_under_four_distinct_policies(name: str, options: dict[str, Any], multiplier: list[float]) -> None:
    if name == "mis" and not options:  # keep the tie at exactly 2 out of the golden value
        options, multiplier = {"high": 2.1}, [0.9, 2, 0]
    if name in ("tis", "mis"):  # the batch has proximal log-probabilities, which they would take by themselves
        options = {"numerator": "current"} | options
    _, grad = gradient(get(name, **options), three_tokens(), row(CURRENT), row(A))
    expected = [-m * a / 3 for m, a in zip(multiplier, A, strict=True)]
    assert grad[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_values_of_the_losses_are_the_formulas() -> None:
    r = [0.9, 2.0, 0.25]
    ppo = get("grpo", aggregation="token-mean")(three_tokens(), row(CURRENT), advantages=row(A))
    assert float(ppo.policy) == pytest.approx(-(0.9 * 1 + 2.0 * -2 + 0.25 * 3) / 3, abs=1e-12)
    clipped = get("grpo", aggregation="token-mean")(three_tokens(), row(CURRENT), advantages=row([1, 2, -3]))
    assert float(clipped.policy) == pytest.approx(-(0.9 + 1.2 * 2 - 0.8 * 3) / 3, abs=1e-12)
    dual = get("grpo", aggregation="token-mean", dual_clip=1.5)(three_tokens(), row(CURRENT), advantages=row(A))
    assert float(dual.policy) == pytest.approx(-(0.9 * 1 + 1.5 * -2 + 0.25 * 3) / 3, abs=1e-12)
    tis = get("tis", cap=1.5, numerator="current")(three_tokens(), row(CURRENT), advantages=row(A))
    w = [0.9, 1.5, 0.25]
    assert float(tis.policy) == pytest.approx(-sum(x * a * c for x, a, c in zip(w, A, CURRENT, strict=True)) / 3)
    m = tis.metrics
    assert m["ratio/clipped_fraction"] == pytest.approx(1 / 3)
    assert m["off_policy/kl"] == pytest.approx(sum(x - 1 - math.log(x) for x in r) / 3)
    assert m["ess"] == pytest.approx(sum(w) ** 2 / (3 * sum(x * x for x in w)))


HIGH, LOW = 3.0, 0.2
QUADRANTS: list[tuple[str, dict[str, Any], list[float]]] = [
    # A>0 r high, A>0 r low, A<0 r high, A<0 r low
    ("grpo", {"aggregation": "token-mean"}, [0, LOW, HIGH, 0]),
    ("ppo", {}, [0, LOW, HIGH, 0]),
    ("grpo", {"aggregation": "token-mean", "dual_clip": 2.5}, [0, LOW, 0, 0]),
    ("tis", {}, [2, LOW, 2, LOW]),
    ("mis", {}, [0, 0, 0, 0]),
    ("reinforce", {}, [1, 1, 1, 1]),
]


@pytest.mark.parametrize(("name", "options", "expected"), QUADRANTS)
def test_quadrants_of_sign_and_ratio(name: str, options: dict[str, Any], expected: list[float]) -> None:
    logp = torch.full((1, 4), -2.0, dtype=torch.float64)
    d = torch.tensor([[HIGH, LOW, HIGH, LOW]], dtype=torch.float64).log()
    a = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    batch = TokenBatch(mask=torch.ones(1, 4, dtype=torch.bool), logp_behavior=logp - d)
    _, grad = gradient(get(name, **options), batch, logp, a)
    assert (grad * -4 / a)[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_unit_ratio_gives_the_policy_gradient_bit_for_bit(name: str, aggregation: str, dtype: torch.dtype) -> None:
    batch, logp = random_batch()
    logp = logp.to(dtype)
    batch = batch.replace(logp_behavior=logp, logp_proximal=logp)
    a = torch.randn(logp.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    plain = gradient(get("reinforce", aggregation=aggregation), batch, logp, a)[1]
    assert torch.equal(gradient(get(name, aggregation=aggregation), batch, logp, a)[1], plain)
    assert bool((plain[batch.mask] != 0).all())


@pytest.mark.parametrize("name", ALL)
def test_permuted_rows_and_relabelled_groups_change_nothing(name: str) -> None:
    batch, logp = random_batch()
    loss, grad = gradient(get(name), batch, logp)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = batch.select(order).replace(group=7 - 3 * batch.group[order])
    again, moved_grad = gradient(get(name), moved, logp[order])
    assert float(again.total) == pytest.approx(float(loss.total), abs=1e-12)
    assert torch.allclose(moved_grad, grad[order], atol=1e-14, rtol=0)


@pytest.mark.parametrize("fill", [math.nan, math.inf, 99.0])
@pytest.mark.parametrize("name", ALL)
def test_masked_places_may_hold_anything(name: str, fill: float) -> None:
    batch, logp = random_batch()
    rewards = torch.where(batch.mask, batch.rewards, 0.0)
    batch = batch.replace(rewards=rewards)
    loss, grad = gradient(get(name), batch, logp)
    off = ~batch.mask
    dirty = {
        field: torch.where(off, fill, getattr(batch, field))
        for field in ("logp_behavior", "logp_proximal", "logp_old", "values")
    }
    again, again_grad = gradient(get(name), batch.replace(**dirty), torch.where(off, fill, logp))
    assert torch.equal(again.total, loss.total)
    assert torch.equal(again_grad, grad)
    assert again.metrics.report() == loss.metrics.report()


@pytest.mark.parametrize("name", ALL)
def test_extra_columns_full_of_nan_change_nothing(name: str) -> None:
    batch, logp = random_batch()
    loss, grad = gradient(get(name), batch, logp)

    def widen(x: Tensor) -> Tensor:
        return torch.cat([x, torch.full((x.shape[0], 2), math.nan, dtype=x.dtype)], 1)

    wide = TokenBatch(
        mask=torch.cat([batch.mask, torch.zeros(batch.rows, 2, dtype=torch.bool)], 1), group=batch.group,
        **{f: widen(getattr(batch, f)) for f in ("logp_behavior", "logp_proximal", "values", "rewards")},
    )  # fmt: skip
    again, wide_grad = gradient(get(name), wide, widen(logp))
    assert float(again.total) == pytest.approx(float(loss.total), abs=1e-15)
    assert torch.allclose(wide_grad[:, :-2], grad, atol=1e-15, rtol=0)
    assert bool((wide_grad[:, -2:] == 0).all())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "const"])
def test_micro_batches_add_up_to_the_batch(name: str, aggregation: str) -> None:
    batch, logp = random_batch()
    options: dict[str, Any] = {"aggregation": aggregation, "max_length": 9 if aggregation == "const" else None}
    objective = get(name, **options)
    a = objective.advantages(batch)
    values = torch.randn(logp.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    whole = objective(batch, logp, values, a)
    whole_batch = batch.replace(totals=batch.step_totals())
    for parts in ([[0, 1], [2, 3, 4, 5]], [[5], [0], [4, 1], [3, 2]]):
        losses = []
        for part in parts:
            rows = torch.tensor(part)
            losses.append(objective(whole_batch.select(rows), logp[rows], values[rows], a[rows]))
        assert sum(float(x.total) for x in losses) == pytest.approx(float(whole.total), abs=1e-12)
        metrics = losses[0].metrics
        for more in losses[1:]:
            metrics = metrics + more.metrics
        assert metrics.report() == pytest.approx(whole.metrics.report(), abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_huge_log_ratios_do_not_overflow(name: str, level: str, dtype: torch.dtype, sign: float) -> None:
    options = {"level": level} if name in ("tis", "mis") else {}
    logp = torch.full((2, 3), -1.0, dtype=dtype)
    far = logp + sign * torch.tensor([[500.0, -500.0, 500.0], [0.0, 500.0, 0.0]], dtype=dtype)
    batch = TokenBatch(mask=torch.ones(2, 3, dtype=torch.bool), logp_behavior=far, logp_proximal=far - sign * 500)
    a = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]], dtype=dtype)
    loss, grad = gradient(get(name, **options), batch, logp, a)
    assert bool(loss.total.isfinite())
    assert bool(grad.isfinite().all())
    assert all(math.isfinite(v) for v in loss.metrics.report().values())


@pytest.mark.parametrize("name", ["grpo", "ppo", "decoupled-ppo"])
def test_autograd_agrees_with_finite_differences(name: str) -> None:
    batch, logp = random_batch()
    objective = get(name, dual_clip=2.5)
    a = torch.randn(logp.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    _, grad = gradient(objective, batch, logp, a)
    for i in range(logp.shape[0]):
        for t in range(logp.shape[1]):
            step = torch.zeros_like(logp)
            step[i, t] = 1e-6
            high = objective(batch, logp + step, advantages=a).total
            low = objective(batch, logp - step, advantages=a).total
            assert float((high - low) / 2e-6) == pytest.approx(float(grad[i, t]), abs=1e-8)


@pytest.mark.parametrize("name", ["tis", "mis"])
def test_weights_are_detached(name: str) -> None:
    """Score form: the gradient is -w A / N with w held, not the derivative of w A logp."""
    batch, logp = random_batch()
    a = torch.ones_like(logp)
    loss, grad = gradient(get(name, numerator="current"), batch, logp, a)
    r = torch.where(batch.mask, (logp - batch.logp_behavior).exp(), 0.0)
    w = r.clamp(max=2.0) if name == "tis" else torch.where((r >= 0.5) & (r <= 2), r, 0.0)
    assert torch.allclose(grad, -w / batch.mask.sum(), atol=1e-14, rtol=0)
    assert float(loss.total) == pytest.approx(float((grad * logp).sum()), abs=1e-12)


@pytest.mark.parametrize("name", ["tis", "decoupled-ppo", "grpo"])
def test_importance_sampling_is_unbiased_by_enumeration(name: str) -> None:
    """E_mu[w A s] = E_pi[A s] over the whole vocabulary, without truncation."""
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(5, generator=g, dtype=torch.float64, requires_grad=True)
    logmu = torch.log_softmax(torch.randn(5, generator=g, dtype=torch.float64), 0)
    a = torch.randn(5, generator=g, dtype=torch.float64)
    wide = {"clip_low": 1.0, "clip_high": 1e9}
    options: dict[str, Any] = {"tis": {"cap": 1e9}, "grpo": wide, "decoupled-ppo": {**wide, "cap": 1e9}}[name]
    objective = get(name, aggregation="token-mean", **options)
    total = torch.zeros((), dtype=torch.float64)
    for v in range(5):
        logp = torch.log_softmax(logits, 0)[v].view(1, 1)
        batch = TokenBatch(
            mask=torch.ones(1, 1, dtype=torch.bool),
            logp_behavior=logmu[v].view(1, 1),
            logp_proximal=logp.detach(),
        )
        total = total + logmu[v].exp() * objective(batch, logp, None, a[v : v + 1]).total
    (grad,) = torch.autograd.grad(total, logits)
    p = torch.softmax(logits, 0).detach()
    assert torch.allclose(grad, -(p * (a - (p * a).sum())), atol=1e-12, rtol=0)


def test_geometric_gate_does_not_depend_on_the_length() -> None:
    """E3: a constant gap of 0.01 per token keeps the same fraction at 10 and at 10,000 tokens."""
    for n in (10, 10_000):
        logp = torch.full((1, n), -1.0, dtype=torch.float64)
        batch = TokenBatch(mask=torch.ones(1, n, dtype=torch.bool), logp_behavior=logp - 0.01)
        a = torch.ones_like(logp)
        assert get("mis", level="geometric")(batch, logp, advantages=a).metrics["gate/kept_tokens"] == 1.0
        product = get("mis", level="sequence")(batch, logp, advantages=a).metrics["gate/kept_tokens"]
        assert product == (1.0 if n == 10 else 0.0)


@pytest.mark.parametrize("name", ALL)
def test_no_policy_tokens_give_zero_loss_and_zero_gradient(name: str) -> None:
    logp = torch.full((2, 3), math.nan, dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.zeros(2, 3, dtype=torch.bool), logp_behavior=logp, logp_proximal=logp, values=logp,
        rewards=torch.zeros(2, 3, dtype=torch.float64), group=torch.tensor([0, 0]),
    )  # fmt: skip
    loss, grad = gradient(get(name), batch, logp)
    assert float(loss.total) == 0
    assert bool((grad == 0).all())


@pytest.mark.parametrize("name", ALL)
def test_gradient_flows_only_through_logp_and_values(name: str) -> None:
    batch, logp = random_batch()
    sources = {
        f: getattr(batch, f).clone().requires_grad_() for f in ("logp_behavior", "logp_proximal", "values", "rewards")
    }
    a = torch.ones_like(logp).requires_grad_()
    values, logp = torch.zeros_like(logp).requires_grad_(), logp.clone().requires_grad_()
    get(name)(batch.replace(**sources), logp, values, a).total.backward()
    assert logp.grad is not None
    assert values.grad is not None
    assert bool(values.grad.abs().sum() > 0)
    assert a.grad is None
    assert all(s.grad is None or bool((s.grad == 0).all()) for s in sources.values())


def test_missing_fields_and_impossible_options_are_named() -> None:
    batch, logp = random_batch()
    with pytest.raises(DataError, match="logp_proximal is missing"):
        get("decoupled-ppo")(batch.replace(logp_proximal=None), logp)
    with pytest.raises(DataError, match="group is missing"):
        get("grpo")(batch.replace(group=None), logp)
    for name, options in (
        ("grpo", {"aggregation": "const", "max_length": 0}),
        ("grpo", {"value_clip": -1.0}),
        ("grpo", {"clip_high": float("nan")}),
        ("decoupled-ppo", {"cap": 0.0}),
        ("mis", {"veto": -1.0}),
    ):
        with pytest.raises(ConfigError, match=list(options)[-1]):
            get(name, **options)
    with pytest.raises(ConfigError, match="max_length"):
        get("grpo", aggregation="const")
    with pytest.raises(ConfigError, match="dual_clip"):
        get("ppo", dual_clip=0.9)


def test_needs_and_corrects_say_what_each_method_is() -> None:
    needs = {name: set(get(name).needs) for name in ALL}
    assert needs == {
        "reinforce": set(), "grpo": set(), "ppo": {"values"}, "decoupled-ppo": {"proximal"}, "tis": set(), "mis": set(),
    }  # fmt: skip
    assert get("tis", numerator="proximal").needs == {"proximal"}
    assert get("decoupled-ppo", baseline="gae").needs == {"proximal", "values"}
    assert [name for name in ALL if not get(name).corrects] == ["reinforce"]


@pytest.mark.parametrize("name", ["tis", "mis", "icepop"])
def test_weights_are_proximal_over_behaviour_where_the_batch_has_both(name: str) -> None:
    batch = three_tokens()
    auto = gradient(get(name), batch, row(CURRENT), row(A))[1]
    assert torch.equal(auto, gradient(get(name, numerator="proximal"), batch, row(CURRENT), row(A))[1])
    alone = three_tokens(logp_proximal=None)
    auto = gradient(get(name), alone, row(CURRENT), row(A))[1]
    assert torch.equal(auto, gradient(get(name, numerator="current"), alone, row(CURRENT), row(A))[1])
    assert not get(name).needs
