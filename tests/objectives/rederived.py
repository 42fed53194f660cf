"""A second implementation's shared pieces: ragged batches, and advantages and aggregation by plain loops over policy
tokens. Written from the published formulas, sharing nothing with the package."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch

B, T, V, M, K = 9, 7, 5, 3, 2
NAN = math.nan
Ref = Callable[[TokenBatch, Tensor, Tensor], Tensor]


def spots(batch: TokenBatch) -> list[list[int]]:
    """Columns of each row's policy tokens."""
    return [[t for t in range(batch.mask.shape[1]) if batch.mask[i, t]] for i in range(batch.rows)]


def ragged(seed: int, several_rows: bool = False) -> tuple[TokenBatch, Tensor, dict[str, Tensor]]:
    """Groups of 1, 2 and 6 rows (of 1, 2 and 3 trajectories if ``several_rows``), one row of one token, one of none."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    length = torch.tensor([7, 5, 6, 1, 7, 4, 7, 6, 3])
    inside = torch.arange(T) < length[:, None]
    mask = inside & (torch.rand(B, T, generator=g) < 0.65)
    mask[torch.arange(B), length - 1] = True
    mask[5] = False
    logits = normal(B, T, V)
    current = torch.log_softmax(logits, -1)
    sampler = torch.log_softmax(logits + 0.5 * normal(B, T, V), -1)
    middle = torch.log_softmax(logits + 0.3 * normal(B, T, V), -1)
    old = torch.log_softmax(logits + 0.4 * normal(B, T, V), -1)
    tokens = torch.randint(0, V, (B, T), generator=g)
    draws = torch.randint(0, V, (B, T, M), generator=g)
    head = sampler.topk(K, -1).indices

    def of(x: Tensor, at: Tensor) -> Tensor:
        return x.gather(-1, at.view(B, T, -1)).view(at.shape)

    def dirty(x: Tensor) -> Tensor:
        return torch.where(mask if x.ndim == 2 else mask[..., None], x, NAN)

    rewards = torch.where(mask, normal(B, T), NAN)
    for i, at in enumerate(torch.arange(T).expand(B, T)):  # an observation may carry a reward
        seen = False
        for t in at.tolist():
            seen = seen or bool(mask[i, t])
            if inside[i, t] and not mask[i, t] and seen:
                rewards[i, t] = float(normal(1))
    trajectory = torch.tensor([4, 9, 9, 2, 2, 2, 7, 7, 1]) if several_rows else torch.arange(B) + 30
    group = torch.tensor([5, 8, 8, 3, 3, 3, 3, 3, 3])
    slow = torch.full((B,), NAN, dtype=torch.float64)
    trained = torch.full((B,), -1)
    slow[6:8], trained[6:8] = 1.7, 5
    slow[8], trained[8] = -40.0, 11
    batch = TokenBatch(
        mask=mask, tokens=tokens, length=length, group=group, trajectory=trajectory, version=12,
        logp_behavior=dirty(of(sampler, tokens)), logp_proximal=dirty(of(middle, tokens)),
        logp_old=dirty(of(old, tokens)), entropy=dirty(-(sampler.exp() * sampler).sum(-1)), values=dirty(normal(B, T)),
        rewards=rewards, versions=torch.randint(6, 13, (B, T), generator=g), reward_fast=normal(B), reward_slow=slow,
        trained_at=trained, sampled_tokens=draws, sampled_logp_behavior=dirty(of(sampler, draws)), top_tokens=head,
        top_logp_behavior=dirty(of(sampler, head)),
    )  # fmt: skip
    extra = {"mc": dirty(of(current, draws)), "head": dirty(of(current, head)), "full": dirty(current),
             "full_behavior": dirty(sampler)}  # fmt: skip
    return batch, dirty(of(current, tokens)), extra


def together(batch: TokenBatch, x: dict[tuple[int, int], Tensor], mode: str, k: float = 1.0) -> Tensor:
    """Loss terms by (row, column), aggregated."""
    rows, total = spots(batch), torch.zeros((), dtype=torch.float64)
    n = sum(map(len, rows))
    for (i, _), term in x.items():
        total = total + term / {
            "token-mean": n, "seq-mean-token-mean": batch.rows * len(rows[i]), "seq-mean-token-sum": batch.rows,
            "const": batch.rows * k, "trajectory-sum": len(set(batch.trajectory.tolist())),
        }[mode]  # fmt: skip
    return total


def closed_rewards(batch: TokenBatch, i: int) -> list[float]:
    out: list[float] = []
    for t in range(int(batch.length[i])):
        r = float(batch.rewards[i, t])
        if batch.mask[i, t]:
            out.append(r)
        elif out and math.isfinite(r):
            out[-1] += r
    return out


def grouped(batch: TokenBatch, std: bool = True, leave_one_out: bool = False, rows: list[int] | None = None) -> Tensor:
    rows = list(range(batch.rows)) if rows is None else rows
    score: dict[int, float] = {}
    for i in rows:
        key = int(batch.trajectory[i])
        score[key] = score.get(key, 0.0) + sum(closed_rewards(batch, i))
    a = torch.zeros_like(batch.rewards)
    for i in rows:
        members = sorted({int(batch.trajectory[j]) for j in rows if batch.group[j] == batch.group[i]})
        x = [score[m] for m in members]
        mean, own = sum(x) / len(x), score[int(batch.trajectory[i])]
        if leave_one_out:
            a[i] = 0.0 if len(x) == 1 else own - (sum(x) - own) / (len(x) - 1)
        else:
            deviation = math.sqrt(sum((y - mean) ** 2 for y in x) / len(x))
            a[i] = 0.0 if deviation == 0 else (own - mean) / ((deviation + 1e-6) if std else 1.0)
    return a


def gae_of(batch: TokenBatch, gamma: float, lam: Callable[[int], float]) -> Tensor:
    a = torch.zeros_like(batch.rewards)
    for i, at in enumerate(spots(batch)):
        r, carry, following = closed_rewards(batch, i), 0.0, 0.0
        for k in reversed(range(len(at))):
            v = float(batch.values[i, at[k]])
            carry = r[k] + gamma * following - v + gamma * lam(len(at)) * carry
            a[i, at[k]], following = carry, v
    return a


def clipped(r: Tensor, a: Tensor, low: float, high: float, c: float | None = None) -> Tensor:
    """PPO's surrogate, to be maximised."""
    s = torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)
    return torch.maximum(s, c * a) if c is not None and a < 0 else s


def per_token(mode: str, term: Callable[..., Tensor], k: float = 1.0) -> Ref:
    """A loss whose term at a token is term(logp, row's batch, i, t, a)."""

    def ref(batch: TokenBatch, logp: Tensor, a: Tensor) -> Tensor:
        x = {(i, t): term(batch, logp[i, t], i, t, a[i, t]) for i, at in enumerate(spots(batch)) for t in at}
        return together(batch, x, mode, k)

    return ref


def lb(b: TokenBatch, i: int, t: int) -> Tensor:
    return b.logp_behavior[i, t]


def lo(b: TokenBatch, i: int, t: int) -> Tensor:
    return b.logp_proximal[i, t]


def compare(ours: Tensor, theirs: Tensor, logp: Tensor, more: tuple[Tensor, ...] = ()) -> None:
    """Values, and gradients in ``logp`` and ``more``."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-11)
    mine = torch.autograd.grad(ours, (logp, *more))
    other = torch.autograd.grad(theirs, (logp, *more))
    for x, y in zip(mine, other, strict=True):
        torch.testing.assert_close(x, y, atol=1e-11, rtol=0)
    assert bool((mine[0] != 0).any())
