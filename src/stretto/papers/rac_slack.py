"""RAC's slack, exactly: bias against missing mass, the queue, waiting, learning, and what clipping does to them."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.observe.confidence import t_interval
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.drawing import legend_below
from stretto.tabular.delay import Delays
from stretto.tabular.mdp import uniform_policy, value_iteration
from stretto.tabular.rac.late_reward_learning import LateRewardPPO
from stretto.tabular.rac.late_rewards import (
    LateRewardMDP,
    LateRewards,
    advantage,
    advantage_bias,
    arrival_mass,
    clipped_mean,
    rac5,
    soft_policy_bias,
    waiting_mass,
    waiting_time,
)

Q, PHI = 0.3, 0.99086
WAITS = range(21)
MASSES = (0.0, 0.5, 0.9, 0.979)
DROPPED = {1: 0.794150, 2: 1.802140, 4: 1.716636}
SOFT = [1.743851, 0.408129, 0.094227, 0.020209]
ARMS = {
    "full": LateRewardPPO("full"),
    "drop": LateRewardPPO("drop"),
    "wait 0": LateRewardPPO("wait"),
    "wait 4": LateRewardPPO("wait", 4),
    "wait 10": LateRewardPPO("wait", 10),
    "rac": LateRewardPPO("rac"),
}
RHO_BARS = (1.0, 1.2, 2.0, 5.0)


def slack(settings: Settings) -> Outcome:
    """The checks of the slack's formulas: mass, bias, queue, waiting, soft policies, and learning with late rewards."""
    mass = arrival_mass(Q, PHI)
    factors = _factors(mass)
    slacks = np.linspace(0, 1, 21)
    line, away = _line(slacks)
    soft = [soft_policy_bias(rac5(2), r) for r in MASSES]
    worst = max(_queue_error(s, last) for s in settings.range(4, 2) for last in (None, 6))
    two = rac5(2)
    whole = line[2]
    waits = np.array([[waiting_time(Q, w, 2), (1 - waiting_mass(Q, w)) * whole] for w in WAITS])
    rac_bias = (1 - mass) * whole
    beaten = [w for w in WAITS if waits[w, 0] >= 1 and waits[w, 1] > rac_bias]
    nearest = [len(beaten), *waits[len(beaten)].tolist()] if len(beaten) < len(WAITS) else []
    learnt = _learnt(two, settings)
    settings.say(f"RAC: {len(beaten)} of {len(WAITS)} waits are no faster and more biased")
    clipped = _clipped(settings.first_seed)
    checks = [
        Check("(1) bias with all of 1, 2, 4 channels dropped", [factors[c][0] for c in DROPPED], "as given to 1e-6",
              list(DROPPED.values()), all(abs(factors[c][0] - v) < 1e-6 for c, v in DROPPED.items())),
        Check("(1) factor against dropping by 1-4 channels, equal mass .979119", [f[1] for f in factors.values()],
              "1 / (1 - R) = 47.89 to 1e-6 relative", 47.89,
              all(abs(f[1] * (1 - mass) - 1) < 1e-6 for f in factors.values())),
        Check("(1) factor by 1-4 channels, unequal mass", [f[2] for f in factors.values()], "reported"),
        Check("(2) bias on slack: slope over |A_slow|, intercept", [line[0] / whole, line[1]], "1 and 0 to 1e-9",
              [1, 0], abs(line[0] / whole - 1) < 1e-9 and abs(line[1]) < 1e-9),
        Check("(2) bias on slack: 1 - R^2", away, "< 1e-12", 0, away < 1e-12),
        Check("soft-optimal policy, L1 bias by R = 0, .5, .9, .979", soft, "as given to 1e-6", SOFT,
              bool(np.abs(np.array(soft) - SOFT).max() < 1e-6)),
        Check("(3) queue's mass against the formula, worst in standard errors", worst, "<= 4", None, worst <= 4),
        Check("(4) waits W that take as long as RAC or longer and are more biased", beaten, "at least one", None,
              bool(beaten)),
        Check("(4) RAC: time, bias; first W with less bias: W, time, bias",
              [1.0, rac_bias, *nearest], "reported"),
        Check("(5) J after 100 and 400 units of time (best: 18.60): mean over seeds, +- 95 %", learnt, "reported"),
        Check("(6) E[min(rho_bar, rho)], mean over states, by rho_bar 1, 1.2, 2, 5: mean, 5 %, 95 % over policies",
              clipped.tolist(), "reported", ".7-.85, -, .8-1, 1"),
    ]  # fmt: skip
    notes = [
        "The bias plotted is the largest error of an advantage: linear in the slack. The soft-optimal policy's is only "
        f"asymptotically linear: a factor of {soft[0] / soft[3]:.0f} at R = .979, where the advantage's is "
        f"{1 / (1 - MASSES[3]):.1f}.",
        "(5) W = 0 uses what is there at once, a share of .3 of each channel, and that orders the actions nearly right "
        "here: it comes close to correcting in the end. Dropping the channels doesn't.",
        "(6) Off policy the clipped ratio isn't unbiased, and the identity holds for what it weighs: see that row.",
    ]

    def plot(figure: Canvas) -> None:
        left, middle, right = figure.subplots(1, 3)
        bias = [np.abs(advantage_bias(two, uniform_policy(two.mdp), 1 - s)).max() for s in slacks]
        left.plot(slacks, bias, "o", label="advantage, largest error")
        left.plot(slacks, slacks * whole, "k-", lw=1, label="slack x |A_slow|")
        left.plot(slacks, [soft_policy_bias(two, 1 - s) for s in slacks], "s-", ms=3, label="soft policy, L1")
        left.set(xlabel="slack 1 - R", ylabel="bias", title="Bias by missing mass")
        legend_below(left, 1)
        middle.plot(*waits.T, "o-", label="wait, W = 0-20")
        middle.plot([1], [rac_bias], "*", ms=12, label="RAC")
        middle.set(yscale="log", xlabel="time of a step", ylabel="advantage bias", title="Waiting or correcting")
        legend_below(middle)
        names = list(ARMS)
        for i, time in enumerate(("100", "400")):
            right.bar(
                np.arange(len(names)) + 0.4 * i - 0.2, [learnt[f"{a}, {time}"][0] for a in names], 0.4, label=time
            )
        right.axhline(float(two.mdp.start @ value_iteration(two.with_mass(1.0))[0]), color="k", lw=1, label="best")
        right.set_xticks(range(len(names)), names, rotation=45)
        right.set(ylabel="J of the final policy", title="Learning, by time")
        legend_below(right, 3)

    return Outcome(checks, notes, plot)


