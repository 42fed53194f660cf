"""Congestion games with many players: no joint table. A player sees its own last resource and the coarse states of the
resources; gaps come from a Monte Carlo best response. [inferred]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.potential.jobs import machine_costs, machine_transitions
from stretto.games.potential.online import SET_2, Schedule, update_row
from stretto.games.potential.play import ACTIONS, MOVES, STOP, pick
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, number, probabilities
from stretto.tabular.counter import key, uniform
from stretto.tabular.mdp import MDP, deterministic, policy_iteration
from stretto.tabular.sampling import alias_sample, alias_table

LONGEST = 1 << 20
"""Random numbers set aside for each rollout."""


class _Tables(NamedTuple):
    columns: Floats
    bits: int
    costs: Floats
    level: Ints
    levels: int
    gamma: float


@dataclass(frozen=True)
class Crowd:
    """``costs`` [M, Z, N+1], ``transitions`` [M, Z, N+1, Z] as in ``congestion_game``; ``level`` [Z]: what a player
    sees of a resource's state, 0 .. L-1. Observation: own last resource (slowest), then the levels of resources 0 ..
    M-1. All resources start in state 0, last resources are 0. ``ConfigError`` for shapes or levels that don't fit."""

    costs: Floats
    transitions: Floats
    level: Ints
    gamma: float

    def __post_init__(self) -> None:
        costs = array("Crowd", "costs", self.costs, (None, None, None))
        shape = (*costs.shape, costs.shape[1])
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "transitions", probabilities("Crowd", "transitions", self.transitions, shape))
        object.__setattr__(self, "gamma", discount("Crowd", self.gamma))
        level = np.asarray(self.level, np.int64)
        if level.shape != costs.shape[1:2] or set(level.tolist()) != set(range(int(level.max()) + 1)):
            raise ConfigError(
                f"Crowd: level {level.tolist()} must give each of {costs.shape[1]} states one of 0 .. L-1"
            )
        object.__setattr__(self, "level", level)

    @property
    def players(self) -> int:
        """N, the number of players."""
        return self.costs.shape[2] - 1

    @property
    def resources(self) -> int:
        """M, the number of resources, of which each player takes one a step."""
        return self.costs.shape[0]

    @property
    def observations(self) -> int:
        """O = M L^M, the number of things that a player can see: its own last resource and the level of each."""
        return self.resources * (int(self.level.max()) + 1) ** self.resources

    def uniform_policies(self) -> Floats:
        """Policies [N, O, M] that take every resource with probability 1/M."""
        return np.full((self.players, self.observations, self.resources), 1 / self.resources)

    def tables(self) -> _Tables:
        """The world as flat arrays for compiled loops, with alias tables of the next states."""
        return _Tables(*alias_table(self.transitions), self.costs, self.level, int(self.level.max()) + 1, self.gamma)


def crowded_jobs(players: int = 20, service: ArrayLike = (0.5, 0.8), cap: int = 20, backlog: int = 20, levels: int = 3,
                 gamma: float = 0.8) -> Crowd:  # fmt: skip
    """``jobs`` with many players, whose backlogs are seen in ``levels`` steps of about equal width. Let the machines
    serve more than arrives (cap sum(service) > players): else all backlogs stay full, and the start never returns."""
    for name, value in (("players", players), ("cap", cap), ("backlog", backlog)):
        number("crowded_jobs", name, value, 1, whole=True)
    number("crowded_jobs", "levels", levels, 1, backlog + 1, whole=True)
    mu = array("crowded_jobs", "service", service, (None,))
    if (mu <= 0).any() or (mu > 1).any():
        raise ConfigError(f"crowded_jobs: service {mu.tolist()} must be probabilities in (0, 1], one a machine")
    transitions = np.stack([machine_transitions(m, cap, backlog, players) for m in mu])
    level = np.arange(backlog + 1) * levels // (backlog + 1)
    return Crowd(machine_costs(mu, cap, backlog, players), transitions, level, gamma)


def learn_crowd(world: Crowd, steps: int, seed: int, schedule: Schedule = SET_2) -> Floats:
    """Policies [N, O, M] after ``steps`` of the online learner, each player on its own observations and their visits.
    ``ConfigError`` if the floor is above 1/M."""
    number("learn_crowd", "steps", steps, 1, whole=True)
    number("learn_crowd", "floor", schedule.floor, 0, 1 / world.resources)
    policies = world.uniform_policies()
    _learn(world.tables(), policies, schedule.numbers(), int(steps), int(number("learn_crowd", "seed", seed, 0)))
    return policies


