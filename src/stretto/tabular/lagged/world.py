"""A small world for stale data whose return and divergence are exact.

Contexts x a tree of V^T token sequences with a reward at the leaf. All states share one matrix of weights over random
features, so improving one state disturbs the others and no setting of the weights is best everywhere (not
realisable): the condition under which stale updates can do lasting harm (arXiv 2607.01083). J and KL are sums over
all leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TypedDict

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError

_WORLD, _PROMPTS, _TOKENS, _ENGINE = range(4)
_FLOOR = 1e-9


def _noise(seed: int, stream: int, step: int = 0) -> np.random.Generator:
    """Random numbers that depend on (seed, stream, step) and their place in the drawn array alone."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, stream]))


class WorldChanges(TypedDict, total=False):
    """Fields of a ``World``, but for its seed, that differ from another's."""

    contexts: int
    vocab: int
    depth: int
    features: int
    engine_noise: float
    success: float | None
    late: float


@dataclass(frozen=True)
class World:
    """``contexts`` trees of ``depth`` T tokens over ``vocab`` V. Logits of state s: W phi(s), phi ~ N(0, 1) / sqrt(d)
    with d = ``features``. A leaf's score: the sum of N(0, 1) over its path / sqrt(T), centred per context. Its reward
    is the score, or, with ``success`` in (0, 1), 1 for that share of a context's leaves with the highest scores and
    0 for the others (J is then an accuracy). ``late`` in [0, 1): that share of the score's variance arrives late
    (``slow``; the rest is ``fast``); not together with ``success``.

    ``engine_noise``: the engine's probabilities are the trainer's plus N(0, engine_noise), floored at 1e-9 and
    renormalised, drawn anew for each version; the engine reports what it sampled from.

    Arrays: ``phi`` [C,S,d]; ``fast``, ``slow``, ``reward`` = fast + slow [C,V^T]. States are numbered as in a heap:
    the root 0, the child of n by token a is nV + 1 + a; S = (V^T - 1)/(V - 1), and child - S is the leaf.
    Raises ``ConfigError`` for an empty world or a share outside [0, 1).
    """

    contexts: int = 16
    vocab: int = 4
    depth: int = 3
    features: int = 8
    engine_noise: float = 0.0
    success: float | None = None
    late: float = 0.0
    seed: int = 0
    phi: Floats = field(init=False, repr=False)
    fast: Floats = field(init=False, repr=False)
    slow: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if min(self.contexts, self.vocab - 1, self.depth, self.features) < 1 or self.engine_noise < 0:
            raise ConfigError("World: contexts, depth, features >= 1, vocab >= 2 and engine_noise >= 0")
        if not 0 <= self.late < 1:
            raise ConfigError(f"World: late = {self.late} must lie in [0, 1)")
        if self.success is not None and (self.late or not 0 < self.success < 1):
            raise ConfigError(f"World: success = {self.success} must lie in (0, 1), without late rewards")
        g = _noise(self.seed, _WORLD)
        phi = g.standard_normal((self.contexts, self.states, self.features)) / np.sqrt(self.features)
        fast, slow = self._scores(g) * np.sqrt(1 - self.late), self._scores(g) * np.sqrt(self.late)
        if self.success is not None:
            fast = (fast >= np.quantile(fast, 1 - self.success, axis=1, keepdims=True)).astype(np.float64)
        for name, value in (("phi", phi), ("fast", fast), ("slow", slow)):
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        """S = (V^T - 1) / (V - 1): prefixes of one context's tree at which a token is chosen."""
        return int((self.vocab**self.depth - 1) // (self.vocab - 1))

    @property
    def reward(self) -> Floats:
        """Reward [C,V^T] of each leaf of each context, both parts together: fast + slow."""
        return self.fast + self.slow

    @property
    def chance(self) -> float:
        """Expected reward J of the uniform policy, with which every run starts."""
        return float(self.reward.mean())

    @property
    def best(self) -> float:
        """Mean over contexts of the best leaf: no policy is better, and the shared weights can't reach it."""
        return float(self.reward.max(1).mean())

    def _scores(self, g: np.random.Generator) -> Floats:
        total = np.zeros((self.contexts, 1))
        for _ in range(self.depth):
            total = (total[:, :, None] + g.standard_normal((*total.shape, self.vocab))).reshape(self.contexts, -1)
        return (total - total.mean(1, keepdims=True)) / np.sqrt(self.depth)

    def policy(self, weights: Floats) -> Floats:
        """Log-probabilities [C,S,V] of the softmax policy with ``weights`` [V,d]."""
        logits = self.phi @ weights.T
        logits -= logits.max(-1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))

    def engine(self, logp: Floats, version: int, seed: int) -> Floats:
        """What the engine samples from [C,S,V] when the trainer's policy of ``version`` is ``logp``."""
        if not self.engine_noise:
            return logp
        draws = _noise(seed, _ENGINE, version).standard_normal(logp.shape)
        p = np.maximum(np.exp(logp) + self.engine_noise * draws, _FLOOR)
        return np.asarray(np.log(p / p.sum(-1, keepdims=True)))

    def values(self, logp: Floats, reward: Floats | None = None) -> Floats:
        """Exact expected reward V(s) [C,S] from each prefix under ``logp`` [C,S,V], for this ``reward`` [C,V^T] (None:
        the world's); J is the mean of column 0."""
        value = self.reward if reward is None else reward
        return self._up(np.exp(logp), np.zeros_like(logp[..., 0]), value)

    def divergence(self, behaviour: Floats, logp: Floats) -> float:
        """KL(behaviour || logp) of whole sequences in nats, exactly, mean over contexts."""
        p = np.exp(behaviour)
        own = (p * (behaviour - logp)).sum(-1)
        return float(self._up(p, own, np.zeros((self.contexts, self.vocab**self.depth)))[:, 0].mean())

    def _up(self, p: Floats, own: Floats, below: Floats) -> Floats:
        """f(s) = own(s) + sum_a p(a|s) f(child) from the leaves to the roots."""
        out = np.empty_like(own)
        end = self.states
        for t in range(self.depth - 1, -1, -1):
            start = end - self.vocab**t
            here = p[:, start:end] * below.reshape(self.contexts, -1, self.vocab)
            below = out[:, start:end] = own[:, start:end] + here.sum(-1)
            end = start
        return out


