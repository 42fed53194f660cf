"""Where the first epoch's update goes wrong: old samples, a wrong critic, the clip, a finite batch. All exact.

The clip looks at the sign of each sampled advantage, so its bias needs their whole law, not their mean: every
trajectory is enumerated, and the reward noise on top of it, which is normal, is integrated in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number
from stretto.tabular.ppo.oracle import expected_update, gradient, occupancy, values
from stretto.tabular.ppo.worlds import Layered
from stretto.tabular.softmax import softmax

_MOST = 5_000_000


@dataclass(frozen=True)
class Split:
    """First-epoch update = ``gradient`` + ``stale`` + ``critic`` + ``clip`` + noise, all [H, S, A]. ``gradient``: of J
    at the current policy; ``stale``: episodes of the old policy, with its exact values; ``critic``: the old critic in
    their place; ``clip``: samples silenced; ``batch``: mean squared norm of the noise of n episodes."""

    gradient: Floats
    stale: Floats
    critic: Floats
    clip: Floats
    batch: float

    @property
    def squares(self) -> dict[str, float]:
        """Squared norm of the gradient and of each of the four errors, by name: how large each is beside the others."""
        parts = {name: float((getattr(self, name) ** 2).sum()) for name in ("gradient", "stale", "critic", "clip")}
        return parts | {"batch": self.batch}


def advantage_law(world: Layered, policy: Floats, critic: Floats, lam: float) -> list[tuple[Floats, Floats, float]]:
    """For each layer the law of A_lam given (s, a): (chance [S, A, K], mean [S, A, K], deviation), a mixture of K
    normals, one for each continuation. ``ConfigError`` for a world with too many of them."""
    layers, states, actions = policy.shape
    if layers * math.log(states * actions) > math.log(_MOST):
        raise ConfigError(
            f"advantage_law: world has {states * actions}^{layers} trajectories, too many to enumerate; use "
            f"fewer layers (at most {_MOST:.0e} trajectories)"
        )
    law: list[tuple[Floats, Floats, float]] = []
    for h in reversed(range(layers)):
        here = world.rewards[h] - critic[h][:, None]
        if not law:
            law.append((np.ones((states, actions, 1)), here[:, :, None], world.noise))
            continue
        chance, mean, deviation = law[0]
        ahead = (policy[h + 1][:, :, None] * chance).reshape(states, -1)
        target = critic[h + 1][:, None] + lam * mean.reshape(states, -1)
        chances = (world.transitions[h][..., None] * ahead).reshape(states, actions, -1)
        means = here[:, :, None] + np.broadcast_to(target, (states, actions, *target.shape)).reshape(chances.shape)
        law.insert(0, (chances, means, float(np.hypot(world.noise, lam * deviation))))
    return law


def first_epoch(
    world: Layered, theta: ArrayLike, old_theta: ArrayLike, old_critic: ArrayLike, lam: float, clip: float
) -> tuple[Floats, float]:
    """Mean [H, S, A] of one episode's clipped update of ``theta``, and its mean squared norm, where episodes, ratios
    and advantages are of the old pair."""
    new, old, critic, lam, clip = _pair("first_epoch", world, theta, old_theta, old_critic, lam, clip)
    ratio, d = new / old, occupancy(world, old)
    mean, square = np.zeros(new.shape), 0.0
    for h, (chance, centre, deviation) in enumerate(advantage_law(world, old, critic, lam)):
        low, low_square = _negative_part(centre, deviation)
        first, second = (chance * centre).sum(-1), (chance * (centre**2 + deviation**2)).sum(-1)
        low, low_square = (chance * low).sum(-1), (chance * low_square).sum(-1)
        up, down = ratio[h] > 1 + clip, ratio[h] < 1 - clip
        first = np.where(up, low, np.where(down, first - low, first))
        second = np.where(up, low_square, np.where(down, second - low_square, second))
        pull = new[h] * first  # pi_b rho = pi
        mean[h] = d[h][:, None] * (pull - new[h] * pull.sum(-1, keepdims=True))
        length = 1 - 2 * new[h] + (new[h] ** 2).sum(-1, keepdims=True)  # |onehot(a) - pi|^2
        square += float((d[h][:, None] * new[h] * ratio[h] * second * length).sum())
    return mean, square


def clipped_share(
    world: Layered, theta: ArrayLike, old_theta: ArrayLike, old_critic: ArrayLike, lam: float, clip: float
) -> float:
    """Share of the samples that the clip silences in an update of ``theta``, where episodes, ratios and advantages are
    of the old pair: the chance of a ratio above 1 + ``clip`` with A > 0, or below 1 - ``clip`` with A < 0."""
    new, old, critic, lam, clip = _pair("clipped_share", world, theta, old_theta, old_critic, lam, clip)
    ratio, visits = new / old, occupancy(world, old)[:, :, None] * old
    share = 0.0
    for h, (chance, centre, deviation) in enumerate(advantage_law(world, old, critic, lam)):
        below, above = ((chance * _positive(sign * centre, deviation)).sum(-1) for sign in (-1, 1))
        silenced = np.where(ratio[h] > 1 + clip, above, np.where(ratio[h] < 1 - clip, below, 0.0))
        share += float((visits[h] * silenced).sum())
    return share / world.layers


def split_update(
    world: Layered, theta: ArrayLike, old_theta: ArrayLike, old_critic: ArrayLike, lam: float, clip: float,
    episodes: int,
) -> Split:  # fmt: skip
    """The parts of the first epoch's update; see ``Split``. ``ConfigError`` on bad arguments."""
    episodes = int(number("split_update", "episodes", episodes, 1, whole=True))
    clipped, square = first_epoch(world, theta, old_theta, old_critic, lam, clip)
    new, old = softmax(np.asarray(theta, np.float64)), softmax(np.asarray(old_theta, np.float64))
    exact = expected_update(world, new, values(world, old)[1], lam, old)
    learned = expected_update(world, new, old_critic, lam, old)
    true = gradient(world, new)
    noise = (square - float((clipped**2).sum())) / episodes
    return Split(true, exact - true, learned - exact, clipped - learned, noise)


def _pair(
    where: str, world: Layered, theta: ArrayLike, old_theta: ArrayLike, old_critic: ArrayLike, lam: float, clip: float
) -> tuple[Floats, Floats, Floats, float, float]:
    """Policies of both logits, the critic, lam and clip. ``ConfigError`` names what doesn't fit."""
    shape = world.rewards.shape
    new, old = softmax(array(where, "theta", theta, shape)), softmax(array(where, "old_theta", old_theta, shape))
    critic = array(where, "old_critic", old_critic, shape[:2])
    return new, old, critic, number(where, "lam", lam, 0, 1), number(where, "clip", clip, above=0)


def _positive(mean: Floats, deviation: float) -> Floats:
    """P(X > 0) of X ~ N(mean, deviation^2)."""
    return np.asarray(ndtr(mean / deviation) if deviation > 0 else mean > 0, np.float64)


def _negative_part(mean: Floats, deviation: float) -> tuple[Floats, Floats]:
    """E min(X, 0) and E min(X, 0)^2 of X ~ N(mean, deviation^2)."""
    if deviation == 0:
        low = np.minimum(mean, 0)
        return low, low**2
    below = ndtr(-mean / deviation)
    height = deviation * np.exp(-((mean / deviation) ** 2) / 2) / np.sqrt(2 * np.pi)
    return mean * below - height, (mean**2 + deviation**2) * below - mean * height
