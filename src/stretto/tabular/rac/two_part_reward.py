"""A three-state decision process whose reward comes in two parts, one of them late: policy gradients exactly."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.tabular.softmax import softmax

STATES, ACTIONS = 3, 2


@dataclass(frozen=True)
class TwoPartRewardMDP:
    """3 states, 2 actions. ``transitions`` [3,2,3] transition probabilities, ``fast`` and ``slow`` [3,2] the reward's
    parts, ``policy`` [3,2] probabilities, ``gamma`` the discount, ``steps`` T of a trajectory with a uniform start.
    Drawn from ``default_rng(world)`` and ``default_rng(policy_seed)`` (arXiv 2606.27580)."""

    world: int = 1337
    policy_seed: int = 7
    gamma: float = 0.9
    steps: int = 50
    transitions: Floats = field(init=False, repr=False)
    fast: Floats = field(init=False, repr=False)
    slow: Floats = field(init=False, repr=False)
    policy: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        g = np.random.default_rng(self.world)
        transitions = softmax(g.normal(size=(STATES, ACTIONS, STATES)))
        fast = g.uniform(-0.5, 0.5, size=(STATES, ACTIONS))
        slow = np.zeros((STATES, ACTIONS))
        slow[0, 1] += 0.6
        slow += g.uniform(-0.3, 0.3, size=slow.shape)
        policy = softmax(np.random.default_rng(self.policy_seed).normal(scale=0.3, size=(STATES, ACTIONS)))
        for name, value in (("transitions", transitions), ("fast", fast), ("slow", slow), ("policy", policy)):
            object.__setattr__(self, name, value)

    def stationary(self, reward: Floats) -> Floats:
        """Exact policy gradient [3,2] in the logits of ``reward`` [3,2] under the stationary distribution: trajectories
        without end."""
        chain = self._chain()
        values = np.linalg.solve(np.eye(STATES) - self.gamma * chain, (self.policy * reward).sum(1))
        system = np.vstack([chain.T - np.eye(STATES), np.ones(STATES)])
        visits = np.linalg.lstsq(system, np.array([0.0] * STATES + [1.0]), rcond=None)[0]
        return self._gradient(visits, reward + self.gamma * self.transitions @ values)

    def finite(self, reward: Floats) -> Floats:
        """[3,2]: expectation of (1/T) sum_t G_t grad log pi over trajectories of T steps, G_t the discounted reward
        that is left."""
        q = np.empty((self.steps, STATES, ACTIONS))
        after = np.zeros(STATES)
        for t in range(self.steps - 1, -1, -1):
            q[t] = reward + self.gamma * self.transitions @ after
            after = (self.policy * q[t]).sum(1)
        visits, total = np.full(STATES, 1 / STATES), np.zeros((STATES, ACTIONS))
        for t in range(self.steps):
            total += self._gradient(visits, q[t])
            visits = visits @ self._chain()
        return total / self.steps

    def sample(self, trajectories: int, g: np.random.Generator) -> tuple[Ints, Ints]:
        """States and actions [n,T]. Uses up ``g`` as drawing one by one does: per trajectory ``integers(0, 3)``, then
        per step ``choice(2, p)`` and ``choice(3, p)``."""
        at, u = np.empty(trajectories, np.int64), np.empty((trajectories, self.steps, 2))
        for i in range(trajectories):
            at[i] = g.integers(0, STATES)
            u[i] = g.random((self.steps, 2))
        act, move = _cumulated(self.policy), _cumulated(self.transitions)
        states = np.empty((trajectories, self.steps), np.int64)
        actions = np.empty_like(states)
        for t in range(self.steps):
            states[:, t] = at
            actions[:, t] = (u[:, t, :1] >= act[at]).sum(1)
            at = (u[:, t, 1:] >= move[at, actions[:, t]]).sum(1)
        return states, actions

    def returns(self, rewards: Floats) -> Floats:
        """Discounted return [n,T] from each step on, of ``rewards`` [n,T]."""
        left, out = np.zeros(len(rewards)), np.empty_like(rewards)
        for t in range(rewards.shape[1] - 1, -1, -1):
            left = rewards[:, t] + self.gamma * left
            out[:, t] = left
        return out

    def directions(self, states: Ints, actions: Ints, factors: Floats) -> Floats:
        """Policy-gradient direction [n,3,2] in the logits of each trajectory: (1/T) sum_t factor_t grad log pi; all
        inputs [n,T]."""
        n, steps = states.shape
        row = np.repeat(np.arange(n), steps)
        out = np.zeros((n, STATES, ACTIONS))
        np.add.at(out, (row, states.ravel(), actions.ravel()), factors.ravel())
        np.subtract.at(out, (row, states.ravel()), factors.ravel()[:, None] * self.policy[states.ravel()])
        return out / steps

    def _chain(self) -> Floats:
        return np.einsum("sa,sab->sb", self.policy, self.transitions)

    def _gradient(self, visits: Floats, q: Floats) -> Floats:
        advantage = q - (self.policy * q).sum(1, keepdims=True)
        return visits[:, None] * self.policy * advantage


def _cumulated(p: Floats) -> Floats:
    c = p.cumsum(-1)
    return np.asarray(c / c[..., -1:])
