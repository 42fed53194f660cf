"""Training on late rewards: V-trace with retroactive correction, and tabular PPO that drops, waits or corrects.

(arXiv 2606.27580; the tabular experiment is [inferred].)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stretto.data.arrays import Floats
from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives.temporal import vtrace
from stretto.tabular.arguments import number
from stretto.tabular.delay import Delays
from stretto.tabular.mdp import policy_value
from stretto.tabular.rac.late_rewards import LateRewardMDP, LateRewards
from stretto.tabular.softmax import softmax


class _Late(NamedTuple):
    """A row's residual [T], and the batch that it belongs to."""

    at: int
    row: int
    residual: Tensor
    batch: TokenBatch
    w: Tensor


class RetroactiveVTrace:
    """V-trace advantages and targets of batches whose slow rewards arrive later, in ``LateRewards`` of ``spread``,
    ``decay`` and ``last``. V-trace is linear in the rewards: what arrives at the step of its batch joins the rewards
    before the recursion, what is later adds the recursion over its residuals alone."""

    def __init__(
        self, gamma: float, lam: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0,
        spread: Sequence[float] = (1.0,), decay: float = 1.0, last: int | None = None,
    ) -> None:  # fmt: skip
        where = "RetroactiveVTrace"
        self.options = (number(where, "rho_bar", rho_bar, above=0), number(where, "c_bar", c_bar, above=0),
                        number(where, "gamma", gamma, 0, 1), number(where, "lam", lam, 0, 1))  # fmt: skip
        self.queue: LateRewards[_Late] = LateRewards(spread, decay, last)

    def step(
        self, t: int, batch: TokenBatch, w: Tensor, residuals: Tensor, delays: Tensor
    ) -> list[tuple[int, Tensor, Tensor]]:
        """(step whose batch it is, targets, advantages [B,T]) to be applied at step ``t``: first those of ``batch``
        itself, whose ``rewards`` are fast ones plus placeholders; then what has come for earlier batches, as additions.
        ``w`` [B,T] ratios, ``residuals`` [C,B,T] slow rewards less their placeholders, ``delays`` [C,B] in steps."""
        for channel, waits in zip(residuals, delays, strict=True):
            for row, delay in enumerate(waits.tolist()):
                self.queue.push(t, _Late(t, row, channel[row], batch, w), delay)
        came: dict[int, Tensor] = {}
        source: dict[int, _Late] = {}
        for late, weight in self.queue.due(t):
            came.setdefault(late.at, torch.zeros_like(late.batch.mask, dtype=late.residual.dtype))
            came[late.at][late.row] += weight * late.residual
            source[late.at] = late
        now = came.pop(t, None)
        (fast,) = batch.need("rewards")
        whole = batch if now is None else batch.replace(rewards=fast + now)
        out = [(t, *vtrace(whole, w, *self.options))]
        for at in sorted(came):
            nothing = torch.zeros_like(came[at])
            alone = source[at].batch.replace(rewards=came[at], values=nothing, bootstrap=None)
            out.append((at, *vtrace(alone, source[at].w, *self.options)))
        return out