def _factors(mass: float) -> dict[int, tuple[float, float, float]]:
    """By number of channels: bias with all dropped, factor at equal ``mass``, factor at masses that differ."""
    out = {}
    for channels in range(1, 5):
        world = rac5(channels)
        policy = uniform_policy(world.mdp)
        unequal = [arrival_mass(q, PHI) for q in (0.3, 0.5, 0.15, 0.8)[:channels]]
        none, equal, other = (np.abs(advantage_bias(world, policy, r)).max() for r in (0.0, mass, unequal))
        out[channels] = (float(none), float(none / equal), float(none / other))
    return out


def _line(slacks: Floats) -> tuple[tuple[float, float, float], float]:
    """(slope, intercept, largest |A_slow|) of the learner's largest advantage error on the slack, and 1 - R^2. The
    error is that of solving the process which pays the arrived mass against the one that pays all."""
    world = rac5(2)
    policy = uniform_policy(world.mdp)
    true = advantage(world.with_mass(1.0), policy)
    bias = np.array([np.abs(advantage(world.with_mass(1 - s), policy) - true).max() for s in slacks])
    slow = advantage(world.with_mass(1.0), policy) - advantage(world.with_mass(0.0), policy)
    line = stats.linregress(slacks, bias)
    rest = bias - line.slope * slacks - line.intercept  # 1 - R^2 of 1e-20 is lost in SciPy's R
    away = float((rest**2).sum() / ((bias - bias.mean()) ** 2).sum())
    return (float(line.slope), float(line.intercept), float(np.abs(slow).max())), away


def _queue_error(seed: int, last: int | None, items: int = 10_000) -> float:
    """Standard errors between a simulated queue's mean weight and the formula."""
    queue: LateRewards[int] = LateRewards(decay=PHI, last=last)
    for t, delay in enumerate(Delays("geometric", 1 / Q - 1, seed).first(items)):
        queue.push(t, t, int(delay))
        queue.due(t)
    queue.due(items + 10_000)
    mass, square = arrival_mass(Q, PHI, last), arrival_mass(Q, PHI**2, last)
    return abs(queue.injected / items - mass) / math.sqrt((square - mass**2) / items)


def _learnt(world: LateRewardMDP, settings: Settings) -> dict[str, list[float]]:
    """[mean, half of its 95 % interval] over seeds, by arm and time."""
    out = {}
    for time in (100, 400):
        for name, arm in ARMS.items():
            mean, _, high = t_interval([float(arm.train(world, time, s)[0]) for s in settings.range(8, 2)])
            out[f"{name}, {time}"] = [mean, high - mean]
    return out


def _clipped(seed: int) -> Floats:
    """[rho_bars, 3]: mean, 5 % and 95 % over 200 pairs of policies from Dirichlet(3)."""
    pairs = np.random.default_rng(seed).dirichlet(np.full(3, 3.0), (200, 2, 5))
    means = np.array([[clipped_mean(mu, pi, bar).mean() for mu, pi in pairs] for bar in RHO_BARS])
    return np.stack([means.mean(1), *np.percentile(means, [5, 95], axis=1)], 1)
