"""``ppo_tabular``: closed-loop PPO-Clip with a learned critic on any layered world, many seeds at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, distinct_seeds, number
from stretto.tabular.delay import Delays
from stretto.tabular.ppo.kernel import learn
from stretto.tabular.ppo.options import TabularPPO
from stretto.tabular.ppo.worlds import Layered
from stretto.tabular.sampling import alias_table
from stretto.tabular.threads import start_threads

_NEVER = 2.0**52


@dataclass(frozen=True)
class Lateness:
    """How old the pair (theta, V) is that iterations sample with: items of a ``DelayLine`` pushed once an iteration
    and read by ``latest``. ``delays``: their law, in whole iterations; ``most``: no item takes longer than that. Each
    run draws its own delays, from the law's seed plus the run's. ``ConfigError`` for a law that isn't in whole steps.
    """

    delays: Delays
    most: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.delays, Delays):
            raise ConfigError(f"Lateness: delays is a {type(self.delays).__name__}; give it Delays")
        if not self.delays.whole:
            raise ConfigError(
                f"Lateness: delays = {self.delays.law} with mean {self.delays.mean} isn't in whole iterations; use "
                "geometric, poisson or a whole constant"
            )
        if self.most is not None:
            number("Lateness", "most", self.most, 0, whole=True)

    def of_run(self, seed: int, items: int) -> Ints:
        """Delays [items] of what the run with ``seed`` pushes at iterations 0, 1, .."""
        drawn = replace(self.delays, seed=self.delays.seed + seed).first(items)
        most = _NEVER if self.most is None else min(_NEVER, float(self.most))
        return np.minimum(drawn, most).astype(np.int64)


def latest_reads(delays: Ints) -> Ints:
    """For items pushed at t = 0, 1, .. with these ``delays`` [T]: the item that ``DelayLine.latest`` gives at each t
    (the first item counts as ready before all time)."""
    items = np.arange(len(delays))
    ready = items + delays
    newest = np.zeros(len(delays), np.int64)
    in_time = ready < len(delays)
    np.maximum.at(newest, ready[in_time], items[in_time])
    return np.maximum.accumulate(newest)


@dataclass(frozen=True)
class Runs:
    """What ``ppo_tabular`` found, one row a seed. ``theta`` [runs, H, S, A] and ``critic`` [runs, H, S] at the end;
    ``old_theta``, ``old_critic``: the pair that the next iteration would sample with; ``at`` [K]: iterations done at
    each record; ``gain``, ``slope``, ``error`` [runs, K]: J, |grad J|^2 and the critic error there, exact (NaN after
    a run has met its goal); ``iterations`` [runs]: done; ``fresh`` [runs]: episodes sampled; ``epochs`` [runs, E]: how
    often each epoch was used; ``clipped`` [runs, E]: share of its samples that the clip silenced."""

    theta: Floats
    critic: Floats
    old_theta: Floats
    old_critic: Floats
    at: Ints
    gain: Floats
    slope: Floats
    error: Floats
    iterations: Ints
    fresh: Ints
    epochs: Ints
    clipped: Floats


def ppo_tabular(
    world: Layered,
    options: TabularPPO,
    iterations: int,
    seeds: Sequence[int] | range,
    lateness: Lateness | None = None,
    *,
    every: int = 1,
    goal: float | None = None,
    theta: ArrayLike | None = None,
    critic: ArrayLike | None = None,
) -> Runs:
    """Run ``iterations`` T of PPO-Clip for each seed, from logits ``theta`` [H, S, A] and a ``critic`` [H, S] (default:
    zero). ``every``: iterations between two records; ``goal``: a run ends at the first record with J >= goal.
    ``ConfigError`` on bad arguments.

    Each iteration: n episodes with the policy of the delayed pair (theta_b, V_b);
    delta_h = r_h + V_b' - V_b, A_h = delta_h + lam A_{h+1}, G_h = r_h + G_{h+1};
    V(s) += beta_t (1/n) sum (G - V_b(s)); then up to E epochs of
    theta(s,.) += alpha_t (1/n) sum w A rho (onehot(a) - pi_theta(.|s)), rho = pi_theta / pi_{theta_b}, w = 0 where
    A > 0 and rho > 1 + c, or A < 0 and rho < 1 - c.
    """
    where = "ppo_tabular"
    late = Lateness(Delays("constant", 0)) if lateness is None else lateness
    kinds: tuple[tuple[str, object, type], ...] = (
        ("world", world, Layered), ("options", options, TabularPPO), ("lateness", late, Lateness)
    )  # fmt: skip
    for name, given, kind in kinds:
        if not isinstance(given, kind):
            raise ConfigError(f"{where}: {name} is a {type(given).__name__}; give it a {kind.__name__}")
    length = int(number(where, "iterations", iterations, 1, whole=True))
    gap = int(number(where, "every", every, 1, whole=True))
    goal = math.inf if goal is None else number(where, "goal", goal)
    numbered = distinct_seeds(where, seeds)
    runs, shape = len(numbered), world.rewards.shape
    logits = np.zeros(shape) if theta is None else array(where, "theta", theta, shape)
    first = np.zeros(shape[:2]) if critic is None else array(where, "critic", critic, shape[:2])
    thetas = np.broadcast_to(logits, (runs, *shape)).copy()
    critics = np.zeros((runs, shape[0] + 1, shape[1]))
    critics[:, :-1] = first
    if lateness is None:
        reads = np.broadcast_to(np.arange(length + 1), (runs, length + 1)).copy()
    else:
        reads = np.stack([latest_reads(lateness.of_run(int(seed), length + 1)) for seed in numbered])
    old_thetas, old_critics = np.empty_like(thetas), np.empty_like(critics)
    traces = np.full((runs, 3, length // gap + 1), math.nan)
    used, done = np.zeros((runs, int(options.epochs), 2), np.int64), np.zeros(runs, np.int64)
    start_threads()
    learn(
        numbered, world.transitions, world.rewards, world.start, world.noise,
        *alias_table(world.transitions), *alias_table(world.start),
        options.actor_steps(length), options.critic_steps(length), int(options.episodes), int(options.epochs),
        float(options.clip), float(options.lam), -1.0 if options.kl_stop is None else float(options.kl_stop),
        reads, gap, goal, thetas, critics, old_thetas, old_critics, traces, used, done,
    )  # fmt: skip
    whole = np.isfinite(thetas).all((1, 2, 3)) & np.isfinite(critics).all((1, 2))
    if not whole.all():
        raise ConfigError(
            f"{where}: seed {numbered[~whole][0]} left the range of numbers; actor_step or critic_step is too large "
            "(for this delay)"
        )
    samples = np.maximum(used[:, :, 0], 1) * int(options.episodes) * world.layers
    return Runs(
        thetas, critics[:, :-1], old_thetas, old_critics[:, :-1], gap * np.arange(traces.shape[2]), traces[:, 0],
        traces[:, 1], traces[:, 2], done, done * int(options.episodes), used[:, :, 0], used[:, :, 1] / samples,
    )  # fmt: skip
