"""Late rewards, exactly: how much of them arrives, what bias the rest leaves, and the queue in which they wait.

A reward r = r_fast + sum_c r_c has slow channels c. Training starts with placeholders m_c; when r_c arrives d steps
later, its residual r_c - m_c is added with weight phi^d w_j at j = 0, 1, .. steps after. R_c, the expected total
weight, is the channel's mass and 1 - R_c its slack: the advantage is biased by -sum_c (1 - R_c) A_{r_c - m_c}, exactly
(retroactive advantage correction, arXiv 2606.27580; the formalisation with slack is [inferred]).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number, probabilities
from stretto.tabular.delay import DelayLine
from stretto.tabular.mdp import MDP, action_values, policy_value, soft_value_iteration

Item = TypeVar("Item")


@dataclass(frozen=True)
class LateRewardMDP:
    """``mdp`` with the fast rewards, and ``channels`` [C,S,A] of slow ones, C >= 0."""

    mdp: MDP
    channels: Floats

    def __post_init__(self) -> None:
        shape = (None, self.mdp.states, self.mdp.actions)
        object.__setattr__(self, "channels", array("LateRewardMDP", "channels", self.channels, shape))

    def with_mass(self, mass: ArrayLike) -> MDP:
        """The process in which channel c pays ``mass`` [C] (or one number) of itself: what a learner sees in the long
        run without placeholders."""
        r = _masses("LateRewardMDP.with_mass", mass, len(self.channels))
        return replace(self.mdp, rewards=self.mdp.rewards + np.einsum("c,csa->sa", r, self.channels))


def _masses(where: str, mass: ArrayLike, channels: int) -> Floats:
    """``mass`` as R [C], each in [0, 1]."""
    r = array(where, "mass", mass)
    if r.shape not in ((), (1,), (channels,)):
        raise ConfigError(f"{where}: mass has shape {list(r.shape)} but must be a number or [{channels}]")
    number(where, "smallest of mass", r.min(initial=0), 0)
    number(where, "largest of mass", r.max(initial=0), 0, 1 + 1e-12)
    return np.broadcast_to(r, (channels,))


def rac5(channels: int = 2) -> LateRewardMDP:
    """5 states, 3 actions, gamma .9: P = Dirichlet(1), r_fast uniform on [0, 1], from ``default_rng(0)``; each slow
    channel uniform on [-1, 1], in turn from ``default_rng(10)``. [inferred]"""
    channels = int(number("rac5", "channels", channels, 0, 1000, whole=True))
    g = np.random.default_rng(0)
    transitions = g.dirichlet(np.ones(5), size=(5, 3))
    mdp = MDP(transitions, g.uniform(0, 1, (5, 3)), 0.9)
    slow = np.random.default_rng(10)
    return LateRewardMDP(mdp, np.array([slow.uniform(-1, 1, (5, 3)) for _ in range(channels)]).reshape(channels, 5, 3))


def arrival_mass(q: float, decay: float = 1.0, last: int | None = None) -> float:
    """R of delays P(d) = q (1 - q)^d, weight ``decay``^d and nothing after d = ``last`` (None: no cut-off): q (1 -
    x^{last + 1}) / (1 - x), x = (1 - q) decay."""
    q = number("arrival_mass", "q", q, above=0, high=1)
    decay = number("arrival_mass", "decay", decay, 0, 1)
    x, rest = (1 - q) * decay, (1 - decay) + q * decay  # rest = 1 - x, exact for a small q as well
    if last is None:
        return q / rest
    return q * (1 - x ** (number("arrival_mass", "last", last, 0, whole=True) + 1)) / rest


def waiting_mass(q: float, wait: int) -> float:
    """R of a step that waits up to ``wait`` steps for its rewards, delays P(d) = q (1 - q)^d: 1 - (1 - q)^{wait+1}."""
    return arrival_mass(q, 1.0, wait)


def waiting_time(q: float, wait: int, channels: int = 1) -> float:
    """Expected length of a step that waits for the slowest of ``channels``, at most ``wait``: 1 + E[min(wait, max_c
    d_c)], delays P(d) = q (1 - q)^d. A step that doesn't wait takes 1."""
    q = number("waiting_time", "q", q, above=0, high=1)
    wait = int(number("waiting_time", "wait", wait, 0, whole=True))
    channels = int(number("waiting_time", "channels", channels, 1, whole=True))
    late = (1 - q) ** np.arange(1, wait + 1)
    return 1 + float((1 - (1 - late) ** channels).sum())


def total_mass(chance: ArrayLike, weight: ArrayLike) -> float:
    """R = sum_d P(d) weight(d), in [0, 1]: ``chance`` [D] non-negative with a sum of at most 1 (what is missing never
    arrives), ``weight`` [D] in [0, 1]."""
    p = array("total_mass", "chance", chance, (None,))
    w = array("total_mass", "weight", weight, p.shape)
    number("total_mass", "smallest of chance", p.min(initial=0), 0)
    number("total_mass", "sum of chance", p.sum(), 0, 1 + 1e-12)
    number("total_mass", "smallest of weight", w.min(initial=0), 0)
    number("total_mass", "largest of weight", w.max(initial=0), 0, 1)
    return float(p @ w)


