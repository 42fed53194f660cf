"""The episodic learner: policies stay frozen while rollouts of geometric length estimate every Q_i.

Source: "High-Probability Nash Regret for Decentralized Learning in Markov alpha-Potential Games: Episodic and Fully
Online Asynchronous Algorithms with Applications to Markov Congestion Games". Constants [inferred].

    round: repeat: s0 ~ start, players draw; after each slot stop with probability 1 - gamma; G_i = sum of costs
           Qhat_i(s,a) = (1 / #starts in s) sum 1{s0 = s, a0_i = a} G_i / pi_i(a|s)
           pi_i(.|s) <- project_floor( pi_i exp(-eta Qhat_i) / Z )      where s was a start

The horizon has the discount's own law, so G_i needs no discount and is unbiased for the discounted cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.markov import MarkovGame, Policies
from stretto.games.potential.npg import check_floor
from stretto.games.potential.play import (
    ACTIONS,
    MOVES,
    NOISE,
    START,
    STOP,
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
from stretto.tabular.arguments import distinct_seeds, number
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.mdp import as_policy
from stretto.tabular.sampling import alias_sample


def learn_episodic(
    game: MarkovGame,
    rounds: int,
    rollouts: int,
    seeds: Sequence[int],
    eta: float = 0.05,
    floor: float = 0.01,
    noise: float = 0.0,
    times: ArrayLike | None = None,
) -> Run:
    """``rounds`` of ``rollouts`` each, from uniform policies, once a seed; costs carry ``noise`` times N(0,1), drawn
    apart for each player (the sum over a rollout's L slots as one draw of variance L). Policies are kept after the
    rounds ``times`` (None: ``log_times(rounds)``). ``ConfigError`` if the floor is above 1/actions, or for counts,
    seeds or times out of range."""
    _check("learn_episodic", game, rounds, rollouts, eta, floor, noise)
    at = checked_times("learn_episodic", times, rounds)
    runs = distinct_seeds("learn_episodic", seeds)
    out = np.empty((len(runs), len(at), *padded(game).shape))
    law = tables(game)
    each_seed(
        lambda seed, kept: _run(law, padded(game), rounds, rollouts, eta, floor, noise, seed, at, kept), runs, out
    )
    return Run(at, out, game.actions)


def estimate_q(
    game: MarkovGame, policies: Policies, rollouts: int, seed: int, noise: float = 0.0
) -> tuple[list[Floats], list[Floats], Ints]:
    """One round's estimates under ``policies``: Qhat_i [S, A_i] a player (0 where no rollout started), their standard
    errors, and the number of starts [S]."""
    _check("estimate_q", game, 1, rollouts, 1.0, 0.0, noise)
    pi = padded(game)
    for i, a in enumerate(game.actions):
        pi[i, :, :a] = as_policy("estimate_q", f"policies[{i}]", policies[i], game.states, a)
    sums, squares, starts = np.zeros(pi.shape), np.zeros(pi.shape), np.zeros(game.states, np.int64)
    _round(tables(game), pi, rollouts, noise, seed, 0, 0, sums, squares, starts)
    n = np.maximum(starts, 1)[:, None]
    mean = sums / n
    spread = np.sqrt(np.maximum(squares / n - mean**2, 0) / n)
    means, spreads = ([x[i, :, :a] for i, a in enumerate(game.actions)] for x in (mean, spread))
    return means, spreads, starts


@njit(cache=True, nogil=True)
def _run(
    game: Tables, pi: Floats, rounds: int, rollouts: int, eta: float, floor: float, noise: float, seed: int,
    times: Ints, out: Floats,
) -> None:  # fmt: skip
    players, states, _ = pi.shape
    sums, squares, starts = np.zeros(pi.shape), np.zeros(pi.shape), np.zeros(states, np.int64)
    slot, kept = 0, 0
    for k in range(rounds):
        if kept < len(times) and times[kept] == k:
            keep(out, kept, pi)
            kept += 1
        sums.fill(0.0)
        starts.fill(0)
        slot = _round(game, pi, rollouts, noise, seed, k * rollouts, slot, sums, squares, starts)
        for s in range(states):
            if starts[s] > 0:
                for i in range(players):
                    count = game.actions[i]
                    least = sums[i, s, 0]
                    for a in range(1, count):
                        least = min(least, sums[i, s, a])
                    for a in range(count):
                        pi[i, s, a] *= math.exp(-eta * ((sums[i, s, a] - least) / starts[s]))
                    project_row(pi, i, s, count, floor)
    if kept < len(times):
        keep(out, kept, pi)


@njit(cache=True)
def _round(
    game: Tables, pi: Floats, rollouts: int, noise: float, seed: int, rollout: int, slot: int, sums: Floats,
    squares: Floats, starts: Ints,
) -> int:  # fmt: skip
    """Add up G_i / pi_i and its square by start; ``rollout`` and ``slot`` count those of the rounds before."""
    players, states, _ = pi.shape
    joint_actions = game.costs.shape[0] // states
    choose, move, blur = key(seed, ACTIONS), key(seed, MOVES), key(seed, NOISE)
    stop, first = key(seed, STOP), key(seed, START)
    acts, total = np.zeros(players, np.int64), np.zeros(players)
    for k in range(rollouts):
        begin = int(alias_sample(game.start_columns, game.start_bits, 0, uniform(first, rollout + k)))
        s, opening, before = begin, True, slot
        starts[begin] += 1
        total.fill(0.0)
        while True:
            row = s * joint_actions
            for i in range(players):
                a = pick(pi, i, s, game.actions[i], uniform(choose, slot * players + i))
                row += a * game.strides[i]
                if opening:
                    acts[i] = a
            for i in range(players):
                total[i] += game.costs[row, i]
            opening = False
            slot += 1
            if uniform(stop, slot - 1) >= game.gamma:
                break
            s = int(alias_sample(game.columns, game.bits, row, uniform(move, slot - 1)))
        scale = noise * math.sqrt(float(slot - before))
        for i in range(players):
            if noise > 0.0:
                total[i] += scale * normal(blur, (rollout + k) * players + i)
            g = total[i] / pi[i, begin, acts[i]]
            sums[i, begin, acts[i]] += g
            squares[i, begin, acts[i]] += g * g
    return slot


def reference(
    game: MarkovGame, rounds: int, rollouts: int, seed: int, eta: float = 0.05, floor: float = 0.01, noise: float = 0.0
) -> list[Floats]:
    """``learn_episodic`` in plain Python for one seed: equal to the last bit to its final policies."""
    _check("reference", game, rounds, rollouts, eta, floor, noise)
    law, joint_actions, players = tables(game), game.transitions.shape[1], range(game.players)
    choose, move, blur, stop, first = (np.uint64(key(seed, k)) for k in (ACTIONS, MOVES, NOISE, STOP, START))
    pi = [np.full((game.states, a), 1 / a) for a in game.actions]
    slot = 0
    for k in range(rounds):
        sums, starts = [np.zeros(p.shape) for p in pi], [0] * game.states
        for rollout in range(k * rollouts, (k + 1) * rollouts):
            s = begin = int(alias_sample(law.start_columns, law.start_bits, 0, uniform(first, rollout)))
            opening: list[int] = []
            before = slot
            total = [0.0 for _ in players]
            starts[begin] += 1
            while True:
                at = [slot * game.players + i for i in players]
                acts = [pick(pi[i][None], 0, s, game.actions[i], uniform(choose, at[i])) for i in players]
                opening = opening or acts
                joint = int(np.ravel_multi_index(acts, game.actions))
                for i in players:
                    total[i] += game.costs[i, s, joint]
                slot += 1
                if uniform(stop, slot - 1) >= game.gamma:
                    break
                s = int(alias_sample(law.columns, law.bits, s * joint_actions + joint, uniform(move, slot - 1)))
            for i, a in enumerate(opening):
                total[i] += noise * math.sqrt(float(slot - before)) * normal(blur, rollout * game.players + i)
                sums[i][begin, a] += total[i] / pi[i][begin, a]
        for i, p in enumerate(pi):
            for s in (s for s in range(game.states) if starts[s]):
                least = min(sums[i][s])
                p[s] = kl_project([w * math.exp(-eta * ((g - least) / starts[s]))
                                   for w, g in zip(p[s], sums[i][s], strict=True)], floor)  # fmt: skip
    return pi


def _check(
    where: str, game: MarkovGame, rounds: int, rollouts: int, eta: float, floor: float, noise: float
) -> None:  # fmt: skip
    number(where, "rounds", rounds, 1, whole=True)
    number(where, "rollouts", rollouts, 1, whole=True)
    number(where, "eta", eta, above=0)
    number(where, "noise", noise, 0)
    check_floor(where, game, floor)