@dataclass(frozen=True)
class Rows:
    """Sampled sequences, a row each. ``context``, ``leaf``, ``number`` (unique in a run), ``group``, ``version`` [B];
    ``state``, ``token`` [B,T]; ``behaviour`` and ``old`` [B,T,V]: the engine's and the trainer's log-probabilities at
    the version that sampled them."""

    context: Ints
    leaf: Ints
    number: Ints
    group: Ints
    version: Ints
    state: Ints
    token: Ints
    behaviour: Floats
    old: Floats

    def take(self, index: Ints) -> Rows:
        """The rows at the positions ``index`` [n], in that order."""
        return Rows(*(getattr(self, f.name)[index] for f in fields(self)))

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """All rows of several batches, one batch after the other."""
        return Rows(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Rows)))

    def of_token(self, logp: Floats) -> Floats:
        """Log-probabilities [B,T] of the sampled tokens, picked from ``logp`` [B,T,V]."""
        return np.asarray(np.take_along_axis(logp, self.token[..., None], -1)[..., 0])


@dataclass(frozen=True)
class Sampler:
    """Draws ``group`` sequences for each of ``prompts`` contexts a step (without replacement while they last).
    Contexts and noise are functions of (seed, step, row, position): the same for every objective and lag."""

    world: World
    prompts: int
    group: int
    seed: int

    def sample(self, step: int, version: int, behaviour: Floats, old: Floats) -> Rows:
        """The rows of ``step`` from the engine's policy ``behaviour`` [C,S,V] of ``version``; ``old``: the trainer's
        policy of that version."""
        world, count = self.world, self.prompts * self.group
        deal = _noise(self.seed, _PROMPTS, step)
        order = np.concatenate([deal.permutation(world.contexts) for _ in range(-(-self.prompts // world.contexts))])
        context = np.repeat(order[: self.prompts], self.group)
        u = _noise(self.seed, _TOKENS, step).random((count, world.depth))
        state = np.zeros((count, world.depth), np.int64)
        token = np.zeros_like(state)
        at = np.zeros(count, np.int64)
        for t in range(world.depth):
            state[:, t] = at
            cumulative = np.exp(behaviour[context, at]).cumsum(1)[:, :-1]
            token[:, t] = (u[:, t, None] > cumulative).sum(1)
            at = at * world.vocab + 1 + token[:, t]
        here = (context[:, None], state)
        number = step * count + np.arange(count)
        return Rows(context, at - world.states, number, number // self.group, np.full(count, version), state, token,
                    behaviour[here], old[here])  # fmt: skip