def advantage(mdp: MDP, policy: ArrayLike) -> Floats:
    """Exact advantages A = Q - V [S,A] of ``policy`` [S,A]."""
    values = policy_value(mdp, policy)
    return action_values(mdp, values) - values[:, None]


def advantage_bias(world: LateRewardMDP, policy: ArrayLike, mass: ArrayLike, placeholders: ArrayLike = 0.0) -> Floats:
    """[S,A]: E[A_RAC] - A = -sum_c (1 - R_c) A_{r_c - m_c}, for ``mass`` R [C] or a number and ``placeholders`` m,
    a number or what ``channels`` broadcasts with ([C,1,1], [C,S,A])."""
    r = _masses("advantage_bias", mass, len(world.channels))
    late, held = world.channels, array("advantage_bias", "placeholders", placeholders)
    fits = held.ndim <= 3 and all(n in (1, m) for n, m in zip(held.shape[::-1], late.shape[::-1], strict=False))
    if not fits:
        raise ConfigError(f"advantage_bias: placeholders have shape {list(held.shape)}, which doesn't go with "
                          f"channels {list(late.shape)}")  # fmt: skip
    residual = late - held
    missing = np.einsum("c,csa->sa", 1 - r, residual)
    return -advantage(replace(world.mdp, rewards=missing), policy)


def soft_policy_bias(world: LateRewardMDP, mass: ArrayLike, temp: float = 0.1) -> float:
    """max_s sum_a |pi_R - pi|: how far the soft-optimal policy at temperature ``temp`` moves when channels only pay
    ``mass``. Linear in the slack only as it vanishes."""
    biased, true = (soft_value_iteration(world.with_mass(r), temp)[1] for r in (mass, 1.0))
    return float(np.abs(biased - true).sum(1).max())


def clipped_mean(behaviour: ArrayLike, policy: ArrayLike, rho_bar: float) -> Floats:
    """[S]: E_mu[min(rho_bar, pi / mu)] of ``behaviour`` mu and ``policy`` pi [S,A]; 1 where the clipped ratio is
    unbiased, less where it isn't."""
    mu = probabilities("clipped_mean", "behaviour", behaviour, (None, None))
    pi = probabilities("clipped_mean", "policy", policy, mu.shape)
    rho_bar = number("clipped_mean", "rho_bar", rho_bar, above=0)
    return np.minimum(rho_bar * mu, pi).sum(1)


class LateRewards(Generic[Item]):
    """Residuals that wait in a ``DelayLine`` for their step, then come back in shares: weight ``decay``^d ``spread``[j]
    at j steps after an arrival d steps late. One that would be later than ``last`` is dropped when it is put. Each has
    mass one: ``pushed`` = ``injected`` + ``dropped`` + ``pending``, at any time."""

    def __init__(self, spread: Sequence[float] = (1.0,), decay: float = 1.0, last: int | None = None) -> None:
        self._spread = array("LateRewards", "spread", spread, (None,))
        number("LateRewards", "smallest of spread", self._spread.min(initial=0), 0)
        number("LateRewards", "sum of spread", math.fsum(self._spread), 0, 1 + 1e-12)
        self._decay = number("LateRewards", "decay", decay, 0, 1)
        self._last = None if last is None else number("LateRewards", "last", last, 0, whole=True)
        self._waiting: DelayLine[tuple[Item, float]] = DelayLine(lifetime=self._last)
        self._shares: DelayLine[tuple[Item, float]] = DelayLine()
        self.pushed, self.injected, self.dropped = 0, 0.0, 0.0
        self._arrived = 0.0  # what of arrived mass will be injected

    @property
    def pending(self) -> float:
        """Mass that waits: residuals that haven't come, and shares that haven't been given out."""
        return self._waiting.pending + self._arrived - self.injected

    def push(self, t: int, item: Item, delay: int) -> None:
        """Put ``item`` in: it arrives ``delay`` whole steps after step ``t``. ``ConfigError`` for a negative delay."""
        delay = int(number("LateRewards.push", "delay", delay, 0, whole=True))
        self._waiting.push(t, (item, self._decay**delay), delay)  # counted once the line has taken it
        self.pushed += 1
        if self._last is not None and delay > self._last:
            self.dropped += 1

    def due(self, t: int) -> list[tuple[Item, float]]:
        """(item, weight) of every share that falls due up to step ``t``, to be added to training now; call it at every
        step."""
        for (item, weight), _ in self._waiting.due(t):
            self._arrived += weight * float(self._spread.sum())
            self.dropped += 1 - weight * float(self._spread.sum())
            for j, share in enumerate(self._spread):
                self._shares.push(t, (item, weight * float(share)), j)
        out = [share for share, _ in self._shares.due(t)]
        self.injected += sum(weight for _, weight in out)
        return out
