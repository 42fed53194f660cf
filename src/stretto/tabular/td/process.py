"""A Markov reward process: what a fixed policy turns an MDP into, and all that TD ever sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Bools, Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, probabilities
from stretto.tabular.mdp import MDP, chain


@dataclass(frozen=True)
class RewardProcess:
    """``transitions`` P [S,S]; ``rewards`` r [S], or r(s, s') [S,S] where they depend on the next state; ``gamma`` in
    [0, 1), one number or one per state [S] (a state with discount 0 ends an episode: see ``with_restarts``); ``start``
    [S]: law of the first state, or its number. Kept as float64: ``rewards`` [S,1] or [S,S], ``gamma`` [S], ``start``
    [S]. Raises ``ConfigError`` for shapes that don't fit, rows that don't sum to one, or a discount of 1."""

    transitions: Floats
    rewards: Floats
    gamma: Floats
    start: Floats = 0  # type: ignore[assignment]

    if TYPE_CHECKING:

        def __init__(
            self, transitions: ArrayLike, rewards: ArrayLike, gamma: ArrayLike, start: ArrayLike = 0
        ) -> None: ...

    def __post_init__(self) -> None:
        where = "RewardProcess"
        transitions = probabilities(where, "transitions", self.transitions, (None, None))
        states = len(transitions)
        if transitions.shape[1] != states:
            raise ConfigError(f"{where}: transitions must be [S,S]; got {list(transitions.shape)}")
        rewards = array(where, "rewards", self.rewards)
        if rewards.ndim == 1:
            rewards = rewards[:, None]
        if rewards.shape not in ((states, 1), (states, states)):
            raise ConfigError(f"{where}: rewards have shape {list(np.shape(self.rewards))}; with {states} states they "
                              f"must be [{states}], or [{states},{states}] by the next state")  # fmt: skip
        gamma = np.atleast_1d(array(where, "gamma", self.gamma))
        for value in gamma.flat:
            discount(where, value)
        if gamma.shape not in ((1,), (states,)):
            raise ConfigError(f"{where}: gamma must be one number or one per state [{states}]; got {list(gamma.shape)}")
        start = self.start
        if np.ndim(start) == 0:
            if start not in range(states):
                raise ConfigError(f"{where}: start = {start!r} must be one of the states 0..{states - 1}, or their law")
            start = np.eye(states)[int(start)]
        self._keep(transitions=transitions, rewards=np.ascontiguousarray(rewards), gamma=np.full(states, gamma),
                   start=probabilities(where, "start", start, (states,)))  # fmt: skip

    @classmethod
    def of(cls, mdp: MDP, policy: ArrayLike) -> RewardProcess:
        """``policy`` ([S,A], or an action's number for each state [S]) played in ``mdp``: its chain, its mean rewards,
        the discount, and the law of the first state."""
        transitions, rewards = chain(mdp, policy)
        return cls(transitions, rewards, mdp.gamma, mdp.start)

    def _keep(self, **fields: Floats) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        """S, the number of states."""
        return len(self.transitions)

    @property
    def horizon(self) -> float:
        """H = 1 / (1 - gamma) of the largest discount: over how many steps rewards count."""
        return float(1 / (1 - self.gamma.max()))

    @property
    def mean_rewards(self) -> Floats:
        """Expected reward [S] of leaving each state: the mean of r(s, s') over s'."""
        return np.asarray((self.transitions * self.rewards).sum(1))

    def values(self) -> Floats:
        """Exact values V* [S], the expected discounted reward from each state: the solution of V = r + gamma P V."""
        system = np.eye(self.states) - self.gamma[:, None] * self.transitions
        return np.asarray(np.linalg.solve(system, self.mean_rewards))

    def surprises(self) -> Floats:
        """TD error [S,S] of each transition at the true values, r(s, s') + gamma V*(s') - V*(s); its mean over s' is
        0."""
        values = self.values()
        return np.asarray(self.rewards + self.gamma[:, None] * values - values[:, None])

    def noise(self) -> Floats:
        """Variance sigma^2 [S] of the TD target r(s, s') + gamma V*(s') given s."""
        return np.asarray((self.transitions * self.surprises() ** 2).sum(1))


def entered(process: RewardProcess) -> Bools:
    """Which states [S] a trajectory can be in: those to which ``start`` leads."""
    seen, before = process.start > 0, np.zeros(process.states, bool)
    while (seen != before).any():
        before, seen = seen, seen | (process.transitions[seen] > 0).any(0)
    return np.asarray(seen)


def only_entered(process: RewardProcess) -> tuple[RewardProcess, Ints]:
    """``process`` without the states that are never entered from ``start``, and the numbers [S'] that the others had.
    Laws of long trajectories (``stationary``, ``late_covariance``) need it: they ask that every state is visited, which
    tables of environments rarely keep. Values of what is left are unchanged."""
    kept = np.flatnonzero(entered(process))
    both = np.ix_(kept, kept)
    rewards = process.rewards[kept, 0] if process.rewards.shape[1] == 1 else process.rewards[both]
    return RewardProcess(process.transitions[both], rewards, process.gamma[kept], process.start[kept]), kept


def with_restarts(process: RewardProcess, ends: ArrayLike) -> RewardProcess:
    """Episodes as one endless trajectory: each state marked in ``ends`` [S] (bool) has reward 0 and discount 0, hence
    value 0, and the next episode's first state follows it. All other values stay those of the episodic task.
    ``ConfigError`` if ``ends`` has another shape or marks every state."""
    try:
        marks = np.asarray(ends)
    except ValueError:
        marks = np.empty(0)
    if marks.shape != (process.states,) or marks.dtype != bool or marks.all():
        raise ConfigError(f"with_restarts: ends must mark some of the {process.states} states by True and leave one")
    rewards = np.where(marks[:, None], 0.0, process.rewards)
    transitions = np.where(marks[:, None], process.start, process.transitions)
    return replace(process, transitions=transitions, rewards=rewards, gamma=np.where(marks, 0.0, process.gamma))
