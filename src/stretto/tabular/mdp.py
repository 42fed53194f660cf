"""Discounted decision processes given by arrays, and their exact values, best policies and occupancies."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Bools, Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, number, probabilities

GAIN = 1e-12
"""An action replaces another only if it is better by more than this: ties can't make a policy cycle."""
_ROUNDS = 1_000_000


@dataclass(frozen=True)
class MDP:
    """``transitions`` [S,A,S] probabilities of the next state, ``rewards`` [S,A] expected, ``gamma`` in [0, 1),
    ``start`` [S] law of the first state (None: uniform). ``ConfigError`` names what doesn't fit."""

    transitions: Floats
    rewards: Floats
    gamma: float
    start: Floats = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        transitions = probabilities("MDP", "transitions", self.transitions, (None, None, None))
        if transitions.shape[0] != transitions.shape[2]:
            raise ConfigError(f"MDP: transitions must be [S,A,S]; got {list(transitions.shape)}")
        start = np.full(len(transitions), 1 / len(transitions)) if self.start is None else self.start
        fixed = {
            "transitions": transitions,
            "rewards": array("MDP", "rewards", self.rewards, transitions.shape[:2]),
            "gamma": discount("MDP", self.gamma),
            "start": probabilities("MDP", "start", start, transitions.shape[:1]),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        """S, the number of states."""
        return self.transitions.shape[0]

    @property
    def actions(self) -> int:
        """A, the number of actions, the same in every state."""
        return self.transitions.shape[1]


def uniform_policy(mdp: MDP) -> Floats:
    """The policy [S,A] that takes every action with probability 1/A."""
    return np.full((mdp.states, mdp.actions), 1 / mdp.actions)


def deterministic(choice: Ints, actions: int) -> Floats:
    """The policy [S,A] that always takes action ``choice`` [S]; ``ConfigError`` unless they are whole numbers below
    ``actions``."""
    count = int(number("deterministic", "actions", actions, 1, whole=True))
    chosen = array("deterministic", "choice", choice, (None,))
    if (chosen != np.round(chosen)).any() or (chosen < 0).any() or (chosen >= count).any():
        raise ConfigError(f"deterministic: choice must hold whole numbers from 0 to {count - 1}; got {choice}")
    return np.asarray(np.eye(count)[chosen.astype(np.int64)])


def as_policy(where: str, name: str, policy: ArrayLike, states: int, actions: int) -> Floats:
    """``policy`` as [S,A]: probabilities of the actions, or an action's number for each state [S]. ``ConfigError`` that
    calls it ``name`` if it is neither."""
    if np.ndim(policy) != 1:
        return probabilities(where, name, policy, (states, actions))
    chosen = array(where, name, policy)
    if len(chosen) != states or (chosen != np.round(chosen)).any() or not ((chosen >= 0) & (chosen < actions)).all():
        raise ConfigError(f"{where}: {name} must hold probabilities [{states}, {actions}], or an action's number from "
                          f"0 to {actions - 1} for each of the {states} states")  # fmt: skip
    return deterministic(chosen.astype(np.int64), actions)


def absorbing(mdp: MDP) -> Bools:
    """Which states [S] every action stays in for ever, for nothing: where ``read_mdp`` lets episodes end."""
    stays = (mdp.transitions[np.arange(mdp.states), :, np.arange(mdp.states)] == 1).all(1)
    return np.asarray(stays & (mdp.rewards == 0).all(1))


def chain(mdp: MDP, policy: ArrayLike) -> tuple[Floats, Floats]:
    """Next-state probabilities [S,S] and expected rewards [S] under ``policy`` [S,A] (or an action's number for each
    state [S])."""
    p = as_policy("chain", "policy", policy, mdp.states, mdp.actions)
    return np.einsum("sa,sab->sb", p, mdp.transitions), (p * mdp.rewards).sum(1)


def policy_value(mdp: MDP, policy: ArrayLike) -> Floats:
    """Exact value V [S] of ``policy`` ([S,A], or action numbers [S]), the expected discounted reward from each state:
    (I - gamma P) V = r."""
    transitions, rewards = chain(mdp, policy)
    return np.asarray(np.linalg.solve(np.eye(mdp.states) - mdp.gamma * transitions, rewards))


def action_values(mdp: MDP, values: ArrayLike) -> Floats:
    """Q [S,A] of taking an action, then being worth ``values`` [S]: r + gamma P V."""
    return mdp.rewards + mdp.gamma * mdp.transitions @ array("action_values", "values", values, (mdp.states,))


def occupancy(mdp: MDP, policy: ArrayLike) -> Floats:
    """d [S]: discounted share of time in each state from ``mdp.start``: (I - gamma P^T) d = (1 - gamma) start."""
    transitions, _ = chain(mdp, policy)
    return np.asarray(np.linalg.solve(np.eye(mdp.states) - mdp.gamma * transitions.T, (1 - mdp.gamma) * mdp.start))


def value_iteration(mdp: MDP, tolerance: float = 1e-13) -> tuple[Floats, Ints]:
    """V* [S] to ``tolerance`` of the largest |V|, in the sup norm, and a greedy policy's actions [S]."""
    tolerance = number("value_iteration", "tolerance", tolerance, above=0)
    values = np.zeros(mdp.states)
    for _ in range(_ROUNDS):
        q = action_values(mdp, values)
        better = q.max(1)
        change = np.abs(better - values).max()
        values = better
        if change * mdp.gamma <= tolerance * (1 - mdp.gamma) * max(1.0, np.abs(values).max()):
            return values, _first_best(q)
    raise ConfigError(
        f"value_iteration: gamma = {mdp.gamma} is too near 1 to reach {tolerance:g}; use policy_iteration"
    )


def policy_iteration(mdp: MDP) -> tuple[Floats, Ints]:
    """V* [S] and the actions [S] of a best policy, by Howard's rounds; an action changes only for a gain > 1e-12 of
    the largest |Q| (at least of 1)."""
    choice = np.zeros(mdp.states, np.int64)
    rows = np.arange(mdp.states)
    for _ in range(_ROUNDS):
        values = policy_value(mdp, np.eye(mdp.actions)[choice])
        q = action_values(mdp, values)
        best = q.argmax(1)
        better = q[rows, best] > q[rows, choice] + GAIN * max(1.0, np.abs(q).max())
        if not better.any():
            return values, choice
        choice = np.where(better, best, choice)
    raise ConfigError("policy_iteration: no end after a million rounds; rewards hold values too large for float64")


def soft_value_iteration(mdp: MDP, temp: float, tolerance: float = 1e-13) -> tuple[Floats, Floats]:
    """Values [S] of V = temp log sum_a exp(Q / temp), and the soft-optimal policy [S,A]; ``temp`` > 0."""
    temp = number("soft_value_iteration", "temp", temp, above=0)
    tolerance = number("soft_value_iteration", "tolerance", tolerance, above=0)
    values = np.zeros(mdp.states)
    for _ in range(_ROUNDS):
        q = action_values(mdp, values)
        top = q.max(1, keepdims=True)
        weights = np.exp((q - top) / temp)
        total = weights.sum(1, keepdims=True)
        better = (top + temp * np.log(total))[:, 0]
        change = np.abs(better - values).max()
        values = better
        if change * mdp.gamma <= tolerance * (1 - mdp.gamma) * max(1.0, np.abs(values).max()):
            return values, np.asarray(weights / total)
    raise ConfigError(f"soft_value_iteration: gamma = {mdp.gamma} is too near 1 to reach {tolerance:g}")


def _first_best(q: Floats) -> Ints:
    near = q >= q.max(1, keepdims=True) - GAIN * max(1.0, np.abs(q).max())
    return np.asarray(near.argmax(1), np.int64)
