"""Advantages with ratios in them, critics' targets, and KLPO, against a second implementation by plain loops; and what
the published formulas promise and no other test asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rederived import NAN, B, T, clipped, closed_rewards, compare, gae_of, grouped, ragged, spots
from torch import Tensor

from stretto import objectives
from stretto.data.batch import TokenBatch

Row = tuple[list[float], list[float], list[float]]
"""Rewards, values and ratios of one row's policy tokens."""
Estimate = Callable[[Row], tuple[list[float], ...]]
"""Advantages and what to add to the values for the targets."""


def closed(batch: TokenBatch, base: Tensor, i: int, at: list[int]) -> Row:
    w = [math.exp(float(base[i, t] - batch.logp_behavior[i, t])) for t in at]
    return closed_rewards(batch, i), [float(batch.values[i, t]) for t in at], w


def residuals(r: list[float], v: list[float], gamma: float) -> list[float]:
    return [x + gamma * y - z for x, y, z in zip(r, [*v, 0.0][1:], v, strict=True)]


def copc_row(mode: str, low: float, high: float, gamma: float, lam: float) -> Estimate:
    """(A, E)."""

    def row(x: Row) -> tuple[list[float], ...]:
        r, v, w = x
        n, delta, omega = len(r), residuals(r, v, gamma), [min(max(y, low), high) for y in w]
        a, e = [0.0] * (n + 1), [0.0] * (n + 1)
        for t in reversed(range(n)):
            if mode == "residual":
                a[t] = omega[t] * delta[t] + gamma * lam * a[t + 1]
                e[t] = a[t]
            elif mode == "continuation":
                a[t] = delta[t] + gamma * lam * e[t + 1]
                e[t] = omega[t] * delta[t] + gamma * lam * e[t + 1]
            else:
                a[t] = delta[t] + gamma * lam * (omega[t + 1] * a[t + 1] if t + 1 < n else 0.0)
                e[t] = omega[t] * a[t]
        return a[:n], e[:n]

    return row


def brace_row(k: int, rho_bar: float, c_bar: float, gamma: float, lam: float) -> Estimate:
    """(A, G - V), each target by its own sums."""

    def row(x: Row) -> tuple[list[float], ...]:
        r, v, w = x
        n, delta = len(r), residuals(r, v, gamma)
        rho, c = [min(rho_bar, y) for y in w], [lam * min(c_bar, y) for y in w]
        goal = []
        for s in range(n):
            j = min(s + k, n - 1)
            total = v[s] + sum(gamma ** (t - s) * math.prod(c[s:t]) * rho[t] * delta[t] for t in range(s, j))
            tail = sum(gamma ** (t - s) * r[t] for t in range(j, n))
            goal.append(total + math.prod(c[s:j]) * (tail - gamma ** (j - s) * v[j]))
        a = [r[s] + gamma * ([*goal, 0.0][s + 1]) - v[s] for s in range(n)]
        return a, [g - y for g, y in zip(goal, v, strict=True)]

    return row


def vtrace_row(rho_bar: float, c_bar: float, gamma: float, lam: float) -> Estimate:
    """(A, v - V)."""

    def row(x: Row) -> tuple[list[float], ...]:
        r, v, w = x
        n, delta = len(r), residuals(r, v, gamma)
        goal = [
            v[s] + sum(
                gamma ** (t - s) * math.prod(lam * min(c_bar, y) for y in w[s:t]) * min(rho_bar, w[t]) * delta[t]
                for t in range(s, n)
            ) for s in range(n)
        ]  # fmt: skip
        return [r[s] + gamma * ([*goal, 0.0][s + 1]) - v[s] for s in range(n)], [
            g - y for g, y in zip(goal, v, strict=True)
        ]

    return row


def spread(batch: TokenBatch, base: Tensor, row: Estimate) -> tuple[Tensor, Tensor]:
    out = torch.zeros(2, *batch.mask.shape, dtype=torch.float64)
    for i, at in enumerate(spots(batch)):
        for which, x in enumerate(row(closed(batch, base, i, at))):
            out[which, i, at] = torch.tensor(x, dtype=torch.float64)
    return out[0], out[1]


def whiten(batch: TokenBatch, a: Tensor) -> Tensor:
    x = a[batch.mask]
    return (a - x.mean()) / (x.var(correction=0) + 1e-8).sqrt()


