"""The figures of a comparison: accuracy against lag, learning curves at each lag, collapse."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import numpy as np

from stretto.observe.canvas import Canvas
from stretto.observe.confidence import t_interval
from stretto.sweep.compare import Comparison


def svg(fill: Callable[[Canvas], None], width: float, height: float) -> str:
    """What ``fill(figure)`` plots, as the text of an SVG element for an HTML page."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "stretto", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        fill(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.DOTALL)


def colours(comparison: Comparison) -> dict[str, tuple[float, float, float]]:
    """One colour for each objective, by label."""
    from matplotlib import colormaps

    palette = colormaps["tab20"].colors  # type: ignore[attr-defined]
    order = [*palette[0::2], *palette[1::2]]
    return {arm.label: order[i % len(order)] for i, arm in enumerate(comparison.arms)}


def accuracy_by_lag(comparison: Comparison, figure: Canvas) -> None:
    """Final and mean accuracy of each objective at each lag, with 95 % intervals."""
    colour = colours(comparison)
    places = np.arange(len(comparison.lags))
    for axes, kind, title in zip(
        figure.subplots(1, 2, sharey=True),
        ("final", "area"),
        ("At the end", "Mean over the run (area under the curve)"),
        strict=True,
    ):
        for i, arm in enumerate(comparison.arms):
            values = np.array([getattr(comparison.point(arm.label, lag), kind) for lag in comparison.lags])
            shift = (i - (len(comparison.arms) - 1) / 2) * 0.5 / max(len(comparison.arms), 1)
            spread = np.nan_to_num(np.abs(values[:, 1:] - values[:, :1]).T)
            axes.errorbar(places + shift, values[:, 0], spread, fmt="o-", ms=3, lw=1, capsize=1.5,
                          color=colour[arm.label], label=arm.label)  # fmt: skip
        axes.set_xticks(places, [str(lag) for lag in comparison.lags])
        axes.set(xlabel="lag in versions", title=title, ylim=(-0.02, 1.02))
    figure.axes[0].set_ylabel("held-out accuracy")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)


def curves(comparison: Comparison, figure: Canvas) -> None:
    """Held-out accuracy over the steps, a panel per lag, mean over seeds with a band of 95 %."""
    colour = colours(comparison)
    panels = np.atleast_1d(figure.subplots(1, len(comparison.lags), sharey=True))
    for axes, lag in zip(panels, comparison.lags, strict=True):
        for arm in comparison.arms:
            runs = [r["accuracy"] for r in comparison.records if (r["arm"], r["lag"]) == (arm.label, lag)]
            steps = sorted({step for run in runs for step, _ in run})
            tables = [{int(at): value for at, value in run} for run in runs]
            rows = [t_interval([table.get(int(step), 0.0) for table in tables]) for step in steps]
            if not rows:
                continue
            mean, low, high = np.array(rows).T
            axes.plot(steps, mean, color=colour[arm.label], lw=1.2, label=arm.label)
            axes.fill_between(steps, low, high, color=colour[arm.label], alpha=0.08, lw=0)
        axes.set(title=f"lag {lag}", xlabel="step", ylim=(-0.02, 1.02))
    panels[0].set_ylabel("held-out accuracy")


def collapse_map(comparison: Comparison, figure: Canvas) -> None:
    """Plot the share of seeds that collapsed, objectives against lags."""
    axes = figure.subplots()
    points = [[comparison.point(arm.label, lag) for lag in comparison.lags] for arm in comparison.arms]
    share = np.array([[p.collapsed / p.seeds for p in row] for row in points])
    axes.imshow(share, cmap="Reds", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(comparison.lags)), [str(lag) for lag in comparison.lags])
    axes.set_yticks(range(len(comparison.arms)), [arm.label for arm in comparison.arms])
    axes.set(xlabel="lag in versions", title="Share of seeds that collapsed")
    for (i, j), value in np.ndenumerate(share):
        axes.text(j, i, f"{value:.1f}", ha="center", va="center", color="white" if value > 0.6 else "black")


def off_policy(comparison: Comparison, figure: Canvas) -> None:
    """Effective sample size and KL of behaviour and current policy over the steps at the largest lag."""
    colour = colours(comparison)
    lag = comparison.lags[-1]
    for axes, name, title in zip(
        figure.subplots(1, 2),
        ("ess", "off_policy/kl"),
        ("Effective sample size / tokens", "KL(behaviour || current), nats"),
        strict=True,
    ):
        for arm in comparison.arms:
            runs = [r["series"][name] for r in comparison.records if (r["arm"], r["lag"]) == (arm.label, lag)]
            width = max((len(run) for run in runs), default=0)
            padded = np.full((len(runs), width), np.nan)
            for row, run in zip(padded, runs, strict=True):
                row[: len(run)] = [np.nan if x is None else x for x in run]
            if padded.size and not np.isnan(padded).all():
                known = ~np.isnan(padded)
                mean = np.where(known, padded, 0.0).sum(0) / np.maximum(known.sum(0), 1)
                axes.plot(mean, color=colour[arm.label], lw=1)
        axes.set(title=f"{title}, lag {lag}", xlabel="step")
        if name != "ess":
            axes.set_yscale("symlog", linthresh=1e-3)