def crowd_gap(
    world: Crowd, policies: ArrayLike, player: int, samples: int = 200_000, rollouts: int = 20_000, seed: int = 0
) -> tuple[float, float]:
    """How much ``player`` could save from the start by a best response on its observations, and the standard error.
    Its decision process is estimated from ``samples`` steps in which it explores uniformly, solved by policy
    iteration, and both policies are then played in ``rollouts`` of geometric length on the same random numbers: up to
    noise a lower bound on the gap, near it if observations tell enough."""
    pi = probabilities("crowd_gap", "policies", policies, (world.players, world.observations, world.resources)).copy()
    player = int(number("crowd_gap", "player", player, 0, world.players - 1, whole=True))
    for name, value in (("samples", samples), ("rollouts", rollouts)):
        number("crowd_gap", name, value, 2, whole=True)
    own = pi[player].copy()
    pi[player] = 1 / world.resources
    seen = np.zeros((world.observations, world.resources, world.observations))
    paid = np.zeros((world.observations, world.resources))
    _explore(world.tables(), pi, player, int(samples), 2 * seed + 1, seen, paid)
    count = seen.sum(2)
    known = count > 0
    stay = np.repeat(np.eye(world.observations)[:, None], world.resources, axis=1)
    transitions = np.where(known[..., None], seen / np.maximum(count, 1)[..., None], stay)
    costs = np.where(known, paid / np.maximum(count, 1), world.costs.max())  # what was never tried isn't promising
    _, choice = policy_iteration(MDP(transitions, -costs, world.gamma))
    returns = []
    for policy in (own, deterministic(choice, world.resources)):
        pi[player] = policy
        out = np.empty(int(rollouts))
        _rollouts(world.tables(), pi, player, 2 * seed, out)
        returns.append(out)
    saved = returns[0] - returns[1]
    return float(saved.mean()), float(saved.std() / np.sqrt(rollouts))


@njit(cache=True)
def _slot(
    game: _Tables, pi: Floats, z: Ints, last: Ints, seen: Ints, paid: Floats,
    choose: np.uint64, move: np.uint64, at: int,
) -> None:  # fmt: skip
    """All players draw, pay and see what follows: ``z``, ``last`` and ``seen`` (observations) move on in place."""
    resources, states, loads = game.costs.shape
    load = np.zeros(resources, np.int64)
    for i in range(len(last)):
        last[i] = pick(pi, i, seen[i], resources, uniform(choose, at * len(last) + i))
        load[last[i]] += 1
    for i in range(len(last)):
        paid[i] = game.costs[last[i], z[last[i]], load[last[i]]]
    coarse, codes = 0, 1
    for m in range(resources):
        row = (m * states + z[m]) * loads + load[m]
        z[m] = alias_sample(game.columns, game.bits, row, uniform(move, at * resources + m))
        coarse, codes = coarse * game.levels + game.level[z[m]], codes * game.levels
    for i in range(len(last)):
        seen[i] = last[i] * codes + coarse


@njit(cache=True, nogil=True)
def _learn(game: _Tables, pi: Floats, rates: Floats, steps: int, seed: int) -> None:
    players, observations, resources = pi.shape
    choose, move = key(seed, ACTIONS), key(seed, MOVES)
    z, last, seen = np.zeros(resources, np.int64), np.zeros(players, np.int64), np.zeros(players, np.int64)
    q, visits = np.zeros(pi.shape), np.zeros((players, observations), np.int64)
    paid, before = np.zeros(players), np.zeros(players, np.int64)
    for t in range(steps):
        for i in range(players):
            before[i] = seen[i]
        _slot(game, pi, z, last, seen, paid, choose, move, t)
        floor = rates[4] * (t + 1.0) ** -rates[5]
        for i in range(players):
            visits[i, before[i]] += 1
            v = float(visits[i, before[i]])
            b, e = rates[0] * v ** -rates[1], rates[2] * v ** -rates[3]
            update_row(pi, q, i, before[i], seen[i], last[i], resources, paid[i], game.gamma, b, e, floor)


@njit(cache=True)
def _explore(game: _Tables, pi: Floats, player: int, samples: int, seed: int, counts: Floats, costs: Floats) -> None:
    players, _, resources = pi.shape
    choose, move, stop = key(seed, ACTIONS), key(seed, MOVES), key(seed, STOP)
    z, last, seen = np.zeros(resources, np.int64), np.zeros(players, np.int64), np.zeros(players, np.int64)
    paid = np.zeros(players)
    for t in range(samples):
        before = seen[player]
        _slot(game, pi, z, last, seen, paid, choose, move, t)
        counts[before, last[player], seen[player]] += 1
        costs[before, last[player]] += paid[player]
        if uniform(stop, t) >= game.gamma:  # as in the rollouts: time is spent where the discounted value is made
            z.fill(0)
            last.fill(0)
            seen.fill(0)


@njit(cache=True)
def _rollouts(game: _Tables, pi: Floats, player: int, seed: int, out: Floats) -> None:
    players, _, resources = pi.shape
    choose, move, stop = key(seed, ACTIONS), key(seed, MOVES), key(seed, STOP)
    z, last, seen = np.zeros(resources, np.int64), np.zeros(players, np.int64), np.zeros(players, np.int64)
    paid = np.zeros(players)
    for k in range(len(out)):
        z.fill(0)
        last.fill(0)
        seen.fill(0)
        total, t = 0.0, k * LONGEST
        while True:
            _slot(game, pi, z, last, seen, paid, choose, move, t)
            total += paid[player]
            t += 1
            if uniform(stop, t) >= game.gamma or t == (k + 1) * LONGEST:
                break
        out[k] = total
