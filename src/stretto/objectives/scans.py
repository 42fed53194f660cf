"""Recursions along a row's policy tokens, at memory speed. Masked places are skipped, whatever they hold.

``mask`` is [B,T] bool, and tensors and results are [B,T] with 0 in masked places; or a ``Compressed``, and they are
closed rows [B,n] already (several recursions then close and open once). "Next" is the next policy token of the row. No
gradient. Results are in the widest of the dtypes given, at least float32. On the CPU these are compiled loops; anywhere
else log2(n) tensor operations (affine maps composed by doubling). Both compute in float64 and cut results at 1e18.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.kernel.errors import DataError
from stretto.objectives.compress import BOUND, HUGE, Compressed, compiled, compress, run_kernel


def reverse_scan(a: float | Tensor, b: Tensor, mask: Tensor | Compressed, init: Tensor | None = None) -> Tensor:
    """y_t = b_t + a_t y_next. ``a``: a number, [B], or like ``b``; ``init`` [B]: y after the last policy token
    (default 0)."""
    rows, slope, shift = _closed(mask, a, b, init)
    after = _one_a_row("init", init, shift)
    if compiled(shift):
        y = run_kernel("reverse_scan", shift.shape, shift.dtype, slope, shift, rows.count, after)
        return _result(mask, rows, y)
    maps = _maps(rows, slope, shift)
    reach = 1
    while reach < rows.width:
        maps = _chained(*maps, *maps, reach)
        reach *= 2
    y = maps[1] + maps[0] * _wide(after)[:, None]
    return _result(mask, rows, torch.where(rows.valid, y.clamp(-BOUND, BOUND), 0.0).to(shift.dtype))


def following(x: Tensor, mask: Tensor | Compressed, after: Tensor | None = None) -> Tensor:
    """``x`` at the next policy token, ``after`` [B] (default 0) at the last one."""
    rows, _, x = _closed(mask, 1.0, x, after)
    after = _one_a_row("after", after, x)
    if compiled(x):
        return _result(mask, rows, run_kernel("following", x.shape, x.dtype, x, rows.count, after))
    return _result(mask, rows, _shifted(rows, x, after))


def residual(rewards: Tensor, ahead: Tensor, values: Tensor, rows: Compressed, gamma: float, after: Tensor) -> Tensor:
    """r_t + gamma x_next - V_t [B,n] of closed rows, with x = ``ahead`` and ``after`` [B] for x after the last policy
    token. The temporal-difference residual where ``ahead`` is ``values``."""
    dtype = widest(rewards, ahead, values, after)
    if compiled(values):
        arguments = (rewards, ahead, values, rows.count, float(gamma), after)
        return run_kernel("residual", values.shape, dtype, *arguments)
    rewards, ahead, values, after = (x.to(dtype) for x in (rewards, ahead, values, after))
    return torch.where(rows.valid, rewards + gamma * _shifted(rows, ahead, after) - values, 0.0)


def window_scan(a: float | Tensor, b: Tensor, anchor: Tensor, mask: Tensor | Compressed, k: int) -> Tensor:
    """y_s = f_s(f_{s+1}(... f_{j-1}(x_j))) with f_t(y) = b_t + a_t y, x = ``anchor`` and j = min(s + k, last).

    So y_s = sum_{t=s}^{j-1} (prod_{i=s}^{t-1} a_i) b_t + (prod_{i=s}^{j-1} a_i) x_j: windowed sums and products over
    the next ``k`` policy tokens, a constant amount of work a token whatever ``k`` (suffixes and prefixes of blocks
    of k: van Herk 1992, Gil and Werman 1993), by composition alone, so nothing cancels. ``a`` as in ``reverse_scan``.
    """
    if k < 0:
        raise DataError(f"window_scan: the window k = {k} must be at least 0")
    rows, slope, shift = _closed(mask, a, b, anchor)
    x = (anchor.detach() if isinstance(mask, Compressed) else rows.close(anchor)).to(shift.dtype)
    if k == 0:
        return _result(mask, rows, x)
    if compiled(shift):
        arguments = (slope.expand(shift.shape), shift, x, rows.count, min(k, rows.width + 1))
        y = run_kernel("window_scan", shift.shape, shift.dtype, *arguments)
        return _result(mask, rows, y)
    last = rows.count[:, None] - 1
    at = torch.arange(rows.width, device=x.device)
    slope, shift = _maps(rows, slope, shift)
    before = at < last  # the last token's map is in no window
    slope, shift = torch.where(before, slope, 1.0), torch.where(before, shift, 0.0)
    whole = (torch.ones_like(slope), torch.zeros_like(shift))
    covered, reach, k = 0, 1, min(k, rows.width)
    while covered < k:
        if k & reach:
            whole = _chained(*whole, slope, shift, covered)
            covered += reach
        slope, shift = _chained(slope, shift, slope, shift, reach)
        reach *= 2
    y = whole[1] + whole[0] * _wide(x).gather(1, torch.minimum(at + k, last).clamp(min=0))
    return _result(mask, rows, torch.where(rows.valid, y.clamp(-BOUND, BOUND), 0.0).to(x.dtype))


def anchored_scan(
    delta: Tensor, w: Tensor, rows: Compressed, k: int, rho_bar: float, c_bar: float, gamma: float, gae_lambda: float
) -> Tensor:
    """BRACE's correction [B,n] of closed rows: ``window_scan`` with a = gamma lambda min(c_bar, w), b = min(rho_bar, w)
    delta, anchored at x_t = delta_t + gamma x_next."""
    delta = delta.to(widest(delta, w))
    if compiled(delta) and k > 0:
        numbers = (float(rho_bar), float(c_bar), float(gamma), float(gamma * gae_lambda))
        k = min(k, rows.width + 1)
        return run_kernel("anchored_scan", delta.shape, delta.dtype, delta, w, rows.count, k, *numbers)
    anchor = reverse_scan(gamma, delta, rows)
    return window_scan(w.clamp(max=c_bar) * (gamma * gae_lambda), w.clamp(max=rho_bar) * delta, anchor, rows, k)


def widest(*given: float | Tensor | None) -> torch.dtype:
    """The widest of the tensors' dtypes, at least float32: nothing is computed in integers or half precision."""
    found = torch.float32
    for x in given:
        if isinstance(x, Tensor):
            found = torch.promote_types(found, x.dtype)
    return found


