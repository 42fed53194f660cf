"""The figures of the potential-games experiment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.observe.canvas import Canvas


def plot_alpha(
    figure: Canvas,
    table: Mapping[float, tuple[float, float]],
    by_kappa: Mapping[float, tuple[float, float, float]],
    by_floor: Mapping[float, float],
    by_bias: Mapping[float, float],
) -> None:
    """Alpha and bound over kappa; what alpha, the floor and an oracle's bias leave of the gap."""
    bound, ends, floors, biases = figure.subplots(1, 4)
    kappas = list(table)
    bound.plot(kappas, [table[k][1] for k in kappas], "--", color="C1", label="bound")
    bound.plot(kappas, [table[k][0] for k in kappas], "o-", color="C0", label="alpha, enumerated")
    bound.set(xlabel="kappa", ylabel="alpha", title="alpha by kappa")
    bound.legend(fontsize=7)
    for place, name in ((1, "exact updates"), (2, "online, 1e5 steps")):
        ends.plot([v[0] for v in by_kappa.values()], [v[place] for v in by_kappa.values()], "o-", label=name)
    ends.set(xlabel="alpha", ylabel="final gap", ylim=(0, None), title="gap by alpha")
    ends.legend(fontsize=7, loc="center")
    floors.loglog(list(by_floor), list(by_floor.values()), "o-", label="exact updates")
    floors.loglog(list(by_floor), [10 * f for f in by_floor], "--", label="floor x actions\nx horizon")
    floors.set(xlabel="floor", title="gap by floor")
    floors.legend(fontsize=7, loc="lower right")
    biases.plot(list(by_bias), list(by_bias.values()), "o-", label="exact updates")
    biases.plot(list(by_bias), [5 * b for b in by_bias], "--", label="bias x horizon")
    biases.set(xlabel="bias of action 0", ylim=(0, 2.5), title="gap by bias")
    biases.legend(fontsize=7)


def plot_regret(figure: Canvas, curves: Mapping[str, tuple[Ints, Floats]], rate: float, label: str) -> None:
    """Mean regret and range over seeds on logarithmic axes, with the bound's rate through the last point."""
    axes = figure.subplots()
    for name, (times, regret) in curves.items():
        mean = np.asarray(regret).mean(0)
        (line,) = axes.loglog(times, mean, label=f"{name}, mean")
        axes.fill_between(times, np.min(regret, 0), np.max(regret, 0), color=line.get_color(), alpha=0.15,
                          label=f"{name}, range over seeds")  # fmt: skip
        late = times >= times[-1] / 1000
        axes.loglog(times[late], mean[-1] * (times[late] / times[-1]) ** rate, "--", color=line.get_color(),
                    label=f"{name}, slope {rate:.3f} of the bound")  # fmt: skip
    axes.set(xlabel=label, ylabel="Nash regret", title="Nash regret, mean over seeds")
    axes.legend()


def plot_jobs(figure: Canvas, paths: Mapping[float, Mapping[int, float]]) -> None:
    """Plot the exact Nash gap over rounds of the job-scheduling game, by step size."""
    axes = figure.subplots()
    for eta, path in paths.items():
        rounds = np.array(list(path))
        axes.loglog(rounds + 1, list(path.values()), label=f"eta = {eta:g}")
    axes.axhline(0.003, color="grey", ls=":", lw=1, label="asked for at round 1000")
    axes.set(xlabel="round + 1", ylabel="Nash gap", title="Job scheduling, exact simultaneous updates")
    axes.legend()
