"""Estimators over time: golden values, identities, and the formulas written out slowly."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives import compress as compress_module
from stretto.objectives import scans
from stretto.objectives.temporal import (
    brace,
    copc,
    discounted_returns,
    gae,
    length_adaptive_lambda,
    retrace,
    vtrace,
)

NAN = math.nan


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def golden() -> tuple[TokenBatch, Tensor]:
    mask = torch.ones(1, 3, dtype=torch.bool)
    return TokenBatch(mask=mask, rewards=row([0, 0, 1]), values=row([0.2, 0.4, 0.5])), row([0.5, 1.5, 3.0])


def random_case(seed: int, rows: int = 5, width: int = 17, share: float = 0.6) -> tuple[TokenBatch, Tensor]:
    """Rewards on every policy token, NaN in masked places, one row without and one with a single policy token."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < share
    mask[0] = True
    mask[1] = False
    mask[2] = torch.arange(width) == width - 1

    def clean(x: Tensor) -> Tensor:
        return torch.where(mask, x, NAN)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    batch = TokenBatch(
        mask=mask, rewards=clean(normal(rows, width)), values=clean(normal(rows, width)),
        truncated=torch.rand(rows, generator=g) < 0.5, bootstrap=normal(rows),
    )  # fmt: skip
    return batch, clean(normal(rows, width).mul(0.7).exp())


def written_out(batch: TokenBatch, w: Tensor, estimate: Any) -> list[Tensor]:
    """``estimate(r, V with the value after the last, w)`` of lists, row by row."""
    outs: list[Tensor] = []
    for i in range(batch.rows):
        at = [t for t in range(batch.mask.shape[1]) if batch.mask[i, t]]
        after = 0.0
        if batch.truncated is not None and batch.bootstrap is not None and batch.truncated[i]:
            after = float(batch.bootstrap[i])
        r, v, u = ([float(x[i, t]) for t in at] for x in [*batch.need("rewards", "values"), w])
        for n, values in enumerate(estimate(r, [*v, after], u)):
            if len(outs) <= n:
                outs.append(torch.zeros(batch.mask.shape, dtype=torch.float64))
            if at:
                outs[n][i, at] = torch.tensor(values, dtype=torch.float64)
    return outs


def deltas(r: list[float], v: list[float], gamma: float) -> list[float]:
    return [x + gamma * after - before for x, (before, after) in zip(r, pairwise(v), strict=True)]