G = {"gamma": 0.9, "gae_lambda": 0.8}
CORRECTED: list[tuple[str, dict[str, Any], Estimate, Any]] = [
    *[("copc", {"residual_mode": m, "lam_return": 0.8, **G}, copc_row(m, 0.5, 2.0, 0.9, 0.8), None)
      for m in ("residual", "continuation", "trace")],
    *[("copc", {"residual_mode": m, "gae_lambda": 0.7, "clip": (0.8, 1.25)}, copc_row(m, 0.8, 1.25, 1.0, 0.7),
       copc_row(m, 0.8, 1.25, 1.0, 1.0)) for m in ("residual", "continuation", "trace")],
    ("brace", {"whitening": False}, brace_row(100, 1.2, 1.1, 1.0, 1.0), None),
    *[("brace", {"k": k, **G}, brace_row(k, 1.2, 1.1, 0.9, 0.8), None) for k in (0, 1, 2, 3)],
    ("vtrace", {}, vtrace_row(1.0, 1.0, 1.0, 1.0), None),
    ("vtrace", {"rho_bar": 1.3, "c_bar": 1.1, **G}, vtrace_row(1.3, 1.1, 0.9, 0.8), None),
]  # fmt: skip


@pytest.mark.parametrize("proximal", [True, False])
@pytest.mark.parametrize("case", range(len(CORRECTED)), ids=[f"{n}-{k}" for k, (n, *_) in enumerate(CORRECTED)])
def test_corrected_advantages_targets_and_both_losses(case: int, proximal: bool) -> None:
    name, options, row, returns = CORRECTED[case]
    batch, logp, _ = ragged(200 + case)
    if not proximal:
        batch = batch.replace(logp_proximal=None)
    base = batch.logp_proximal if proximal and name == "copc" else logp
    objective = objectives.get(name, **options)
    a, e = spread(batch, base, row)
    goal = torch.where(batch.mask, batch.values, 0.0) + (e if returns is None else spread(batch, base, returns)[1])
    if name == "brace" and objective.std:
        a = whiten(batch, a)
    m = batch.mask
    torch.testing.assert_close(objective.advantages(batch, logp)[m], a[m], atol=1e-11, rtol=0)
    torch.testing.assert_close(objective.targets(batch, logp)[m], goal[m], atol=1e-11, rtol=0)

    g = torch.Generator().manual_seed(case)
    values = torch.where(m, torch.randn(B, T, generator=g, dtype=torch.float64), NAN).requires_grad_()
    logp = logp.requires_grad_()
    policy, critic = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for i, t in m.nonzero().tolist():
        r = (logp[i, t] - batch.logp_behavior[i, t]).exp()
        if name == "brace":
            policy = policy - clipped(r, a[i, t], 0.2, 0.28)
        elif name == "copc":
            policy = policy - (r.detach() if 0.5 <= r <= 2 else 0.0) * a[i, t] * logp[i, t]
        else:
            policy = policy - r.detach().clamp(max=objective.rho_bar) * a[i, t] * logp[i, t]
        critic = critic + squared(values[i, t], goal[i, t], batch.values[i, t], 0.5 if name == "brace" else None)
    compare(objective(batch, logp, values).total, (policy + critic) / m.sum(), logp, (values,))


def squared(v: Tensor, goal: Tensor, recorded: Tensor, width: float | None) -> Tensor:
    error = (v - goal) ** 2
    if width is not None:
        error = torch.maximum(error, (v.clamp(recorded - width, recorded + width) - goal) ** 2)
    return 0.5 * error


@pytest.mark.parametrize(
    ("name", "options", "lam", "width"),
    [("ppo", {}, 0.95, None), ("ppo", {"critic_gae_lambda": 1.0, "e_v": 0.3}, 1.0, 0.3), ("sao", {}, 1.0, None),
     ("dual-clip-ppo", {"gamma": 0.9}, 0.95, None),
     ("decoupled-ppo", {"baseline": "gae", "gae_lambda": 0.5}, 0.5, None)],
)  # fmt: skip
def test_critics(name: str, options: dict[str, Any], lam: float, width: float | None) -> None:
    batch, logp, _ = ragged(300)
    goal = batch.values + gae_of(batch, options.get("gamma", 1.0), lambda n: lam)
    values = torch.where(batch.mask, batch.values * 1.7 - 0.2, NAN).requires_grad_()
    critic = sum(
        squared(values[i, t], goal[i, t], batch.values[i, t], width) for i, t in batch.mask.nonzero().tolist()
    ) / batch.mask.sum()  # fmt: skip
    loss = objectives.get(name, **options)(batch, logp, values)
    compare(loss.critic, critic, values)


