"""Recursions over policy tokens: against the obvious loops, compiled and by doubling alike."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stretto.kernel.errors import DataError
from stretto.objectives import compress as compress_module
from stretto.objectives import scans
from stretto.objectives.compress import compress
from stretto.objectives.scans import following, reverse_scan, window_scan

NAN = math.nan
ROUTES = ("compiled", "doubling")


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take(request.param, monkeypatch)
    return str(request.param)


def take(route: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if route == "doubling":
        for module in (scans, compress_module):
            monkeypatch.setattr(module, "compiled", lambda x: False)


def case(seed: int, rows: int = 5, width: int = 23, share: float = 0.6, dirt: float = NAN) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < share
    mask[0] = True
    mask[1] = False
    mask[2] = torch.arange(width) == width // 2
    fields = {name: torch.randn(rows, width, generator=g, dtype=torch.float64) for name in "abx"}
    fields["a"] = fields["a"].exp()
    fields = {name: torch.where(mask, value, dirt) for name, value in fields.items()}
    return fields | {"mask": mask, "after": torch.randn(rows, generator=g, dtype=torch.float64)}


def places(mask: Tensor, i: int) -> list[int]:
    return [t for t in range(mask.shape[1]) if mask[i, t]]


def slow_window(a: Tensor, b: Tensor, x: Tensor, mask: Tensor, k: int) -> Tensor:
    out = torch.zeros_like(b)
    for i in range(len(b)):
        at = places(mask, i)
        for s, t in enumerate(at):
            j = min(s + k, len(at) - 1)
            y = float(x[i, at[j]])
            for p in range(j - 1, s - 1, -1):
                y = float(b[i, at[p]]) + float(a[i, at[p]]) * y
            out[i, t] = y
    return out


def slow_scan(a: Tensor, b: Tensor, mask: Tensor, after: Tensor) -> Tensor:
    out = torch.zeros_like(b)
    for i in range(len(b)):
        y = float(after[i])
        for t in reversed(places(mask, i)):
            y = float(b[i, t]) + float(a[i, t]) * y
            out[i, t] = y
    return out


def close_to(ours: Tensor, slow: Tensor) -> None:
    torch.testing.assert_close(ours, slow, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_reverse_scan_is_the_loop(route: str, share: float) -> None:
    c = case(1, share=share)
    close_to(reverse_scan(c["a"], c["b"], c["mask"], c["after"]), slow_scan(c["a"], c["b"], c["mask"], c["after"]))
    halves = torch.full_like(c["b"], 0.5)
    slow = slow_scan(halves, c["b"], c["mask"], torch.zeros(5))
    close_to(reverse_scan(0.5, c["b"], c["mask"]), slow)
    close_to(reverse_scan(torch.full((5,), 0.5), c["b"], c["mask"]), slow)
    close_to(reverse_scan(torch.tensor(0.5), c["b"], c["mask"]), slow)


def test_following_takes_the_next_policy_token(route: str) -> None:
    x = torch.tensor([[NAN, 1.0, NAN, 2.0, 3.0, NAN]])
    mask = torch.tensor([[False, True, False, True, True, False]])
    assert following(x, mask, torch.tensor([9.0])).tolist() == [[0, 2, 0, 3, 9, 0]]
    assert following(x, mask).tolist() == [[0, 2, 0, 3, 0, 0]]


@pytest.mark.parametrize("k", [0, 1, 2, 3, 5, 7, 8, 11, 22, 23, 24, 1000])
@pytest.mark.parametrize("share", [0.6, 1.0])
def test_window_scan_is_the_loop_over_each_window(route: str, k: int, share: float) -> None:
    c = case(2, share=share)
    slow = slow_window(c["a"], c["b"], c["x"], c["mask"], k)
    close_to(window_scan(c["a"], c["b"], c["x"], c["mask"], k), slow)
    constant = slow_window(torch.full_like(c["a"], 1.1), c["b"], c["x"], c["mask"], k)
    close_to(window_scan(1.1, c["b"], c["x"], c["mask"], k), constant)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(3, 6), width=st.integers(1, 40), k=st.integers(0, 45),
       share=st.floats(0, 1), dirt=st.sampled_from([NAN, math.inf, -math.inf, 7.0]))  # fmt: skip
def test_both_routes_agree_with_the_loops(seed: int, rows: int, width: int, k: int, share: float, dirt: float) -> None:
    c = case(seed, rows, width, share, dirt)
    window = slow_window(c["a"], c["b"], c["x"], c["mask"], k)
    scan = slow_scan(c["a"], c["b"], c["mask"], c["after"])
    for route in ROUTES:
        with pytest.MonkeyPatch.context() as patch:
            take(route, patch)
            ours = reverse_scan(c["a"], c["b"], c["mask"], c["after"])
            torch.testing.assert_close(ours, scan, rtol=1e-9, atol=1e-9)
            ours = window_scan(c["a"], c["b"], c["x"], c["mask"], k)
            torch.testing.assert_close(ours, window, rtol=1e-9, atol=1e-9)


def test_float32_rows_accumulate_in_float64(route: str) -> None:
    b = torch.full((1, 100_000), 0.1)
    total = reverse_scan(1.0, b, torch.ones_like(b, dtype=torch.bool))
    assert total.dtype == torch.float32
    assert float(total[0, 0]) == pytest.approx(100_000 * float(b[0, 0]), rel=1e-7)


def test_a_window_does_not_cancel(route: str) -> None:
    """A difference of running sums would lose everything here."""
    b = torch.zeros(1, 64, dtype=torch.float64)
    b[0, 40] = 1e17
    b[0, 10] = 1e-3
    sums = window_scan(1.0, b, torch.zeros_like(b), torch.ones_like(b, dtype=torch.bool), 8)
    assert sums[0, 3:11].tolist() == [1e-3] * 8
    assert sums[0, 11].item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_overflows_is_cut_and_stays_finite(route: str, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    sign = torch.where(torch.rand(2, 200, generator=g) < 0.5, -1.0, 1.0).to(dtype)
    a = torch.where(torch.rand(2, 200, generator=g) < 0.05, 0.0, 2e17).to(dtype)
    mask = torch.ones(2, 200, dtype=torch.bool)
    for y in (reverse_scan(a, sign, mask), window_scan(a, sign, sign, mask, 50), window_scan(a, sign, sign, mask, 500)):
        assert bool(y.isfinite().all())
        assert float(y.abs().max()) == pytest.approx(scans.BOUND)


def test_an_absent_number_at_a_policy_token_stays_visible(route: str) -> None:
    b = torch.tensor([[1.0, NAN, 1.0], [1.0, 1.0, 1.0]])
    y = reverse_scan(1.0, b, torch.ones(2, 3, dtype=torch.bool))
    assert y.isnan().tolist() == [[True, True, False], [False] * 3]
    assert y[1].tolist() == [3, 2, 1]


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0), (3, 4)])
def test_nothing_to_do_gives_zeros(route: str, shape: tuple[int, int]) -> None:
    mask = torch.zeros(shape, dtype=torch.bool)
    x = torch.full(shape, NAN)
    for y in (
        reverse_scan(x, x, mask),
        following(x, mask),
        window_scan(x, x, x, mask, 2),
        window_scan(x, x, x, mask, 0),
    ):
        assert torch.equal(y, torch.zeros(shape))


def test_rows_close_up_and_open_again(route: str) -> None:
    c = case(4)
    rows = compress(c["mask"])
    closed = rows.close(c["b"])
    for i in range(5):
        at = places(c["mask"], i)
        assert closed[i, : len(at)].tolist() == c["b"][i, at].tolist()
        assert bool((closed[i, len(at) :] == 0).all())
    assert torch.equal(rows.open(closed), torch.where(c["mask"], c["b"], 0.0))


def test_rewards_off_the_policy_move_to_the_policy_token_before(route: str) -> None:
    mask = torch.tensor([[False, True, False, False, True, False, False]] * 2)
    rewards = torch.tensor([[7.0, 1.0, 2.0, 2.5, 4.0, 8.0, 16.0], [NAN, 1.0, NAN, 2.0, 4.0, math.inf, 16.0]])
    rows = compress(mask)
    assert rows.close_rewards(rewards, torch.tensor([6, 7])).tolist() == [[5.5, 12.0], [3.0, 20.0]]
    assert rows.close_rewards(rewards)[0].tolist() == [5.5, 28.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool])
def test_nothing_is_computed_in_integers_or_half_precision(dtype: torch.dtype) -> None:
    """y = b + .9 y_next of ones: in integers .9 would be 0, in half precision the sums would be rounded."""
    b, mask = torch.ones(1, 3).to(dtype), torch.ones(1, 3, dtype=torch.bool)
    y = reverse_scan(0.9, b, mask)
    assert y.dtype == torch.float32
    assert y[0].tolist() == pytest.approx([2.71, 1.9, 1.0])
    assert reverse_scan(0.9, b, mask, torch.tensor([0.5]))[0, 2] == pytest.approx(1.45)
    assert following(b, mask, torch.tensor([0.5]))[0].tolist() == [1.0, 1.0, 0.5]
    assert window_scan(0.5, b, b, mask, 1)[0].tolist() == [1.5, 1.5, 1.0]


def test_the_widest_dtype_wins() -> None:
    third, mask = torch.full((1, 2), 1 / 3, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    y = reverse_scan(third, torch.ones(1, 2), mask)
    assert y.dtype == torch.float64
    assert y[0, 0] == pytest.approx(4 / 3, abs=1e-15)
    assert following(torch.ones(1, 2), mask, third[:, 0])[0, 1] == third[0, 0]


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (3,), (2, 4)])
def test_another_shape_is_an_error_not_a_broadcast(shape: tuple[int, ...]) -> None:
    mask, wrong = torch.ones(2, 3, dtype=torch.bool), torch.ones(shape)
    for call in (
        lambda: reverse_scan(1.0, wrong, mask),
        lambda: reverse_scan(1.0, torch.ones(2, 3), mask, wrong),
        lambda: following(wrong, mask),
        lambda: window_scan(1.0, torch.ones(2, 3), wrong, mask, 1),
    ):
        with pytest.raises(DataError, match="must be"):
            call()


def test_a_negative_window_is_an_error() -> None:
    with pytest.raises(DataError, match="at least 0"):
        window_scan(1.0, torch.ones(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), -1)


def test_importing_objectives_does_not_load_numba() -> None:
    code = "import sys, stretto.objectives.base, stretto.objectives.temporal; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