@dataclass(frozen=True)
class LateRewardPPO:
    """Tabular PPO with a learned critic on a ``LateRewardMDP``. ``arm``: ``full`` (rewards are never late), ``drop``
    (slow ones are never used), ``wait`` (a step waits up to ``wait`` for them), or ``rac``. Delays are geometric, q;
    ``decay`` and ``last`` as of ``LateRewards``. A step takes 1, one that waits 1 + min(wait, longest delay). All
    constants [inferred]."""

    arm: Literal["full", "drop", "wait", "rac"]
    wait: int = 0
    q: float = 0.3
    decay: float = 0.99086
    last: int | None = None
    rows: int = 16
    epochs: int = 2
    actor_step: float = 0.5
    critic_step: float = 0.2
    clip: float = 0.2
    rho_bar: float = 1.2

    def __post_init__(self) -> None:
        if self.arm not in ("full", "drop", "wait", "rac"):
            raise ConfigError(f"LateRewardPPO: arm = {self.arm!r} must be full, drop, wait or rac")
        number("LateRewardPPO", "wait", self.wait, 0, whole=True)
        if self.wait and self.arm != "wait":
            raise ConfigError(f"LateRewardPPO: wait = {self.wait} has no effect on {self.arm}; leave it out")
        number("LateRewardPPO", "q", self.q, above=0, high=1)
        for name in ("actor_step", "critic_step", "clip", "rho_bar"):
            number("LateRewardPPO", name, getattr(self, name), above=0)
        number("LateRewardPPO", "decay", self.decay, 0, 1)
        if self.last is not None:
            number("LateRewardPPO", "last", self.last, 0, whole=True)
        for name in ("rows", "epochs"):
            object.__setattr__(self, name, int(number("LateRewardPPO", name, getattr(self, name), 1, whole=True)))

    def train(self, world: LateRewardMDP, time: float, seed: int) -> tuple[float, int]:
        """(J of the final policy from ``mdp.start``, exactly, with all rewards; optimizer steps taken) after ``time``
        of wall-clock."""
        number("LateRewardPPO.train", "time", time, above=0)
        seed = int(number("LateRewardPPO.train", "seed", seed, 0, whole=True))
        mdp, g = world.mdp, np.random.default_rng(seed)
        delays = Delays("geometric", 1 / self.q - 1, seed)
        theta, values = np.zeros((mdp.states, mdp.actions)), np.zeros(mdp.states)
        queue: LateRewards[tuple[np.ndarray, np.ndarray, Floats, Floats]] = LateRewards((1.0,), self.decay, self.last)
        states = g.choice(mdp.states, self.rows, p=mdp.start)
        spent, t = 0.0, 0
        while spent < time:
            policy = softmax(theta)
            u = g.random((3, self.rows))
            actions = (u[0][:, None] >= policy.cumsum(1)[states, :-1]).sum(1)
            after = (u[1][:, None] >= mdp.transitions.cumsum(2)[states, actions, :-1]).sum(1)
            slow = world.channels[:, states, actions]
            waits = delays.sample(t, slow.size).reshape(slow.shape)
            rewards = mdp.rewards[states, actions].copy()
            spent += 1.0
            if self.arm == "full":
                rewards += slow.sum(0)
            elif self.arm == "wait":
                rewards += np.where(waits <= self.wait, slow, 0.0).sum(0)
                spent += min(self.wait, int(waits.max(initial=0)))
            behaviour = policy[states, actions]
            delta = rewards + mdp.gamma * values[after] - values[states]
            late_at, late_actions, late_mu, late_delta = states[:0], actions[:0], behaviour[:0], behaviour[:0]
            if self.arm == "rac":
                for channel, late in zip(slow, waits, strict=True):
                    for d in np.unique(late):
                        at = late == d
                        queue.push(t, (states[at], actions[at], behaviour[at], channel[at]), int(d))
                came = [(s, a, mu, weight * residual) for (s, a, mu, residual), weight in queue.due(t)]
                if came:
                    late_at, late_actions, late_mu, late_delta = map(np.concatenate, zip(*came, strict=True))
            np.add.at(values, states, self.critic_step / self.rows * delta)
            np.add.at(values, late_at, self.critic_step / self.rows * late_delta)
            for _ in range(self.epochs):
                step = _direction(theta, states, actions, behaviour, delta, self.clip, np.inf)
                step += _direction(theta, late_at, late_actions, late_mu, late_delta, self.clip, self.rho_bar)
                theta += self.actor_step / self.rows * step
            states = np.where(u[2] < mdp.gamma, after, g.choice(mdp.states, self.rows, p=mdp.start))
            t += 1
        return float(mdp.start @ policy_value(world.with_mass(1.0), softmax(theta))), t


def _direction(
    theta: Floats, states: np.ndarray, actions: np.ndarray, behaviour: Floats, a: Floats, clip: float, rho_bar: float
) -> Floats:
    """sum_i w_i A_i min(rho_bar, rho_i) grad log pi [S,A], w_i = 0 where PPO's clip says so."""
    policy = softmax(theta)
    rho = policy[states, actions] / behaviour
    stopped = ((a > 0) & (rho > 1 + clip)) | ((a < 0) & (rho < 1 - clip))
    factor = np.where(stopped, 0.0, a * np.minimum(rho, rho_bar))
    out = np.zeros_like(theta)
    np.add.at(out, (states, actions), factor)
    np.subtract.at(out, states, factor[:, None] * policy[states])
    return out