# --- KLPO ------------------------------------------------------------------------------------------------------------


def klpo(
    batch: TokenBatch, logp: Tensor, p: Tensor, q: Tensor, a: Tensor, route: str, kind: str, beta: float
) -> Tensor:
    """``p``, ``q`` [B,T,J]; ``a`` [B,T] what stands for R. Floors of 0.2, so that some bind."""
    floor, total = torch.tensor(0.2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for i, at in enumerate(spots(batch)):
        if not at:
            continue
        scores, spent, columns = [], [], []
        for t in at:
            lp, behind = logp[i, t], batch.logp_behavior[i, t]
            ell, P, Q = lp - behind, p[i, t], q[i, t]
            mu, pi = behind.exp(), lp.detach().exp()
            odds = torch.log((1 - mu) / (1 - pi))
            qt, pt = torch.maximum(1 - Q.exp().sum(), floor), torch.maximum(1 - P.exp().sum(), floor)
            kl = {
                "mc": (Q - P).mean(), "full": (Q.exp() * (Q - P)).sum(),
                "topk": (Q.exp() * (Q - P)).sum() + qt * (qt / pt).log(), "binary": mu * (-ell) + (1 - mu) * odds,
            }[kind]  # fmt: skip
            if kind == "binary":
                score = odds.exp() * lp
            elif route == "sequence":
                score = lp + kl
            elif kind == "topk":
                score = lp - ((Q.exp() - (qt / pt * P.exp())).detach() * P).sum()
            else:
                score = lp - (P.mean() if kind == "mc" else (Q.exp() * P).sum())
            if route == "token":
                total = total - (a[i, t] - beta * ell).detach() * score
            scores.append(score)
            spent.append((ell + kl).detach())
            columns.append((ell.detach() + Q - P.detach(), lp - P))
        if route == "sequence" and kind == "mc":
            d = a[i, at[0]] - beta * sum(x for x, _ in columns)
            for j in range(len(d)):
                others = [float(d[other]) for other in range(len(d)) if other != j]
                total = total - sum(others) / len(others) * sum(y[j] for _, y in columns) / len(d)
        elif route == "sequence":
            total = total - (a[i, at[0]] - beta * sum(spent)) * sum(scores)
    return total / batch.rows


@pytest.mark.parametrize("ready", ["own", "row", "token"])
@pytest.mark.parametrize("kind", ["mc", "full", "topk", "binary"])
@pytest.mark.parametrize("route", ["token", "sequence"])
def test_klpo(route: str, kind: str, ready: str) -> None:
    if ready == "token" and route == "sequence":
        pytest.skip("one number a row")
    batch, logp, extra = ragged(400)
    q = {"mc": batch.sampled_logp_behavior, "topk": batch.top_logp_behavior, "full": extra["full_behavior"]}
    p = {"mc": extra["mc"], "topk": extra["head"], "full": extra["full"]}.get(kind, extra["head"])
    if kind == "full":
        batch = batch.replace(top_logp_behavior=q["full"], top_tokens=None)
    logp, p = logp.requires_grad_(), p.requires_grad_()
    g = torch.Generator().manual_seed(1)
    given = torch.randn((B,) if ready == "row" else (B, T), generator=g, dtype=torch.float64)
    a = given[:, None].expand(B, T) if ready == "row" else given
    if ready == "own":
        a = torch.tensor([sum(closed_rewards(batch, i)) for i in range(B)], dtype=torch.float64)[:, None].expand(B, T)
    objective = objectives.get("klpo", route=route, estimator=kind, beta=0.3, tail_floor=0.2)
    current = {
        "mc": {"sampled_logp_current": p},
        "full": {"top_logp_current": p},
        "topk": {"top_logp_current": p},
        "binary": {},
    }[kind]
    loss = objective(batch.replace(**current), logp, None, None if ready == "own" else given)
    theirs = klpo(batch, logp, p, q.get(kind, p.detach()), a, route, kind, 0.3)
    if kind == "binary":
        compare(loss.total, theirs, logp)
    else:
        compare(loss.total, theirs, logp, (p,))


# --- what no other test asks -----------------------------------------------------------------------------------------


def test_a_capped_ratio_and_a_capped_weight_are_different_methods() -> None:
    """Above C, -min(r, C) A has no gradient, -sg(min(r, C)) A logp has -C A; below they agree."""
    logp = torch.full((1, 4), -1.0, dtype=torch.float64, requires_grad=True)
    r, a = torch.tensor([[[3.0, 1.5, 3.0, 0.2]], [[1.0, 2.0, 0.5, -1.0]]], dtype=torch.float64)
    batch = TokenBatch(mask=torch.ones(1, 4, dtype=torch.bool), logp_behavior=logp.detach() - r.log())
    for name, options, multiplier in (
        ("ppo", {"e_l": 1.0, "e_h": 1.0}, [0, 1.5, 0, 0.2]), ("tis", {"C": 2.0}, [2, 1.5, 2, 0.2])
    ):  # fmt: skip
        loss = objectives.get(name, **options)(batch, logp, advantages=a).total
        (grad,) = torch.autograd.grad(loss, logp)
        assert (-4 * grad / a)[0].tolist() == pytest.approx(multiplier, abs=1e-12)


def reward_coefficients(name: str, w: Tensor, **options: Any) -> list[float]:
    """d target / d terminal reward at each token of one row with ratios ``w``; the critic is 0, so nothing cancels."""
    n = w.numel()
    logp = torch.full((1, n), -1.0, dtype=torch.float64)
    goals = []
    for reward in (0.0, 1.0):
        rewards = torch.zeros(1, n, dtype=torch.float64)
        rewards[0, -1] = reward
        batch = TokenBatch(
            mask=torch.ones(1, n, dtype=torch.bool),
            rewards=rewards,
            values=0 * logp,
            logp_behavior=logp - w.log()[None],
        )
        goals.append(objectives.get(name, **options).targets(batch, logp)[0])
    return (goals[1] - goals[0]).tolist()


def test_braces_reward_has_a_floor_at_every_position_and_v_traces_fades() -> None:
    """BRACE: at least gamma^{T-s} (lam min(c_bar, min w))^{j-s}. V-trace over the whole horizon: the product of all c,
    whose logarithm drifts by E log(lam min(c_bar, w)) <= 0 a token."""
    n, k, gamma, lam = 400, 5, 0.999, 0.98
    w = torch.randn(n, generator=torch.Generator().manual_seed(2), dtype=torch.float64).mul(0.5).exp()
    anchored = reward_coefficients("brace", w, k=k, gamma=gamma, gae_lambda=lam)
    least = lam * min(1.1, float(w.min()))
    for s, x in enumerate(anchored):
        assert x >= gamma ** (n - 1 - s) * least ** (min(s + k, n - 1) - s) * (1 - 1e-9)
    fading = reward_coefficients("vtrace", w, gamma=gamma, gae_lambda=lam)
    logs = (lam * w.clamp(max=1.0)).log()
    assert float(logs.mean()) < 0
    for s in (100, 250, 398):
        last = math.log(min(1.0, float(w[-1]))) + (n - 1 - s) * math.log(gamma)
        assert math.log(fading[s]) == pytest.approx(float(logs[s:-1].sum()) + last, rel=1e-6)
    assert fading[0] < 1e-12 < 1e-3 < anchored[0]


@pytest.mark.parametrize("std", [True, False])
def test_group_advantages_sum_to_zero_and_the_deviation_alone_tells_them_apart(std: bool) -> None:
    batch, _, _ = ragged(500)
    a = objectives.get("grpo", std=std).advantages(batch)
    assert bool(a[~batch.mask].eq(0).all())
    expected = grouped(batch, std)
    torch.testing.assert_close(a[batch.mask], expected[batch.mask], atol=1e-12, rtol=0)
    for group in batch.group.unique():
        assert float(expected[batch.group == group, 0].sum()) == pytest.approx(0, abs=1e-12)
