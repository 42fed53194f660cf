"""KLPO and the rules that all losses obey: masks, order, micro-batches, extremes, where gradient goes, options."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get

BETA = 0.3
KINDS = [(route, estimator) for route in ("token", "sequence") for estimator in ("mc", "full", "topk", "binary")]
V = 6
ALTERNATIVES = {"mc": "sampled", "full": "top", "topk": "top", "binary": None}


def klpo(route: str, estimator: str, **options: Any) -> Any:
    return get("klpo", route=route, estimator=estimator, **{"beta": BETA, **options})


def make(estimator: str, seed: int = 0, rows: int = 5, width: int = 4, shift: float = 0.5) -> tuple[TokenBatch, Any]:
    """A batch and current log-probabilities (logp, sampled_logp_current, top_logp_current), of true distributions over
    6 tokens."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[:, -1] = True
    mask[1, :] = False
    mask[2, 1:] = False
    mask[2, 0] = True
    logits = torch.randn(rows, width, V, generator=g, dtype=torch.float64)
    q = torch.log_softmax(logits, 2)
    p = torch.log_softmax(logits + shift * torch.randn(rows, width, V, generator=g, dtype=torch.float64), 2)
    sampled = torch.randint(0, V, (rows, width, 1), generator=g)
    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, -1] = torch.randn(rows, generator=g, dtype=torch.float64)
    mc, top = torch.randint(0, V, (rows, width, 3), generator=g), q.topk(V if estimator == "full" else 2, 2).indices
    batch = TokenBatch(
        mask=mask, logp_behavior=q.gather(2, sampled)[..., 0], rewards=rewards, group=torch.arange(rows) // 2,
        trajectory=torch.arange(rows), sampled_logp_behavior=q.gather(2, mc), top_logp_behavior=q.gather(2, top),
    )  # fmt: skip
    now = {
        "logp": p.gather(2, sampled)[..., 0],
        "sampled_logp_current": p.gather(2, mc),
        "top_logp_current": p.gather(2, top),
    }
    return batch, now


def run(objective: Any, batch: TokenBatch, now: dict[str, Tensor], advantages: Tensor | None = None) -> tuple[Any, Any]:
    """Loss, and the gradient by input."""
    leaves = {name: x.clone().requires_grad_() for name, x in now.items()}
    logp, *_ = leaves.values()
    current = {name: x for name, x in leaves.items() if name != "logp"}
    loss = objective(batch.replace(**current), logp, None, advantages)
    grads = torch.autograd.grad(loss.total, list(leaves.values()), allow_unused=True)
    return loss, dict(zip(leaves, grads, strict=True))