def _one_a_row(name: str, x: Tensor | None, like: Tensor) -> Tensor:
    """``x`` [B] in the dtype of ``like`` [B,n]; zeros for None. ``DataError`` on another shape."""
    if x is None:
        return like.new_zeros(len(like))
    if x.shape != like.shape[:1]:
        raise DataError(f"{name} must be [{len(like)}], one a row; got {list(x.shape)}")
    return x.detach().to(like.dtype)


def _closed(
    mask: Tensor | Compressed, a: float | Tensor, b: Tensor, other: Tensor | None = None
) -> tuple[Compressed, Tensor, Tensor]:
    """Closed rows, ``a`` [B,n] or [B,1] and ``b`` [B,n], in the widest of their dtypes and that of ``other``."""
    dtype = widest(a, b, other)
    if isinstance(mask, Compressed):
        rows, b = mask, b.detach().to(dtype)
    else:
        rows = compress(mask)
        b = rows.close(b.to(dtype))
    if not isinstance(a, Tensor):
        return rows, b.new_full((len(b), 1), a), b
    a = a.detach().to(b.dtype)
    if a.ndim < 2:
        return rows, a.reshape(-1, 1).expand(len(b), 1), b
    return rows, a if isinstance(mask, Compressed) else rows.close(a), b


def _result(mask: Tensor | Compressed, rows: Compressed, y: Tensor) -> Tensor:
    return y if isinstance(mask, Compressed) else rows.open(y)


def _shifted(rows: Compressed, x: Tensor, after: Tensor) -> Tensor:
    at = torch.arange(rows.width, device=x.device)
    following = torch.nn.functional.pad(x[:, 1:], (0, min(rows.width, 1)))
    return torch.where(at == rows.count[:, None] - 1, after[:, None], following)


def _wide(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.double()  # MPS has no float64


def _maps(rows: Compressed, slope: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """f_t(y) = shift + slope y [B,n] in float64; the identity where there is no token."""
    return _wide(torch.where(rows.valid, slope, 1.0)), _wide(torch.where(rows.valid, shift, 0.0))


def _chained(slope: Tensor, shift: Tensor, slope_2: Tensor, shift_2: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """(slope, shift) after (slope_2, shift_2) of ``gap`` places on; the identity stands beyond the end."""
    gap = min(gap, slope.shape[1])
    far_slope = torch.nn.functional.pad(slope_2[:, gap:], (0, gap), value=1.0)
    far_shift = torch.nn.functional.pad(shift_2[:, gap:], (0, gap))
    return (slope * far_slope).clamp(-HUGE, HUGE), (shift + slope * far_shift).clamp(-HUGE, HUGE)
