"""Each method against a second implementation: plain loops over policy tokens, written from the published formulas
and sharing nothing with the package. Ragged rows, holes, NaN wherever nobody may look, several rows a trajectory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rederived import (
    NAN,
    B,
    Ref,
    T,
    clipped,
    compare,
    gae_of,
    grouped,
    lb,
    lo,
    per_token,
    ragged,
    spots,
    together,
)  # fmt: skip
from torch import Tensor

from stretto import objectives
from stretto.data.batch import TokenBatch


def plain(b: Any, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    return -a * lp


def ppo(low: float, high: float, c: float | None = None) -> Callable[..., Tensor]:
    return lambda b, lp, i, t, a: -clipped((lp - lb(b, i, t)).exp(), a, low, high, c)


def weighted(weight: Callable[[Tensor, Tensor], Tensor], numerator: str = "current") -> Callable[..., Tensor]:
    def term(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
        top = lp.detach() if numerator == "current" else lo(b, i, t)
        return -weight((top - lb(b, i, t)).exp(), a) * a * lp

    return term


def decoupled(
    g: Callable[[Tensor], Tensor], e: float = 0.2, c: float | None = None, anchor: str = "logp_proximal",
    scale: Callable[[TokenBatch, int], float] = lambda b, i: 1.0,
) -> Callable[..., Tensor]:  # fmt: skip
    def term(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
        ref = getattr(b, anchor)[i, t]
        return -g((ref - lb(b, i, t)).exp()) * clipped((lp - ref).exp(), a * scale(b, i), e, e, c)

    return term


def drop(cap: float) -> Callable[[Tensor], Tensor]:
    return lambda w: w if w <= cap else 0 * w


def rows_of(batch: TokenBatch, i: int) -> int:
    return int((batch.trajectory == batch.trajectory[i]).sum())


def mean_ratio(batch: TokenBatch, logp: Tensor, i: int, reference: str) -> Tensor:
    at = spots(batch)[i]
    return (sum(logp[i, t] - getattr(batch, reference)[i, t] for t in at) / len(at)).exp()


def gspo(reference: str) -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        x = {}
        for i, at in enumerate(spots(batch)):
            for t in at:
                mean = sum(a[i, u] for u in at) / len(at)
                x[i, t] = -clipped(mean_ratio(batch, logp, i, reference), mean, 3e-4, 4e-4)
        return together(batch, x, "seq-mean-token-mean")

    return ref


def mis_geometric(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
    x = {}
    for i, at in enumerate(spots(batch)):
        for t in at:
            w = mean_ratio(batch, logp.detach(), i, "logp_behavior")
            x[i, t] = -(w if 0.9 <= w <= 1.25 else 0.0) * a[i, t] * logp[i, t]
    return together(batch, x, "token-mean")


def sapo(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    tau = 1.0 if a > 0 else 1.05
    return -4 / tau / (1 + torch.exp(-tau * ((lp - lb(b, i, t)).exp() - 1))) * a


def m2po(tau: float) -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        at = [(i, t) for i, row in enumerate(spots(batch)) for t in row]
        d2 = {p: float(logp.detach()[p] - batch.logp_behavior[p]) ** 2 for p in at}
        order = sorted(at, key=d2.__getitem__, reverse=True)
        first = next(
            (k for k in range(len(at)) if sum(d2[p] for p in order[k:]) / (len(at) - k) < tau), len(at)
        )  # fmt: skip
        gone = set(order[:first])
        assert 0 < len(gone) < len(at)
        return together(
            batch, {p: -(logp[p] - batch.logp_behavior[p]).exp() * a[p] * (p not in gone) for p in at}, "token-mean"
        )

    return ref


def dppo(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    p, mu = lp.detach().exp(), lb(b, i, t).exp()
    away = (a > 0 and p > mu) or (a < 0 and p < mu)
    return -min(p / mu, torch.tensor(20.0)) * a * lp * (0 if away and abs(p - mu) > 0.05 else 1)


def kimi(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    return -a * lp + 0.05 * (lp - lo(b, i, t)) ** 2


def a3po(linear: bool) -> Callable[..., Tensor]:
    def term(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
        v, behind = int(b.versions[i, t]), lb(b, i, t)
        alpha = 0.0 if b.version <= v else min(max((b.version - 1 - v) / (b.version - v), 0.0), 1.0)
        now = lp.detach()
        prox = ((1 - alpha) * behind.exp() + alpha * now.exp()).log() if linear else behind + alpha * (now - behind)
        return -drop(5.0)((prox - behind).exp()) * clipped((lp - prox).exp(), a, 0.2, 0.2)

    return term


def grouped_weight(variant: str, eps: float, mode: str = "seq-mean-token-mean") -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        r: dict[int, float] = {}
        for i, at in enumerate(spots(batch)):
            key = int(batch.trajectory[i])
            r[key] = r.get(key, 1.0) * math.exp(sum(float(logp.detach()[i, t] - batch.logp_behavior[i, t]) for t in at))
        x = {}
        for i, at in enumerate(spots(batch)):
            own = r[int(batch.trajectory[i])]
            members = {int(batch.trajectory[j]) for j in range(batch.rows) if batch.group[j] == batch.group[i]}
            cap = len(members) * (1 + eps)
            w = {"gmc": own * min(1.0, cap / sum(r[m] for m in members)), "tic_truncate": min(own, 1 + eps),
                 "tic_zero": own if own <= 1 + eps else 0.0}[variant]  # fmt: skip
            x |= {(i, t): -w * a[i, t] * logp[i, t] for t in at}
        return together(batch, x, mode)

    return ref


def entr(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    d = (lp - lb(b, i, t)).item()
    inside = d * d / (float(b.entropy[i, t]) + 0.01) <= 0.1
    return -inside * clipped((lp - lb(b, i, t)).exp(), a, 0.2, 0.28)


def quantile(x: list[float], alpha: float) -> float:
    x = sorted(x)
    place = alpha * (len(x) - 1)
    k = min(int(place), len(x) - 2)
    return x[k] + (place - k) * (x[k + 1] - x[k])


def sat(kernel: str, sequence: bool, e_l: float, e_h: float, alpha: float) -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        rows = spots(batch)
        at = [(i, t) for i, row in enumerate(rows) for t in row]
        d = {
            p: (mean_ratio(batch, logp, p[0], "logp_behavior").log() if sequence else logp[p] - batch.logp_behavior[p])
            for p in at
        }
        q = quantile([abs(y.item()) for y in d.values()], alpha)
        x, gated = {}, 0
        for p in at:
            size, s = abs(d[p].item()), 1.0
            if size > q + 1e-12:
                gated += 1
                s = q**2 / (q**2 + (size - q) ** 2) if kernel == "H1" else 1 / (1 + (size / q) ** 2)
            mean = sum(a[p[0], u] for u in rows[p[0]]) / len(rows[p[0]]) if sequence else a[p]
            x[p] = -clipped(d[p].exp(), mean, e_l * (s if d[p] < 0 else 1.0), e_h * (s if d[p] > 0 else 1.0))
        assert gated > 0
        return together(batch, x, "token-mean")

    return ref


def sao(r: Tensor, a: Tensor) -> Tensor:
    return r if 1 - 0.3 < r < 1 + 0.4 else 0 * r


def rac(slow_mode: str, on_slow: str) -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        total: dict[int, float] = {}
        for i, at in enumerate(spots(batch)):
            key = int(batch.trajectory[i])
            total[key] = total.get(key, 0.0) + sum(float(logp.detach()[i, t] - batch.logp_behavior[i, t]) for t in at)
        x = {}
        for i, at in enumerate(spots(batch)):
            rho, corr, back = min(1.2, math.exp(total[int(batch.trajectory[i])])), 0.0, int(batch.trained_at[i]) >= 0
            if back:
                delay = max(batch.version - int(batch.trained_at[i]), 0)
                held = float(batch.reward_fast[i]) if slow_mode == "replace" else 0.0
                corr = math.exp(-delay / 50) * rho * (float(batch.reward_slow[i]) - held)
                corr = max(-5.0, min(5.0, corr))
            for t in at:
                fast = 0.0 if back else rho * a[i, t]
                x[i, t] = -(fast + corr * (1.0 if on_slow == "once" else rho)) * logp[i, t]
        return together(batch, x, "token-mean")

    return ref


def by_scale(kind: str) -> Ref:
    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i, at in enumerate(spots(batch)):
            if at:
                l = -sum(logp[i, t] for t in at) / len(at)  # noqa: E741
                s = 1 / l.detach().clamp(min=1e-6) if kind == "asympo" else (1.0 if a[i, at[0]] >= 0 else 0.2)
                total = total + s * a[i, at[0]] * l
        return total / batch.rows

    return ref


def ppo_ewma(b: TokenBatch, lp: Tensor, i: int, t: int, a: Tensor) -> Tensor:
    average, now = b.logp_old[i, t], lp.detach()
    adj = torch.maximum(lb(b, i, t), now - math.log(100))
    boxed = (lp - average).clamp(math.log(0.8), math.log(1.2))
    return torch.maximum(-a * (lp - adj).exp(), -a * (boxed + average - adj).exp())


PPO = ppo(0.2, 0.2)
METHODS: list[tuple[str, dict[str, Any], Ref]] = [
    ("reinforce", {}, per_token("token-mean", plain)),
    ("rloo", {}, per_token("token-mean", plain)),
    ("grpo", {}, per_token("seq-mean-token-mean", PPO)),
    ("dr-grpo", {"max_length": 7}, per_token("const", PPO, 7)),
    ("ppo", {}, per_token("token-mean", PPO)),
    ("dual-clip-ppo", {"c": 1.3}, per_token("token-mean", ppo(0.2, 0.2, 1.3))),
    ("decoupled-ppo", {}, per_token("token-mean", decoupled(drop(5.0)))),
    ("decoupled-ppo", {"cap": 1.1}, per_token("token-mean", decoupled(drop(1.1)))),
    ("decoupled-ppo", {"reference": "old", "correction": "truncate", "C": 1.1},
     per_token("token-mean", decoupled(lambda w: w.clamp(max=1.1), anchor="logp_old"))),
    ("decoupled-ppo", {"reference": "old", "correction": "mask", "lo": 0.8, "hi": 1.3},
     per_token("token-mean", decoupled(lambda w: w if 0.8 <= w <= 1.3 else 0 * w, anchor="logp_old"))),
    ("tis", {"C": 1.2}, per_token("token-mean", weighted(lambda r, a: r.clamp(max=1.2)))),
    ("tis", {"numerator": "proximal", "lo": 0.9, "hi": 1.1},
     per_token("token-mean", weighted(lambda r, a: r.clamp(0.9, 1.1), "proximal"))),
    ("mis", {"lo": 0.8, "hi": 1.3}, per_token("token-mean", weighted(lambda r, a: r if 0.8 <= r <= 1.3 else 0 * r))),
    ("mis", {"level": "geometric", "lo": 0.9, "hi": 1.25}, mis_geometric),
    ("icepop", {"lo": 0.7, "hi": 1.4},
     per_token("token-mean", weighted(lambda r, a: r if 0.7 <= r <= 1.4 else 0 * r))),
    ("gspo", {}, gspo("logp_proximal")),
    ("gspo", {"reference": "behavior"}, gspo("logp_behavior")),
    ("cispo", {}, per_token("token-mean", weighted(lambda r, a: r.clamp(0.9, 1.1)))),
    ("topr", {}, per_token("token-mean", weighted(lambda r, a: r.clamp(0, 1) if a < 0 else r**0))),
    ("sapo", {}, per_token("seq-mean-token-mean", sapo)),
    ("m2po", {}, m2po(0.04)),
    ("dppo", {"threshold": 0.05}, per_token("token-mean", dppo)),
    ("kimi-pmd", {}, per_token("token-mean", kimi)),
    ("a3po", {}, per_token("token-mean", a3po(False))),
    ("a3po", {"interpolation": "linear"}, per_token("token-mean", a3po(True))),
    ("copc", {}, per_token("token-mean", weighted(lambda r, a: r if 0.5 <= r <= 2 else 0 * r))),
    ("copc", {"ppo_clip": (0.2, 0.3), "keep": (0.6, 1.5)}, per_token("token-mean", lambda b, lp, i, t, a: (
        ppo(0.2, 0.3)(b, lp, i, t, a) if 0.6 <= (lp - lb(b, i, t)).exp() <= 1.5 else 0 * lp))),
    ("gmc-grpo", {}, grouped_weight("gmc", 0.2)),
    ("gmc-grpo", {"eps": 0.0, "length_norm": False}, grouped_weight("gmc", 0.0, "seq-mean-token-sum")),
    ("gmc-grpo", {"variant": "tic_zero"}, grouped_weight("tic_zero", 0.2)),
    ("tic-grpo", {}, grouped_weight("tic_truncate", 0.2)),
    ("tic-grpo", {"variant": "tic_zero", "eps": 1.0}, grouped_weight("tic_zero", 1.0)),
    ("brace", {}, per_token("token-mean", ppo(0.2, 0.28))),
    ("entr", {"tau": 0.1}, per_token("token-mean", entr)),
    ("sat", {}, sat("H1", False, 0.2, 0.2, 0.9)),
    ("sat", {"kernel": "H2", "alpha": 0.5}, sat("H2", False, 0.2, 0.2, 0.5)),
    ("sat", {"level": "sequence", "alpha": 0.4}, sat("H1", True, 0.2, 0.2, 0.4)),
    ("sat-gspo", {"alpha": 0.4}, sat("H1", True, 3e-4, 4e-4, 0.4)),
    ("sao", {"e_l": 0.3, "e_h": 0.4}, per_token("token-mean", weighted(sao))),
    *[("rac", {"slow_mode": s, "rho_on_slow": o}, rac(s, o)) for s in ("replace", "add") for o in ("once", "twice")],
    ("asympo", {}, by_scale("asympo")),
    ("spo", {}, by_scale("spo")),
    ("ppo-ewma", {}, per_token("token-mean", ppo_ewma)),
    ("vtrace", {}, per_token("token-mean", weighted(lambda r, a: r.clamp(max=1.0)))),
    ("asyncwebrl", {}, per_token("token-mean", decoupled(drop(5.0), c=3.0, scale=lambda b, i: 0.1))),
    ("asyncwebrl", {"k": 4, "cap": 1.2, "c": 1.3, "aggregation": "trajectory-sum"},
     per_token("trajectory-sum", decoupled(drop(1.2), c=1.3, scale=lambda b, i: 1 / 4))),
    ("asyncwebrl", {"normaliser": "length"},
     per_token("token-mean", decoupled(drop(5.0), c=3.0, scale=lambda b, i: 1 / rows_of(b, i)))),
]  # fmt: skip
PER_ROW = {"asympo", "spo"}
"""Their formula has one advantage a row."""


@pytest.mark.parametrize("several_rows", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("case", range(len(METHODS)), ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(METHODS)])
def test_ready_advantages(case: int, per_row: bool, several_rows: bool) -> None:
    name, options, ref = METHODS[case]
    if name in PER_ROW and not per_row:
        pytest.skip("one advantage a row")
    batch, logp, _ = ragged(case, several_rows)
    logp = logp.requires_grad_()
    g = torch.Generator().manual_seed(99)
    a = torch.randn((B,) if per_row else (B, T), generator=g, dtype=torch.float64)
    if not per_row:
        a = torch.where(batch.mask, a, NAN)
    if name in ("tis", "mis", "icepop"):  # by themselves they would take the proximal policy, which the batch has
        options = {"numerator": "current"} | options
    loss = objectives.get(name, **options)(batch, logp, advantages=a)
    compare(loss.total, ref(batch, logp, a[:, None].expand(B, T) if per_row else a), logp)


OWN: dict[str, Callable[[TokenBatch], Tensor]] = {
    "reinforce": lambda b: grouped(b, std=False),
    "rloo": lambda b: grouped(b, leave_one_out=True),
    "dr-grpo": lambda b: grouped(b, std=False),
    "kimi-pmd": lambda b: grouped(b, std=False),
    "ppo": lambda b: gae_of(b, 1.0, lambda n: 0.95),
    "dual-clip-ppo": lambda b: gae_of(b, 1.0, lambda n: 0.95),
    "sao": lambda b: gae_of(b, 1.0, lambda n: max(0.0, 1 - 1 / (1.5 * n))),
    "rac": lambda b: grouped(b, rows=[i for i in range(B) if int(b.trained_at[i]) < 0]),
}
CORRECTED = {"copc", "brace", "vtrace"}


@pytest.mark.parametrize("several_rows", [False, True])
@pytest.mark.parametrize("case", range(len(METHODS)), ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(METHODS)])
def test_own_advantages(case: int, several_rows: bool) -> None:
    name, options, ref = METHODS[case]
    if name in CORRECTED:
        pytest.skip("below")
    batch, logp, _ = ragged(100 + case, several_rows)
    logp = logp.requires_grad_()
    if name in ("tis", "mis", "icepop"):
        options = {"numerator": "current"} | options
    if name == "mis":
        options = {"baseline_over": "all"} | options  # the other reading: test_rejected_rows
    loss = objectives.get(name, **options)(batch, logp)
    compare(loss.total, ref(batch, logp, OWN.get(name, grouped)(batch)), logp)
