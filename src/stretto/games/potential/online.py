"""The fully online learner: one trajectory, one realised cost a step, only the visited rows move.

Source: "High-Probability Nash Regret for Decentralized Learning in Markov alpha-Potential Games: Episodic and Fully
Online Asynchronous Algorithms with Applications to Markov Congestion Games". Constants [inferred].

    step t at state s, actions a, next s', cost c_i, v = visits of s:
    q_i(s,a_i) += min(1, b_v / pi_i(a_i|s)) (c_i + gamma sum_b pi_i(b|s') q_i(s',b) - q_i(s,a_i))
    pi_i(.|s)  <- project_{floor_t}( pi_i exp(-e_v (q_i(s,.) - min q_i(s,.))) / Z )
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.markov import MarkovGame
from stretto.games.potential.npg import check_floor
from stretto.games.potential.play import (
    ACTIONS,
    MOVES,
    NOISE,
    Run,
    Tables,
    checked_times,
    each_seed,
    keep,
    padded,
    pick,
    tables,
)
from stretto.games.potential.projection import kl_project, project_row
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import distinct_seeds, number
from stretto.tabular.counter import key, normal, normals, uniform, uniforms
from stretto.tabular.sampling import alias_sample


@dataclass(frozen=True)
class Schedule:
    """b_v = ``critic`` v^-``critic_power``, e_v = ``actor`` v^-``actor_power``, floor_t = ``floor`` t^-``floor_power``
    (t = 1, 2, ..). Defaults: set 1. ``ConfigError`` for a negative rate or power."""

    critic: float = 1.0
    critic_power: float = 1 / 2
    actor: float = 0.5
    actor_power: float = 4 / 5
    floor: float = 0.3
    floor_power: float = 1 / 4

    def __post_init__(self) -> None:
        for name in ("critic", "actor"):
            number("Schedule", name, getattr(self, name), above=0)
        for name in ("critic_power", "actor_power", "floor", "floor_power"):
            number("Schedule", name, getattr(self, name), 0)

    def numbers(self) -> Floats:
        """The schedule as an array [6] for compiled loops: critic and its power, actor and its power, floor and its
        power."""
        return np.array([self.critic, self.critic_power, self.actor, self.actor_power, self.floor, self.floor_power])


SET_1 = Schedule()
SET_2 = Schedule(critic_power=2 / 5, actor_power=2 / 3, floor_power=2 / 15)


def learn_online(
    game: MarkovGame,
    steps: int,
    seeds: Sequence[int],
    schedule: Schedule = SET_2,
    noise: float = 0.0,
    times: ArrayLike | None = None,
    state: int = 0,
) -> Run:
    """Run the learner for ``steps`` from ``state``, once a seed; costs carry ``noise`` times N(0,1), drawn apart for
    each player. Policies are kept at ``times`` (None: ``log_times(steps)``). ``ConfigError`` if the floor is above
    1/actions, or for counts, seeds or times out of range."""
    _check(game, steps, schedule, noise, state)
    at = checked_times("learn_online", times, steps)
    runs = distinct_seeds("learn_online", seeds)
    shape = padded(game).shape
    out, critics = np.empty((len(runs), len(at), *shape)), np.zeros((len(runs), *shape))
    law, rates = tables(game), schedule.numbers()
    each_seed(
        lambda seed, kept, q: _run(law, padded(game), rates, noise, steps, state, seed, at, kept, q), runs, out, critics
    )
    return Run(at, out, game.actions, critics)


@njit(cache=True, nogil=True)
def _run(
    game: Tables, pi: Floats, rates: Floats, noise: float, steps: int, state: int, seed: int,
    times: Ints, out: Floats, q: Floats,
) -> None:  # fmt: skip
    players, states, _ = pi.shape
    joint_actions = game.costs.shape[0] // states
    choose, move, blur = key(seed, ACTIONS), key(seed, MOVES), key(seed, NOISE)
    visits, acts = np.zeros(states, np.int64), np.zeros(players, np.int64)
    actions, strides, costs, gamma = game.actions, game.strides, game.costs, game.gamma
    s, kept = state, 0
    for t in range(steps):
        if kept < len(times) and times[kept] == t:
            keep(out, kept, pi)
            kept += 1
        row = s * joint_actions
        for i in range(players):
            acts[i] = pick(pi, i, s, actions[i], uniform(choose, t * players + i))
            row += acts[i] * strides[i]
        after = alias_sample(game.columns, game.bits, row, uniform(move, t))
        visits[s] += 1
        v = float(visits[s])
        b, e, floor = rates[0] * v ** -rates[1], rates[2] * v ** -rates[3], rates[4] * (t + 1.0) ** -rates[5]
        for i in range(players):
            cost, count = costs[row, i], actions[i]
            if noise > 0.0:
                cost += noise * normal(blur, t * players + i)
            update_row(pi, q, i, s, after, acts[i], count, cost, gamma, b, e, floor)
        s = after
    if kept < len(times):
        keep(out, kept, pi)


@njit(cache=True)
def update_row(
    pi: Floats, q: Floats, i: int, s: int, after: int, a: int, count: int, cost: float, gamma: float, b: float,
    e: float, floor: float,
) -> None:  # fmt: skip
    """One player's update after a step: ``q[i, s, a]`` towards cost + gamma (value of row ``after``), then the policy's
    row."""
    ahead = 0.0
    for c in range(count):
        ahead += pi[i, after, c] * q[i, after, c]
    q[i, s, a] += min(1.0, b / pi[i, s, a]) * (cost + gamma * ahead - q[i, s, a])
    least = q[i, s, 0]
    for c in range(1, count):
        least = min(least, q[i, s, c])
    for c in range(count):
        if q[i, s, c] > least:  # else the factor is exp(0) = 1
            pi[i, s, c] *= math.exp(-e * (q[i, s, c] - least))
    project_row(pi, i, s, count, floor)


def reference(
    game: MarkovGame, steps: int, seed: int, schedule: Schedule = SET_2, noise: float = 0.0, state: int = 0
) -> list[Floats]:
    """``learn_online`` in plain Python for one seed, step by step: equal to the last bit to its final policies."""
    _check(game, steps, schedule, noise, state)
    players, joint_actions = game.players, game.transitions.shape[1]
    law = tables(game)
    chosen = uniforms(np.uint64(key(seed, ACTIONS)), steps * players).reshape(steps, players)
    moved, blur = (
        uniforms(np.uint64(key(seed, MOVES)), steps),
        normals(np.uint64(key(seed, NOISE)), steps * players).reshape(steps, players),
    )
    pi = [np.full((game.states, a), 1 / a) for a in game.actions]
    q = [np.zeros((game.states, a)) for a in game.actions]
    visits = [0] * game.states
    s = state
    for t in range(steps):
        acts = [_pick(pi[i][s], chosen[t, i]) for i in range(players)]
        joint = int(np.ravel_multi_index(acts, game.actions))
        after = int(alias_sample(law.columns, law.bits, s * joint_actions + joint, moved[t]))
        visits[s] += 1
        b = schedule.critic * float(visits[s]) ** -schedule.critic_power
        e = schedule.actor * float(visits[s]) ** -schedule.actor_power
        floor = schedule.floor * (t + 1.0) ** -schedule.floor_power
        for i, a in enumerate(acts):
            cost = game.costs[i, s, joint] + noise * blur[t, i]
            ahead = sum(p * value for p, value in zip(pi[i][after], q[i][after], strict=True))
            q[i][s, a] += min(1.0, b / pi[i][s, a]) * (cost + game.gamma * ahead - q[i][s, a])
            least = min(q[i][s])
            pi[i][s] = kl_project([p * math.exp(-e * (x - least)) for p, x in zip(pi[i][s], q[i][s], strict=True)],
                                  floor)  # fmt: skip
        s = after
    return pi


def _pick(row: Floats, u: float) -> int:
    total = 0.0
    for a, p in enumerate(row[:-1]):
        total += p
        if u < total:
            return a
    return len(row) - 1


def _check(game: MarkovGame, steps: int, schedule: Schedule, noise: float, state: int) -> None:
    number("learn_online", "steps", steps, 1, whole=True)
    number("learn_online", "noise", noise, 0)
    number("learn_online", "state", state, 0, game.states - 1, whole=True)
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"learn_online: schedule must be a Schedule, as SET_2; got {type(schedule).__name__}")
    check_floor("learn_online", game, schedule.floor)
