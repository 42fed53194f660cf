"""Closed-loop PPO, part ``ppo-rate``: both errors against the number of iterations, and the value that is reached."""

from __future__ import annotations

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.closed_loop_ppo_update import update_checks
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, TabularPPO, layered, ppo_tabular
from stretto.tabular.ppo.measure import late_mean, running_mean
from stretto.tabular.ppo.oracle import gain, optimal_gain
from stretto.tabular.slopes import Slope, log_spaced, loglog_slope

TWO_SCALES, ONE_SCALE = (0.6, 0.4), (0.5, 0.5)
LATE = {"none": None, "4": Lateness(Delays("constant", 4)), "random, <= 4": Lateness(Delays("geometric", 2), most=4)}
LINES = (  # a0, (actor, critic) exponents, delay of the pair, slopes of our reference run
    (2.0, TWO_SCALES, "none", (-0.78, -0.41, -0.43)),
    (2.0, ONE_SCALE, "none", (-0.90, -0.55, -0.55)),
    (0.5, TWO_SCALES, "none", None),
    (2.0, TWO_SCALES, "4", (-0.81, -0.43, -0.44)),
    (2.0, TWO_SCALES, "random, <= 4", None),
)  # fmt: skip
COLUMNS = ("mean of |grad J|^2 up to t", "critic error at t", "its mean over [t/2, t]")
DECADES = 1.9
ENOUGH = {2.0: 0.97, 0.5: 0.8}
"""Share of J* - J_uniform that a run must have gained at its end, by a0."""
Curve = tuple[tuple[Floats, Floats, Floats], list[Slope]]


def rate(settings: Settings) -> Outcome:
    """Do both errors fall at least as fast as claimed under the two-time-scale schedule, also with a late pair, while J
    comes near J*; and is one update the sum of its exact parts?"""
    world, iterations, seeds = layered(0), 25_000 if settings.quick else 50_000, settings.range(16)
    low, span = gain(world, world.uniform()), optimal_gain(world) - gain(world, world.uniform())
    at = log_spaced(iterations, 40)
    checks = update_checks(world, settings)
    curves: dict[str, Curve] = {}
    for a0, powers, late, expected in LINES[:3] if settings.quick else LINES:
        name = f"a0 = {a0:g}, powers {powers[0]:g}, {powers[1]:g}, delay {late}"
        settings.say(f"ppo-rate: {name}")
        options = TabularPPO(actor_step=a0, actor_power=powers[0], critic_power=powers[1])
        runs = ppo_tabular(world, options, iterations, seeds, LATE[late])
        records = (running_mean(runs.slope, at), runs.error[:, at], late_mean(runs.error, at))
        curves[name] = (records, [loglog_slope(at, record, DECADES) for record in records])
        checks.append(_slopes(name, curves[name][1], expected, powers == TWO_SCALES))
        share = float((runs.gain[:, -1].mean() - low) / span)
        checks.append(Check(f"{name}: share of J* - J(uniform) gained at the end", share, f">= {ENOUGH[a0]:g}", 1.0,
                            share >= ENOUGH[a0]))  # fmt: skip
    two, one = list(curves.values())[:2]
    ahead = {column: round(one[1][j].value - two[1][j].value, 3) for j, column in enumerate(COLUMNS)}
    checks.append(Check("two time scales better than one: slope of one less that of two", ahead,
                        "the effect: positive", absent=max(ahead.values()) < 0,
                        paper="two time scales: O(T^-2/5)", where="abstract"))  # fmt: skip
    notes = ["The bound for two time scales is a worst case; a negative difference of slopes says that one time scale, "
             "(1/2, 1/2), decays faster on this instance.",
             "The running mean of the critic error isn't used: its first 100 iterations dominate it.",
             "Rates hold without the clip and without the critic as well: what asks for them is a single update, "
             "compared with its exact parts."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        titles = (COLUMNS[0], "critic error, mean over [t/2, t]")
        for axis, title, j in zip(figure.subplots(1, 2), titles, (0, 2), strict=True):
            for name, (records, slopes) in curves.items():
                axis.loglog(at, records[j].mean(0), label=f"{name}: {slopes[j].value:.2f}")
            level = two[0][j].mean(0)[-1]
            axis.loglog(at, 2 * level * (at / at[-1]) ** -0.4, "k--", label="t^-2/5")
            axis.set(xlabel="iteration t", title=title)
            bottom, top = axis.get_ylim()
            axis.set_ylim(bottom / (top / bottom) ** 0.7, top)  # room below for the names
            axis.legend(fontsize=7, loc="lower left")

    return Outcome(checks, notes, plot)


def _slopes(name: str, slopes: list[Slope], expected: tuple[float, ...] | None, two_scales: bool) -> Check:
    figures = {
        column: [round(x, 3) for x in (s.value, s.low, s.high)] for column, s in zip(COLUMNS, slopes, strict=True)
    }
    stationarity, now, later = slopes
    fits = stationarity.value <= -0.33 and all(s.low <= -0.3 and s.high >= -0.5 for s in (now, later))
    condition = "<= -.33; the critic's 95 % intervals meet [-.5, -.3]" if two_scales else "reported"
    return Check(f"{name}: slopes", figures, condition, expected, fits if two_scales else None,
                 paper="<= -2/5 each" if two_scales else None, where="abstract" if two_scales else "")  # fmt: skip
