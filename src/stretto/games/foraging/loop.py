"""The coupled loop, compiled: seeds in parallel, each a whole run of both layers. ``reference.py`` says it plainly."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit, prange

from stretto.data.arrays import Bools, Floats, Ints
from stretto.games.foraging.training import ACT, ARM, FOOD, SEASON, START, Runs, Training, empty
from stretto.games.foraging.world import Foraging, Tables
from stretto.tabular.arguments import distinct_seeds
from stretto.tabular.counter import key, uniform
from stretto.tabular.threads import start_threads


class _Rules(NamedTuple):
    period: int
    periods: int
    pull: float
    episodes: int
    coupling: float
    guided: bool
    step: float
    discount: float
    explore: float
    scale: float
    track: float
    late: int


def run(world: Foraging, training: Training, seeds: Iterable[int]) -> Runs:
    """Train both layers from scratch, once for each of ``seeds`` (distinct, >= 0). The result is a function of the
    arguments alone, however many threads there are. ``ConfigError`` for bad seeds."""
    seed = distinct_seeds("run", list(seeds))
    out = empty(world, training, len(seed))
    t = training
    step, discount, explore, scale, track = map(float, (t.step, t.discount, t.explore, t.scale, t.track))
    rules = _Rules(
        world.period, world.periods, float(world.pull), t.episodes, float(t.coupling), bool(t.guided),
        step, discount, explore, scale, track, t.late,
    )  # fmt: skip
    start_threads()
    _all(seed, world.tables, rules, out.food, out.overlap, out.rich, out.theta, out.visits, out.values)
    return out


@njit(cache=True, parallel=True)
def _all(
    seeds: Ints, tables: Tables, rules: _Rules, food: Floats, overlap: Floats, rich: Floats, theta: Floats,
    visits: Ints, values: Floats,
) -> None:  # fmt: skip
    for s in prange(seeds.size):
        _one(seeds[s], tables, rules, food[s], overlap[s], rich[s], theta[s], visits[s], values[s])


@njit(cache=True)
def _one(
    seed: int, tables: Tables, rules: _Rules, food_of: Floats, overlap_of: Floats, rich_of: Floats, theta: Floats,
    visits: Ints, values: Floats,
) -> None:  # fmt: skip
    start, season, choice, growth = key(seed, START), key(seed, SEASON), key(seed, ARM), key(seed, FOOD)
    acting = key(seed, ACT)
    cells, blocks, span = tables.quadrant.size, food_of.size, rules.period
    food, base, grad = np.zeros(cells, np.bool_), np.zeros(2), np.zeros((2, 16))
    policy, at, new, seen = np.empty((2, 16)), np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)
    action, shares = np.zeros(2, np.int64), np.zeros((2, 4), np.int64)
    episode = period = t = 0
    for block in range(blocks):
        for z in range(2):
            _softmax(theta[z], policy[z])
        eaten, overlaps, rich_steps = 0, 0.0, 0
        for _ in range(rules.episodes):
            at[0] = int(uniform(start, 2 * episode) * cells)
            at[1] = int(uniform(start, 2 * episode + 1) * (cells - 1))
            at[1] += at[1] >= at[0]
            for _ in range(rules.periods):
                z = int(uniform(season, period) * 2)
                arm = _pick(policy[z], uniform(choice, period))
                for c in range(cells):
                    food[c] = uniform(growth, period * cells + c) < tables.chance[z, c]
                shares[:] = 0
                meal = 0
                for i in range(2):
                    seen[i] = _observe(tables, at[i], _sent(arm, i), rules.guided, food)
                for _ in range(span):
                    for i in range(2):
                        u, v = uniform(acting, 4 * t + 2 * i), uniform(acting, 4 * t + 2 * i + 1)
                        action[i] = _act(values[i, seen[i]], rules.explore, u, v)
                        new[i] = tables.target[at[i], action[i]]
                    if new[0] == new[1] or (new[0] == at[1] and new[1] == at[0]):
                        new[0], new[1] = at[0], at[1]
                    meal += _live(tables, rules, arm, at, new, seen, action, food, values)
                    for i in range(2):
                        shares[i, tables.quadrant[at[i]]] += 1
                        if block >= blocks - rules.late:
                            visits[z, i, at[i]] += 1
                    t += 1
                both = _overlap(shares, span)
                a, b = 0 + z, 3 - z  # the rich pair: 0 and 3, or 1 and 2
                rich_steps += shares[0, a] + shares[0, b] + shares[1, a] + shares[1, b]
                advantage = 1.0 - both + rules.coupling * meal / span - base[z]
                base[z] += rules.track * advantage
                for m in range(16):
                    grad[z, m] += advantage * ((m == arm) - policy[z, m])
                eaten, overlaps, period = eaten + meal, overlaps + both, period + 1
            episode += 1
        count = rules.episodes * rules.periods
        if rules.guided:
            for z in range(2):
                for m in range(16):
                    theta[z, m] += rules.scale / math.sqrt(1 + block) * grad[z, m] / count
        grad[:] = 0.0
        food_of[block] = eaten / (count * span)
        overlap_of[block] = overlaps / count
        rich_of[block] = rich_steps / (2 * count * span)


@njit(cache=True)
def _live(
    tables: Tables, rules: _Rules, arm: int, at: Ints, new: Ints, seen: Ints, action: Ints, food: Bools, values: Floats
) -> int:
    """Both have moved from ``at`` to ``new``: eat, look, learn. Returns the food eaten."""
    meal = 0
    got = (new[0] != at[0] and food[new[0]], new[1] != at[1] and food[new[1]])
    for i in range(2):
        if got[i]:
            food[new[i]] = False
            meal += 1
    for i in range(2):
        sent = _sent(arm, i)
        reward = 1.0 if got[i] else 0.0
        if rules.guided:
            reward += rules.pull * float(tables.distance[sent, at[i]] - tables.distance[sent, new[i]])
        at[i] = new[i]
        following = _observe(tables, at[i], sent, rules.guided, food)
        ahead = values[i, following, 0]
        for b in range(1, 5):
            ahead = max(ahead, values[i, following, b])
        error = reward + rules.discount * ahead - values[i, seen[i], action[i]]
        values[i, seen[i], action[i]] += rules.step * error
        seen[i] = following
    return meal


@njit(cache=True)
def _observe(tables: Tables, cell: int, sent: int, guided: bool, food: Bools) -> int:
    bits = 0
    for d in range(4):
        beside = tables.neighbour[cell, d]
        if beside >= 0 and food[beside]:
            bits += 1 << d
    return (cell * 4 + (sent if guided else 0)) * 16 + bits


@njit(cache=True)
def _act(q: Floats, explore: float, u: float, v: float) -> int:
    if u < explore:
        return int(v * 5)
    top, ties = q[0], 1
    for b in range(1, 5):
        if q[b] > top:
            top, ties = q[b], 1
        elif q[b] == top:
            ties += 1
    left = int(v * ties)
    for b in range(5):
        if q[b] == top:
            if left == 0:
                return b
            left -= 1
    return 4


@njit(cache=True)
def _overlap(shares: Ints, span: int) -> float:
    total = 0.0
    for quadrant in range(4):
        total += min(shares[0, quadrant] / span, shares[1, quadrant] / span)
    return total


@njit(cache=True)
def _softmax(logits: Floats, out: Floats) -> None:
    top, total = logits.max(), 0.0
    for m in range(logits.size):
        out[m] = math.exp(logits[m] - top)
        total += out[m]
    for m in range(logits.size):
        out[m] = out[m] / total


@njit(cache=True)
def _pick(p: Floats, u: float) -> int:
    total = 0.0
    for m in range(p.size):
        total += p[m]
        if u < total:
            return m
    return p.size - 1


@njit(cache=True)
def _sent(arm: int, i: int) -> int:
    return arm // 4 if i == 0 else arm % 4
