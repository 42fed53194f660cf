"""Closed-loop PPO-Clip: rates of actor and critic, how late a critic may be, coverage and depth, parts of the error.

Worlds, step sizes and schedules are ours [inferred]: the paper's abstract names mechanisms and rates, no instance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.tabular.collapse.stability import spectral_radius
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, Layered, TabularPPO, layered, lock, ppo_tabular
from stretto.tabular.ppo import delay_oracle as exact
from stretto.tabular.ppo.coupling import split_update
from stretto.tabular.ppo.measure import growth, late_mean, running_mean
from stretto.tabular.ppo.oracle import gain, gradient, occupancy, optimal_gain
from stretto.tabular.slopes import Slope, log_spaced, loglog_slope

TWO_SCALES, ONE_SCALE = (0.6, 0.4), (0.5, 0.5)
LATE = {"none": None, "4": Lateness(Delays("constant", 4)), "random, <= 4": Lateness(Delays("geometric", 2), most=4)}
LINES = (  # a0, (actor, critic) exponents, delay of the pair, the published slopes
    (2.0, TWO_SCALES, "none", (-0.78, -0.41, -0.43)),
    (2.0, ONE_SCALE, "none", (-0.90, -0.55, -0.55)),
    (0.5, TWO_SCALES, "none", None),
    (2.0, TWO_SCALES, "4", (-0.81, -0.43, -0.44)),
    (2.0, TWO_SCALES, "random, <= 4", None),
)  # fmt: skip
COLUMNS = ("mean of |grad J|^2 up to t", "critic error at t", "its mean over [t/2, t]")
DECADES = 1.9
STATIONARY = {0: (0.049823, 0.135702, 0.712737), 2: (0.016757, 0.048249, 0.246448), 16: (0.002580, 0.007382, 0.035584)}
FRACTIONS, BEYOND, BATCH = (0.25, 0.5, 0.9), 1.15, 64
EARLY = 50
COVERED, LOCKS = {2: 6.1e3, 4: 10.8e3, 8: 34e3}, {2: 80, 3: 240, 4: 780, 5: 5.8e3}


def rate(settings: Settings) -> Outcome:
    """Part ``ppo-rate``: do both errors fall at least as T^-1/3 under the two-time-scale schedule, also with a late
    pair?"""
    world, iterations, seeds = layered(0), 25_000 if settings.quick else 50_000, settings.range(16)
    at = log_spaced(iterations, 40)
    checks: list[Check] = []
    curves: dict[str, tuple[tuple[Floats, Floats, Floats], list[Slope]]] = {}
    for a0, (actor, critic), late, published in LINES[:3] if settings.quick else LINES:
        name = f"a0 = {a0:g}, powers {actor:g}, {critic:g}, delay {late}"
        settings.say(f"ppo-rate: {name}")
        options = TabularPPO(actor_step=a0, actor_power=actor, critic_power=critic)
        runs = ppo_tabular(world, options, iterations, seeds, LATE[late])
        records = (running_mean(runs.slope, at), runs.error[:, at], late_mean(runs.error, at))
        curves[name] = (records, [loglog_slope(at, record, DECADES) for record in records])
        figures = {column: _interval(slope) for column, slope in zip(COLUMNS, curves[name][1], strict=True)}
        gradient_rate, now, later = (slope.value for slope in curves[name][1])
        fits = gradient_rate <= -0.33 and later <= -0.33 and -0.5 <= now <= -0.3
        two = (actor, critic) == TWO_SCALES
        checks.append(Check(f"{name}: slopes", figures, "first and last <= -.33, critic at t in [-.5, -.3]" if two
                            else "reported", published, fits if two else None))  # fmt: skip
    both = list(curves.values())
    ahead = {column: round(both[1][1][j].value - both[0][1][j].value, 3) for j, column in enumerate(COLUMNS)}
    checks.append(Check("two time scales better than one: slope of one less that of two", ahead,
                        "the effect: positive", absent=max(ahead.values()) < 0))  # fmt: skip
    notes = ["The bound for two time scales is a worst case; a negative difference of slopes says that one time scale, "
             "(1/2, 1/2), decays faster on this instance.",
             "The running mean of the critic error isn't used: its first 100 iterations dominate it."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        titles = (COLUMNS[0], "critic error, mean over [t/2, t]")
        for axis, title, j in zip(figure.subplots(1, 2), titles, (0, 2), strict=True):
            for name, (records, slopes) in curves.items():
                axis.loglog(at, records[j].mean(0), label=f"{name}: {slopes[j].value:.2f}")
            level = next(iter(curves.values()))[0][j].mean(0)[-1]
            axis.loglog(at, 2 * level * (at / at[-1]) ** -0.4, "k--", label="t^-2/5")
            axis.set(xlabel="iteration t", title=title)
            axis.legend(fontsize=7)

    return Outcome(checks, notes, plot)


def delay(settings: Settings) -> Outcome:
    """The critic error of a frozen actor is the one that the second-moment oracle gives, and beyond the delay threshold
    it grows as the mean dynamics say."""
    world, seeds = layered(0), settings.range(16)
    uniform = world.uniform()
    d = float(occupancy(world, uniform).max())
    length, kept, fractions = (3000, 2000, (0.5,)) if settings.quick else (6000, 4000, FRACTIONS)

    def level(tau: int, fraction: float) -> float:
        step = fraction * exact.largest_step(world, uniform, tau)
        return exact.stationary_critic_error(world, uniform, step, BATCH, tau)

    checks: list[Check] = []
    levels: dict[int, list[float]] = {}
    for tau, published in STATIONARY.items():
        settings.say(f"ppo-delay: tau = {tau}")
        limit = exact.largest_step(world, uniform, tau)
        table = [level(tau, f) for f in FRACTIONS]
        levels[tau] = [float(_frozen(world, f * limit, tau, length, seeds)[:, -kept:].mean()) for f in fractions]
        ratios = [seen / level(tau, f) for seen, f in zip(levels[tau], fractions, strict=True)]
        off = max(abs(ratio - 1) for ratio in ratios)
        wrong = float(np.abs(np.array(table) / published - 1).max())
        checks.append(Check(f"tau = {tau}: exact critic error at .25, .5, .9 of the threshold", table,
                            "as tabulated, to the digits shown", published, wrong < 5e-4))  # fmt: skip
        checks.append(Check(f"tau = {tau}: simulated over exact, {fractions}", ratios, "within 5 %", None, off < 0.05))
        step = BEYOND * limit
        predicted = exact.mean_growth(world, uniform, step, tau)
        most, folds = (4000, 100) if settings.quick else (6000, 250)  # e^(2 folds) is still a float
        grown = growth(_frozen(world, step, tau, int(min(most, folds / predicted)), seeds))
        bounded = math.isfinite(level(tau, BEYOND))
        single = exact.sampled_growth(d, step, BATCH)
        condition = "within 5 % of the mean's, no stationary error" if tau else "reported: visits slow a single run"
        checks.append(Check(f"tau = {tau}: growth at 1.15 of the threshold", grown, condition,
                            predicted if tau else {"mean": predicted, "single run": single},
                            (abs(grown / predicted - 1) < 0.05 and not bounded) if tau else None))  # fmt: skip
    rule = {t: 1.3 / (d * (2 * t + 1)) for t in (2, 16)}
    inside = [round(exact.stationary_critic_error(world, uniform, b, BATCH, t), 4) for t, b in rule.items()]
    few = exact.second_moment_operator(d, 0.9 * exact.largest_step(world, uniform, 0), 8, 0)
    notes = [f"The simple rule beta max d (2 tau + 1) <= 1 is sufficient, not necessary: 1.3 times beyond it the "
             f"stationary error is {inside[0]} at tau = 2, {inside[1]} at 16.",
             f"With 8 episodes, no delay and .9 of the threshold the second moment grows by {spectral_radius(few):.3f} "
             "an iteration (above 1: there is no stationary level to simulate)."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis, map_ = figure.subplots(1, 2)
        for tau in STATIONARY:
            f = np.linspace(0.05, 1.0, 60)
            axis.semilogy(f, [level(tau, x) for x in f], label=f"tau = {tau}, exact")
            axis.semilogy(fractions, levels[tau], "ko", ms=3)
        axis.set(
            xlabel="critic step / threshold", ylabel="stationary critic error", title="Frozen actor; points: simulated"
        )
        axis.legend(fontsize=7)
        taus, steps = np.arange(17), np.geomspace(0.1, 8, 60)
        cells = [[exact.stationary_critic_error(world, uniform, b, BATCH, int(t)) for t in taus] for b in steps]
        shown = map_.pcolormesh(taus, steps, np.log10(np.where(np.isfinite(cells), cells, np.nan)), shading="nearest")
        figure.colorbar(shown, ax=map_, label="log10 critic error (white: none)")
        map_.plot(taus, [exact.largest_step(world, uniform, int(t)) for t in taus], "r", label="threshold of the mean")
        map_.plot(taus, 1 / (2 * taus + 1) / d, "k--", label="beta max d (2 tau + 1) = 1")
        map_.set(xlabel="delay tau", ylabel="critic step", yscale="log", ylim=(steps[0], steps[-1]), xticks=taus[::4])
        map_.set_title("Stationary critic error")
        map_.legend(fontsize=7)

    return Outcome(checks, notes, plot)


def horizon(settings: Settings) -> Outcome:
    """Episodes to a return: polynomial in the depth where every state is covered, a factor A a layer on the lock."""
    seeds = settings.range(16)
    covered = {}
    for layers in COVERED:
        world = layered(0, layers)
        low = gain(world, world.uniform())
        covered[layers] = _episodes(world, low + 0.9 * (optimal_gain(world) - low), seeds)
        settings.say(f"ppo-horizon: covered, {layers} layers")
    locks = {layers: _episodes(lock(layers), 0.5, seeds) for layers in LOCKS}
    fit = loglog_slope(list(covered), np.stack(list(covered.values()), 1))
    middle = {h: float(np.median(e)) for h, e in covered.items()}
    medians = {h: float(np.median(e)) for h, e in locks.items()}
    slope = float(stats.linregress(np.log(list(middle)), np.log(list(middle.values()))).slope)
    factors = {h: medians[h] / medians[h - 1] for h in LOCKS if h >= 4}
    actions = lock(2).actions
    checks = [
        Check("covered: median episodes to 90 % of the gain, by layers", middle, "reported", COVERED),
        Check("covered: log-log slope of the medians (of the means, interval)", [slope, _interval(fit)], "slope <= 3",
              1.2, slope <= 3),
        Check("lock: median episodes to J >= .5, by layers", medians, "reported", LOCKS),
        Check("lock: factor a layer, layers >= 4", factors, f"each >= {actions}", None,
              min(factors.values()) >= actions),
    ]  # fmt: skip
    start = [float(f"{(gradient(lock(h), lock(h).uniform()) ** 2).sum():.2g}") for h in (2, 8)]
    notes = [f"Stationarity is no success measure on the lock: |grad J|^2 at the start falls from {start[0]} to "
             f"{start[1]} between 2 and 8 layers, a plateau. Episodes to a return are counted instead."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis = figure.subplots()
        for name, found in (("covered", covered), ("lock", locks)):
            axis.loglog(list(found), [np.median(e) for e in found.values()], "o-", label=name)
            for h, e in found.items():
                axis.loglog([h] * len(e), e, "k.", ms=2)
        axis.set(xlabel="layers", ylabel="episodes to the goal", title="Depth; points: single seeds")
        axis.set_xticks([2, 3, 4, 5, 8], ["2", "3", "4", "5", "8"], minor=False)
        axis.minorticks_off()
        axis.legend()

    return Outcome(checks, notes, plot)


def coupling(settings: Settings) -> Outcome:
    """Reported: epochs, clip and batch size against both errors, and where the first epoch's error comes from."""
    world, seeds, length, tau = layered(0), settings.range(16, 4), 500 if settings.quick else 2000, 4
    changes = {
        "default": TabularPPO(), "E = 1": TabularPPO(epochs=1), "E = 4": TabularPPO(epochs=4),
        "E = 8": TabularPPO(epochs=8), "c = .05": TabularPPO(clip=0.05), "c = .02": TabularPPO(clip=0.02),
        "no clip": TabularPPO(clip=1e9), "n = 2": TabularPPO(episodes=2), "n = 32": TabularPPO(episodes=32),
    }  # fmt: skip
    shares: dict[str, dict[str, float]] = {}
    checks = []
    for name, options in changes.items():
        runs = ppo_tabular(world, options, length, seeds, _constant(tau))
        early = ppo_tabular(world, options, EARLY, seeds, _constant(tau))
        ends = zip(early.theta, early.old_theta, early.old_critic, strict=True)
        splits = [split_update(world, *end, options.lam, options.clip, options.episodes).squares for end in ends]
        shares[name] = {part: float(np.mean([s[part] for s in splits])) for part in splits[0]}
        found = {"mean |grad J|^2": runs.slope.mean(), "critic error": runs.error[:, length // 2 :].mean(),
                 "clipped, last epoch": runs.clipped[:, -1].mean(), **shares[name]}  # fmt: skip
        figures = {part: float(f"{value:.2g}") for part, value in found.items()}
        checks.append(Check(f"{name}: errors; squares of the first epoch's parts", figures, "reported"))
        settings.say(f"ppo-coupling: {name}")
    notes = [f"{length} iterations, delay {tau}. The parts are squared norms after {EARLY} iterations, means over "
             "seeds: stale samples, critic, clip are exact biases; batch is the variance of n episodes."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis = figure.subplots()
        parts = ("batch", "clip", "critic", "stale", "gradient")
        for k, part in enumerate(parts):
            axis.bar(np.arange(len(shares)) + 0.16 * k, [s[part] for s in shares.values()], 0.16, label=part)
        axis.set(yscale="log", ylim=(1e-10, None), ylabel="squared norm", title="First epoch: gradient, biases, batch")
        axis.set_xticks(np.arange(len(shares)) + 0.3, list(shares), fontsize=8)
        axis.legend(fontsize=7)

    return Outcome(checks, notes, plot)


PARTS = {"ppo-rate": rate, "ppo-delay": delay, "ppo-horizon": horizon, "ppo-coupling": coupling}


def reproduce(settings: Settings) -> Outcome:
    """All four parts: rate, delay, horizon, coupling."""
    return together(PARTS, settings)


def _constant(tau: int) -> Lateness:
    return Lateness(Delays("constant", tau))


def _interval(slope: Slope) -> list[float]:
    return [round(x, 3) for x in (slope.value, slope.low, slope.high)]


def _frozen(world: Layered, step: float, tau: int, length: int, seeds: Sequence[int]) -> Floats:
    """Critic errors [runs, T+1] under the uniform policy with a constant step."""
    options = TabularPPO(episodes=BATCH, epochs=0, critic_step=step, critic_power=0)
    return ppo_tabular(world, options, length, seeds, _constant(tau)).error


def _episodes(world: Layered, goal: float, seeds: Sequence[int]) -> Floats:
    """Episodes [runs] until J >= goal, looked at every 5 iterations; inf: not within 20000 iterations."""
    runs = ppo_tabular(world, TabularPPO(), 20_000, seeds, every=5, goal=goal)
    return np.where(runs.iterations < 20_000, runs.fresh, np.inf)