def slow_vtrace(
    r: list[float], v: list[float], w: list[float], rho_bar: float, c_bar: float, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    d, n = deltas(r, v, gamma), len(r)
    goal = [
        v[s] + sum(
            gamma ** (t - s) * math.prod(lam * min(c_bar, w[i]) for i in range(s, t)) * min(rho_bar, w[t]) * d[t]
            for t in range(s, n)
        )
        for s in range(n)
    ] + v[n:]  # fmt: skip
    return goal[:n], [r[s] + gamma * goal[s + 1] - v[s] for s in range(n)]


def slow_brace(
    r: list[float], v: list[float], w: list[float], k: int, rho_bar: float, c_bar: float, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    d, n = deltas(r, v, gamma), len(r)
    goal = []
    for s in range(n):
        j = min(s + k, n - 1)
        pi = [math.prod(lam * min(c_bar, w[i]) for i in range(s, t)) for t in range(s, j + 1)]
        window = sum(gamma ** (t - s) * pi[t - s] * min(rho_bar, w[t]) * d[t] for t in range(s, j))
        tail = sum(gamma ** (t - s) * r[t] for t in range(j, n)) + gamma ** (n - s) * v[n]
        goal.append(v[s] + window + pi[j - s] * (tail - gamma ** (j - s) * v[j]))
    goal += v[n:]
    return goal[:n], [r[s] + gamma * goal[s + 1] - v[s] for s in range(n)]


def slow_copc(
    r: list[float], v: list[float], w: list[float], mode: str, clip: tuple[float, float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    d, n = deltas(r, v, gamma), len(r)
    omega = [min(max(x, clip[0]), clip[1]) for x in w] + [0.0]
    a, e = [0.0] * (n + 1), [0.0] * (n + 1)
    for t in reversed(range(n)):
        if mode == "residual":
            a[t] = e[t] = omega[t] * d[t] + gamma * lam * a[t + 1]
        elif mode == "continuation":
            a[t], e[t] = d[t] + gamma * lam * e[t + 1], omega[t] * d[t] + gamma * lam * e[t + 1]
        else:
            a[t] = d[t] + gamma * lam * omega[t + 1] * a[t + 1]
            e[t] = omega[t] * a[t]
    return a[:n], e[:n]


def same(ours: Any, expected: list[Tensor]) -> None:
    for x, y in zip(ours, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


unit = st.floats(0, 1)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 30), share=unit, gamma=unit, lam=unit, k=st.integers(0, 33),
       bars=st.tuples(st.floats(0.5, 3), st.floats(0.5, 2)), doubling=st.booleans())  # fmt: skip
def test_estimators_are_their_formulas(
    seed: int, width: int, share: float, gamma: float, lam: float, k: int, bars: tuple[float, float], doubling: bool
) -> None:
    batch, w = random_case(seed, width=width, share=share)
    with pytest.MonkeyPatch.context() as patch:
        for module in (scans, compress_module):
            patch.setattr(module, "compiled", lambda x: not doubling)
        expected = written_out(batch, w, lambda r, v, u: slow_vtrace(r, v, u, *bars, gamma, lam))
        same(vtrace(batch, w, *bars, gamma, lam), expected)
        expected = written_out(batch, w, lambda r, v, u: slow_brace(r, v, u, k, *bars, gamma, lam))
        same(brace(batch, w, k, *bars, gamma, lam), expected)
        for mode in ("residual", "continuation", "trace"):
            expected = written_out(batch, w, lambda r, v, u, m=mode: slow_copc(r, v, u, m, (0.5, 2), gamma, lam))
            same(copc(batch, w, mode, (0.5, 2), gamma, lam), expected)  # type: ignore[arg-type]
        one = written_out(batch, w, lambda r, v, u: slow_copc(r, v, u, "residual", (1, 1), gamma, lam)[:1])
        same([gae(batch, gamma, lam), gae(batch, gamma, torch.full((5,), lam, dtype=torch.float64))], one * 2)
        returns = written_out(batch, w, lambda r, v, u: slow_brace(r, v, u, 0, 1, 1, gamma, 1)[:1])
        same([discounted_returns(batch, gamma)], returns)


@pytest.mark.parametrize(
    ("mode", "a", "g"),
    [
        ("residual", [1.25, 1.15, 1.0], [1.45, 1.55, 1.5]),
        ("continuation", [1.35, 1.10, 0.5], [1.45, 1.55, 1.5]),
        ("trace", [0.2 + 1.5 * 1.1, 0.1 + 2 * 0.5, 0.5], [0.2 + 0.5 * 1.85, 0.4 + 1.5 * 1.1, 1.5]),
    ],
)
def test_copc_by_hand(mode: Any, a: list[float], g: list[float]) -> None:
    batch, w = golden()
    ours, e = copc(batch, w, mode, (0.5, 2), 1, 1)
    assert ours[0].tolist() == pytest.approx(a, abs=1e-12)
    assert (batch.need("values")[0] + e)[0].tolist() == pytest.approx(g, abs=1e-12)


@pytest.mark.parametrize("mode", ["residual", "continuation", "trace"])
@pytest.mark.parametrize("lam", [1.0, 0.7])
def test_copc_without_weights_is_gae(mode: Any, lam: float) -> None:
    batch, w = random_case(7)
    plain = gae(batch, 0.9, lam)
    ones = torch.where(batch.mask, 1.0, NAN).double()
    for weights, clip in ((ones, (0.5, 2.0)), (w, (1.0, 1.0)), (ones, (0.0, math.inf))):
        for ours in copc(batch, weights, mode, clip, 0.9, lam):
            torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("k", "g", "a"),
    [
        (0, [1, 1, 1], [0.8, 0.6, 0.5]),
        (2, [0.635, 1.07, 1], [0.87, 0.6, 0.5]),
        (100, [0.635, 1.07, 1], [0.87, 0.6, 0.5]),
    ],
)
def test_brace_by_hand(k: int, g: list[float], a: list[float]) -> None:
    batch, w = golden()
    targets, advantages = brace(batch, w, k, 1.2, 1.1, 1, 1)
    assert targets[0].tolist() == pytest.approx(g, abs=1e-12)
    assert advantages[0].tolist() == pytest.approx(a, abs=1e-12)


def terminal(seed: int = 3, length: int = 9, reward: float = 1.0) -> tuple[TokenBatch, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rewards = torch.zeros(2, length, dtype=torch.float64)
    rewards[:, -1] = reward
    values = torch.randn(2, length, generator=g, dtype=torch.float64)
    w = torch.randn(2, length, generator=g, dtype=torch.float64).exp()
    return TokenBatch(mask=torch.ones(2, length, dtype=torch.bool), rewards=rewards, values=values), w


@pytest.mark.parametrize("k", [0, 1, 3, 8, 9, 100])
def test_brace_with_unit_ratios_returns_the_reward_everywhere(k: int) -> None:
    batch, w = terminal()
    targets, _ = brace(batch, torch.ones_like(w), k, 1.2, 1.1, 1, 1)
    torch.testing.assert_close(targets, torch.ones_like(w), rtol=0, atol=1e-12)
    discounted, _ = brace(batch, w, 0, 1.2, 1.1, 0.9, 0.5)
    exponents = torch.arange(8, -1, -1).double()
    torch.testing.assert_close(discounted, (0.9**exponents).expand(2, 9), rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [0, 2, 4, 20])
def test_the_reward_reaches_every_position_with_the_windows_product(k: int) -> None:
    """The coefficient of the terminal reward in G_s is gamma^{T-s} Pi_k(s): never 0."""
    (low, w), (high, _) = terminal(reward=0.0), terminal(reward=1.0)
    coefficient = brace(high, w, k, 1.2, 1.1, 0.9, 0.8)[0] - brace(low, w, k, 1.2, 1.1, 0.9, 0.8)[0]
    c = 0.8 * w.clamp(max=1.1)
    for i in range(2):
        for s in range(9):
            expected = 0.9 ** (8 - s) * float(c[i, s : min(s + k, 8)].prod())
            assert float(coefficient[i, s]) == pytest.approx(expected, rel=1e-9)
            assert expected > 0


def test_brace_over_the_whole_horizon_is_vtrace_but_for_the_last_residual() -> None:
    batch, w = terminal()
    gamma = 0.9
    ours, _ = brace(batch, w, 9, 1.2, 1.1, gamma, 1)
    plain, _ = vtrace(batch, w, 1.2, 1.1, gamma, 1)
    (values,) = batch.need("values")
    for i in range(2):
        for s in range(9):
            product = float(w[i, s:8].clamp(max=1.1).prod())
            last = (1 - min(1.2, float(w[i, 8]))) * (1 - float(values[i, 8]))
            assert float(ours[i, s] - plain[i, s]) == pytest.approx(gamma ** (8 - s) * product * last, abs=1e-9)


def test_vtrace_on_policy_is_gae() -> None:
    batch, w = random_case(11)
    targets, advantages = vtrace(batch, torch.ones_like(w), 1, 1, 0.9, 1.0)
    (values,) = batch.need("values")
    expected = torch.where(batch.mask, values + gae(batch, 0.9, 1.0), 0.0)
    torch.testing.assert_close(targets, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(advantages, gae(batch, 0.9, 1.0), rtol=0, atol=1e-12)


def test_vtrace_by_hand() -> None:
    batch, w = golden()
    targets, advantages = vtrace(batch, w, 1, 1, 1, 1)
    assert targets[0].tolist() == pytest.approx([0.2 + 0.5 * 0.2 + 0.5 * (0.1 + 0.5), 0.4 + 0.1 + 0.5, 1.0])
    assert advantages[0].tolist() == pytest.approx([1.0 - 0.2, 1.0 - 0.4, 1.0 - 0.5])


def test_retrace_carries_no_weight_of_the_own_action() -> None:
    batch, w = golden()
    assert retrace(batch, w, 1, 1)[0].tolist() == pytest.approx([0.2 + 0.2 + 0.1 + 0.5, 0.4 + 0.1 + 0.5, 1.0])
    q = row([0.3, 0.1, 0.6])
    expected = [0.3 + (0.4 - 0.3) + 0.8 * ((0.5 - 0.1) + 0.8 * 0.4), 0.1 + 0.4 + 0.8 * 0.4, 1.0]
    assert retrace(batch, w, 1, 0.8, q)[0].tolist() == pytest.approx(expected)
    own = retrace(batch, torch.where(torch.tensor([[True, False, False]]), 7.0, w), 1, 1)
    assert torch.equal(own, retrace(batch, w, 1, 1))


def test_retrace_is_the_trace_mode_capped_at_one() -> None:
    batch, w = random_case(5)
    (values,) = batch.need("values")
    a, _ = copc(batch, w, "trace", (0.0, 1.0), 0.9, 0.8)
    expected = torch.where(batch.mask, values + a, 0.0)
    torch.testing.assert_close(retrace(batch, w, 0.9, 0.8), expected, rtol=0, atol=1e-12)


def test_inserted_observation_tokens_change_nothing() -> None:
    """Skip-observation: the last token of a turn bootstraps from the first one of the next."""
    batch, w = terminal()
    g = torch.Generator().manual_seed(0)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    for i in range(2):
        mask[i, torch.randperm(20, generator=g)[:9].sort().values] = True

    def spread(x: Tensor) -> Tensor:
        out = torch.full((2, 20), NAN, dtype=torch.float64)
        out[mask] = x.flatten()
        return out

    wide = TokenBatch(mask=mask, rewards=spread(batch.need("rewards")[0]), values=spread(batch.need("values")[0]))
    for estimate in (
        lambda b, u: [gae(b, 0.9, 0.7)],
        lambda b, u: vtrace(b, u, 1, 1, 0.9, 1),
        lambda b, u: brace(b, u, 3, 1.2, 1.1, 0.9, 1),
        lambda b, u: copc(b, u, "trace", (0.5, 2), 0.9, 1),
    ):
        for x, y in zip(estimate(wide, spread(w)), estimate(batch, w), strict=True):
            assert torch.equal(x[mask], y.flatten())
            assert bool((x[~mask] == 0).all())


def test_length_adaptive_lambda() -> None:
    mask = torch.arange(5000) < torch.tensor([0, 1, 2, 5000])[:, None]
    lam = length_adaptive_lambda(mask, 1.5)
    assert lam.tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3, 1 - 1 / 7500], abs=1e-9)
    assert length_adaptive_lambda(mask, 0.05)[1:3].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (3, 4)])
def test_no_policy_tokens_give_zeros(shape: tuple[int, int]) -> None:
    nothing = torch.full(shape, NAN)
    batch = TokenBatch(mask=torch.zeros(shape, dtype=torch.bool), rewards=nothing, values=nothing)
    outs = [discounted_returns(batch, 1), gae(batch, 1, 1), retrace(batch, nothing, 1, 1),
            *vtrace(batch, nothing, 1, 1, 1, 1), *brace(batch, nothing, 5, 1.2, 1.1, 1, 1),
            *copc(batch, nothing, "continuation", (0.5, 2), 1, 1)]  # fmt: skip
    for out in outs:
        assert torch.equal(out, torch.zeros(shape))


def test_a_missing_critic_is_named() -> None:
    with pytest.raises(DataError, match="values"):
        gae(TokenBatch(mask=torch.ones(1, 1, dtype=torch.bool), rewards=row([1.0])), 1, 1)
