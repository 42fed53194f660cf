"""Figures of asynchronous pricing: indices, phase diagram, price traces, critics that run away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stretto.data.arrays import Floats, Singles
from stretto.games.pricing.ddpg import Trained
from stretto.games.pricing.engine import Trace
from stretto.games.pricing.phase import Cell
from stretto.observe.canvas import Canvas
from stretto.papers.async_pricing_ddpg import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def phase(
    figure: Canvas, axis: Axes, rates: Sequence[float], delays: Sequence[float], cells: Sequence[Sequence[Cell]]
) -> None:
    """Plot the phase diagram of collusion indices; an invalid cell stays blank and says so."""
    values = np.array([[c.index for c in row] for row in cells])
    shown = axis.imshow(values, origin="lower", vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            text = f"invalid\n{cell.invalid}/{cell.delta.size}" if cell.invalid else f"{cell.index:.2f}"
            axis.text(j, i, text, ha="center", va="center", color="white" if cell.index < 0.6 else "black")
    axis.set_xticks(range(len(delays)), [f"{d:g}" for d in delays])
    axis.set_yticks(range(len(rates)), [f"{r:g}" for r in rates])
    axis.set(xlabel="latency δ", ylabel="rate λ", title="Phase diagram: Δ")
    figure.colorbar(shown, ax=axis)


def tabular(
    figure: Canvas,
    index: Mapping[str, Floats],
    rates: Sequence[float],
    delays: Sequence[float],
    cells: Sequence[Sequence[Cell]],
    shocked: Sequence[tuple[str, Trace, int]],
) -> None:
    """Plot collusion indices of all runs, the small phase diagram, and price traces with a shock."""
    bars, map_, *traces = figure.subplots(1, 2 + len(shocked), width_ratios=(1, 1, *[1] * len(shocked)))
    for k, values in enumerate(index.values()):
        named = k == 0
        bars.bar(k, values.mean(), color="C0", alpha=0.4, label="mean" if named else None)
        bars.plot(k + np.linspace(-0.3, 0.3, values.size), values, ".", color="C0", ms=3,
                  label="a seed" if named else None)  # fmt: skip
    bars.axhline(1, color="0.5", lw=0.8, ls=":", label="joint monopoly")
    bars.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.1))
    bars.set_xticks(range(len(index)), list(index), rotation=30, ha="right")
    bars.set(ylabel="collusion index Δ", title="Q-learning sellers")
    phase(figure, map_, rates, delays, cells)
    for axis, (name, trace, at) in zip(traces, shocked, strict=True):
        begin = max(at - 30, 0)
        for firm in range(2):
            axis.step(trace.time[begin:], trace.prices[begin:, firm], where="post", label=f"firm {firm}")
        axis.axvline(trace.time[at], color="k", lw=0.5, label="shock")
        axis.set(xlabel="time", ylabel="price")
        axis.set_title(f"Prices, shock\n{name}", fontsize=8)
        axis.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.15))


def deep(figure: Canvas, found: Sequence[tuple[Line, Trained]]) -> None:
    """Index of each line beside its box's midpoint; learning curves of four lines."""
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    for k, (_, done) in enumerate(found):
        left.plot(done.delta, np.full(done.delta.size, k), ".", color="C0", ms=3, label="a seed" if k == 0 else None)
        left.plot(done.delta.mean(), k, "o", color="C0", label="mean" if k == 0 else None)
        left.plot(done.delta_mid, k, "|", color="k", ms=12, label="box's midpoint" if k == 0 else None)
    left.set_yticks(range(len(found)), [line.name for line, _ in found], fontsize=8)
    left.invert_yaxis()
    left.set(xlabel="collusion index Δ", title="DDPG sellers")
    left.legend(fontsize=7, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    for line, done in found[:4]:
        window = max(done.trace.shape[1] // 100, 1)
        prices = done.trace[..., 3].mean(0)
        smooth = np.convolve(prices, np.ones(window) / window, "valid")
        right.plot(np.arange(smooth.size), smooth, label=line.name.split(", ", 1)[-1], lw=0.8)
    right.set(xlabel="price settings", ylabel="mean price", title="Price traces, first box")
    right.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.13))


def divergence(figure: Canvas, rows: Sequence[tuple[str, Singles]], limit: float) -> None:
    """Plot the largest |target| so far of the worst run of each row."""
    axis = figure.subplots(1, 1)
    for k, (name, tops) in enumerate(rows):
        worst = np.maximum.accumulate(np.nan_to_num(tops, nan=0, posinf=1e6), 1).max(0)
        # some lie on one another: wide ones below, dashed ones above
        axis.plot(np.maximum(worst, 1e-3), "--" if k % 2 else "-", label=name, lw=1.2 if k % 2 else 2.4)
    axis.axhline(limit, color="k", lw=1, ls=":", label="the detector's limit")
    axis.set(
        yscale="log",
        ylim=(1e-2, None),
        xlabel="price settings",
        ylabel="largest |target| so far",
        title="Critics that run away",
    )
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