def same(a: dict[str, Any], b: dict[str, Any], atol: float = 1e-14) -> None:
    for name, x in a.items():
        assert (x is None) == (b[name] is None)
        assert x is None or torch.allclose(x, b[name], atol=atol, rtol=0), name


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_gradient_goes_through_the_scores_alone(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    fields = ("logp_behavior", "sampled_logp_behavior", "top_logp_behavior", "rewards")
    live = {name: getattr(batch, name).clone().requires_grad_() for name in fields}
    a = torch.ones(batch.rows, dtype=torch.float64).requires_grad_()
    for advantages in (None, a):
        _, grads = run(klpo(route, estimator), batch.replace(**live), now, advantages)
        used = f"{ALTERNATIVES[estimator]}_logp_current"
        assert {name for name, g in grads.items() if g is not None} == {"logp"} | ({used} & set(now))
        assert all(x.grad is None for x in [*live.values(), a])


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_the_gradient_is_the_residual_times_the_score(route: str, estimator: str) -> None:
    """Token route: closed form, h frozen. Sequence route: the derivative of ``klpo/objective``, by finite
    differences."""
    batch, now = make(estimator)
    objective = klpo(route, estimator)
    _, grads = run(objective, batch, now)
    if route == "token":
        m, q, p = batch.mask, batch.top_logp_behavior.exp(), now["top_logp_current"].exp()
        r = batch.rewards.sum(1, keepdim=True)
        h = torch.where(m, r - BETA * (now["logp"] - batch.logp_behavior), 0.0) / batch.rows
        omega = (1 - batch.logp_behavior.exp()) / (1 - now["logp"].exp())
        rho = (1 - q.sum(2, keepdim=True)) / (1 - p.sum(2, keepdim=True))
        same({"logp": grads["logp"]}, {"logp": -h * (omega if estimator == "binary" else 1)}, 1e-12)
        expected = {"mc": torch.ones_like(batch.sampled_logp_behavior) / 3, "full": q, "topk": q - rho * p}
        if estimator != "binary":
            name = f"{ALTERNATIVES[estimator]}_logp_current"
            same({name: grads[name]}, {name: h[..., None] * expected[estimator]}, 1e-12)
        return
    trained = int(batch.mask.any(1).sum()) / batch.rows  # rows without policy tokens are in the loss's mean alone

    def value(at: dict[str, Tensor]) -> float:
        loss = objective(
            batch.replace(sampled_logp_current=at["sampled_logp_current"], top_logp_current=at["top_logp_current"]),
            at["logp"],
        )
        return float(loss.metrics["klpo/objective"]) * trained

    for name, x in now.items():
        if grads[name] is None:
            continue
        for i in range(x.numel()):
            step = torch.zeros(x.numel(), dtype=x.dtype).index_fill(0, torch.tensor(i), 1e-6).view_as(x)
            slope = (value({**now, name: x + step}) - value({**now, name: x - step})) / 2e-6
            assert slope == pytest.approx(float(grads[name].flatten()[i]), abs=2e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_at_the_sampler_it_is_reinforce(route: str, estimator: str, dtype: torch.dtype) -> None:
    """Through a softmax: per sample for full, top-K and binary, bit for bit in what reaches ``logp``; draws add noise
    of mean zero."""
    batch, _ = make(estimator)
    g = torch.Generator().manual_seed(4)
    logits = torch.randn(5, 4, V, generator=g, dtype=dtype).requires_grad_()
    p = torch.log_softmax(logits, 2)
    sampled = torch.randint(0, V, (5, 4, 1), generator=g)
    ids = {"sampled_logp_current": torch.randint(0, V, (5, 4, 3), generator=g),
           "top_logp_current": p.topk(V if estimator == "full" else 2, 2).indices}  # fmt: skip
    logp = p.gather(2, sampled)[..., 0]
    others = {name: p.gather(2, at) for name, at in ids.items()}
    batch = batch.replace(
        rewards=batch.rewards.to(dtype), logp_behavior=logp.detach(),
        sampled_logp_behavior=others["sampled_logp_current"].detach(),
        top_logp_behavior=others["top_logp_current"].detach(),
    )  # fmt: skip
    loss = klpo(route, estimator, beta=7.0)(batch.replace(**others), logp)
    plain = get("reinforce", baseline="none", std=False, aggregation="seq-mean-token-sum")
    expected = plain(batch, logp, None, klpo(route, estimator).advantages(batch)).total
    (own,) = torch.autograd.grad(loss.total, logp, retain_graph=True)
    (bare,) = torch.autograd.grad(expected, logp, retain_graph=True)
    if (route, estimator) == ("sequence", "mc"):  # a mean over columns
        assert torch.allclose(own, bare, atol=0, rtol=1e-6 if dtype == torch.float32 else 1e-14)
    else:
        assert torch.equal(own, bare)
    if estimator != "mc":
        ours, theirs = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (loss.total, expected))
        assert torch.allclose(ours, theirs, atol=1e-15 if dtype == torch.float64 else 1e-6, rtol=0)
    assert loss.metrics["klpo/kl"] == pytest.approx(0, abs=1e-6 if dtype == torch.float32 else 1e-15)


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_permuted_rows_and_new_labels_change_nothing(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    objective = klpo(route, estimator, baseline="group")
    loss, grads = run(objective, batch, now)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = batch.select(order).replace(group=7 - 3 * batch.group[order], trajectory=90 - batch.trajectory[order])
    again, moved_grads = run(objective, moved, {name: x[order] for name, x in now.items()})
    assert float(again.total) == pytest.approx(float(loss.total), abs=1e-14)
    same(moved_grads, {name: None if g is None else g[order] for name, g in grads.items()})


@pytest.mark.parametrize("fill", [math.nan, math.inf, 99.0])
@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_masked_places_and_extra_columns_may_hold_anything(route: str, estimator: str, fill: float) -> None:
    batch, now = make(estimator)
    batch = batch.replace(rewards=torch.where(batch.mask, batch.rewards, 0.0))
    loss, grads = run(klpo(route, estimator), batch, now)

    def dirty(x: Tensor) -> Tensor:
        off = ~batch.mask if x.ndim == 2 else ~batch.mask[..., None]
        x = torch.where(off, fill, x)
        return torch.cat([x, torch.full_like(x[:, :2], fill)], 1)

    fields = ("logp_behavior", "sampled_logp_behavior", "top_logp_behavior")
    wide = TokenBatch(
        mask=torch.nn.functional.pad(batch.mask, (0, 2)), rewards=torch.nn.functional.pad(batch.rewards, (0, 2)),
        **{name: dirty(getattr(batch, name)) for name in fields},
    )  # fmt: skip
    again, wide_grads = run(klpo(route, estimator), wide, {name: dirty(x) for name, x in now.items()})
    assert float(again.total) == pytest.approx(float(loss.total), abs=1e-15)
    assert again.metrics.report() == loss.metrics.report()
    same({name: None if g is None else g[:, :4] for name, g in wide_grads.items()}, grads, 0.0)
    assert all(g is None or bool((g[:, 4:] == 0).all()) for g in wide_grads.values())


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_micro_batches_add_up(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    objective = klpo(route, estimator, baseline="leave-one-out")
    a = objective.advantages(batch)
    whole, _ = run(objective, batch, now, a)
    totals = batch.replace(totals=batch.step_totals())
    for parts in ([[0, 1], [2, 3, 4]], [[4], [0], [3, 1], [2]]):
        losses = [
            run(objective, totals.select(torch.tensor(rows)), {n: x[rows] for n, x in now.items()}, a[rows])[0]
            for rows in parts
        ]
        assert sum(float(x.total) for x in losses) == pytest.approx(float(whole.total), abs=1e-14)
        metrics = losses[0].metrics
        for more in losses[1:]:
            metrics = metrics + more.metrics
        assert metrics.report() == pytest.approx(whole.metrics.report(), abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_huge_log_ratios_stay_finite(route: str, estimator: str, dtype: torch.dtype, sign: float) -> None:
    near = torch.tensor([[-1.0, -2.0, -0.5]], dtype=dtype)
    far = near - 500
    logp, behavior = (far, near) if sign < 0 else (near, far)
    rest = torch.log1p(-near.exp()), torch.zeros_like(far)  # two tokens: what the sampled one leaves
    other, other_behavior = (rest[1], rest[0]) if sign < 0 else rest
    now = {
        "logp": logp,
        "sampled_logp_current": torch.stack([logp, other], 2),
        "top_logp_current": torch.stack([logp, other], 2),
    }
    q = torch.stack([behavior, other_behavior], 2)
    batch = TokenBatch(mask=torch.ones(1, 3, dtype=torch.bool), logp_behavior=behavior, rewards=torch.ones_like(near),
                       sampled_logp_behavior=q, top_logp_behavior=q)  # fmt: skip
    if estimator == "topk":
        now["top_logp_current"], batch = now["top_logp_current"][..., :1], batch.replace(top_logp_behavior=q[..., :1])
    loss, grads = run(klpo(route, estimator), batch, now)
    assert bool(loss.total.isfinite())
    assert all(g is None or bool(g.isfinite().all()) for g in grads.values())
    assert all(math.isfinite(v) for v in loss.metrics.report().values())
    if route == "token" and estimator != "binary":
        assert grads["logp"][0].tolist() == pytest.approx([-(3 - BETA * sign * 500)] * 3, rel=1e-6)


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_empty_masks_give_zero(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    loss, grads = run(klpo(route, estimator), batch.replace(mask=torch.zeros_like(batch.mask)), now)
    assert float(loss.total) == 0
    assert all(g is None or bool((g == 0).all()) for g in grads.values())
    empty = batch.select(torch.tensor([], dtype=torch.long))
    loss, _ = run(klpo(route, estimator), empty, {name: x[:0] for name, x in now.items()})
    assert float(loss.total) == 0
    none = batch.select(torch.tensor([0, 1]), 0)
    loss, _ = run(klpo(route, estimator), none, {name: x[:2, :0] for name, x in now.items()})
    assert float(loss.total) == 0


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_a_row_without_a_reward_trains_nothing(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    rewards = batch.rewards.clone()
    rewards[0, -1] = math.nan
    _, grads = run(klpo(route, estimator), batch.replace(rewards=rewards), now)
    _, before = run(klpo(route, estimator), batch, now)
    for name, g in grads.items():
        if g is not None:
            assert bool((g[0] == 0).all())
            assert torch.equal(g[1:], before[name][1:])


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_ready_advantages_take_the_place_of_the_return(route: str, estimator: str) -> None:
    batch, now = make(estimator)
    returns = batch.rewards.sum(1)
    own, grads = run(klpo(route, estimator), batch, now)
    for ready in (returns, returns[:, None].expand_as(batch.rewards).clone()):
        same(run(klpo(route, estimator), batch.replace(rewards=None), now, ready)[1], grads, 0.0)
    assert "klpo/objective" in own.metrics
    uneven = torch.arange(20, dtype=torch.float64).view(5, 4)
    if route == "sequence":
        with pytest.raises(DataError, match="equal along each row"):
            run(klpo(route, estimator), batch, now, uneven)
    else:
        loss, grads = run(klpo(route, estimator), batch, now, uneven)
        assert "klpo/objective" not in loss.metrics
        if estimator != "binary":
            h = uneven - BETA * (now["logp"] - batch.logp_behavior)
            assert torch.allclose(grads["logp"], torch.where(batch.mask, -h / 5, 0.0), atol=1e-14, rtol=0)


def test_one_draw_has_no_square_and_no_mean_is_reported() -> None:
    batch, now = make("mc")
    one = batch.replace(sampled_logp_behavior=batch.sampled_logp_behavior[..., :1])
    loss, _ = run(klpo("token", "mc", M=1), one, {**now, "sampled_logp_current": now["sampled_logp_current"][..., :1]})
    assert "klpo/objective" not in loss.metrics
    assert "klpo/kl" in loss.metrics


def test_rows_that_are_no_whole_trajectory_or_do_not_fit_are_errors() -> None:
    batch, now = make("mc")
    with pytest.raises(DataError, match="5 rows of 4 trajectories"):
        run(klpo("token", "mc"), batch.replace(trajectory=torch.tensor([0, 1, 2, 3, 3])), now)
    with pytest.raises(DataError, match=r"sampled_logp_current is \[5, 4, 2\], but sampled_logp_behavior \[5, 4, 3\]"):
        run(klpo("token", "mc"), batch, {**now, "sampled_logp_current": now["sampled_logp_current"][..., :2]})


def test_what_it_needs_follows_the_estimator() -> None:
    assert klpo("token", "mc", M=5).needs == {"sampled"}
    assert klpo("token", "mc", M=5).sampled == 5
    assert klpo("token", "topk", K=7).needs == klpo("token", "full").needs == {"top"}
    assert klpo("token", "topk", K=7).top == 7
    assert klpo("token", "full").top is None
    assert klpo("sequence", "binary").needs == set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta"),
        ({"M": 0}, "at least 1"),
        ({"K": 0}, "at least 1"),
        ({"tail_floor": 0.0}, "tail_floor"),
        ({"baseline": "gae"}, "critic"),
        ({"gamma": 0.9}, "gamma"),
        ({"std": True}, "std"),
        ({"route": "sequence", "M": 1}, "M >= 2"),
        ({"route": "sequence", "aggregation": "token-mean"}, "mean over rows"),
        ({"estimator": "top"}, "estimator"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get("klpo", **options)
