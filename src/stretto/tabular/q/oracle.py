"""Where corrupted Q-learning goes in the limit, exactly: by means, by trimmed means, and what no method can beat."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number, probabilities
from stretto.tabular.chains import stationary
from stretto.tabular.mdp import MDP, action_values, chain, uniform_policy, value_iteration
from stretto.tabular.q.corruption import Corruption
from stretto.tabular.q.robust import local_share, trim_for

_SLACK, _HALVINGS, _FAR, _NEAR = 50, 200, 40.0, 1e-13


def best_q(mdp: MDP) -> Floats:
    """Q* [S,A]: expected discounted reward of each action when the best ones follow, by value iteration."""
    return action_values(mdp, value_iteration(mdp)[0])


def shares(mdp: MDP, corruption: Corruption) -> Floats:
    """Share [S,A] of what is recorded at each state and action that is corrupted, under a uniform behaviour."""
    if corruption.states != "both":
        return np.full((mdp.states, mdp.actions), float(corruption.share))
    policy = uniform_policy(mdp)
    return local_share(corruption.share, stationary(chain(mdp, policy)[0])[:, None] * policy)


def mean_limit(mdp: MDP, corruption: Corruption) -> Floats:
    """[S,A]: fixed point of vanilla and mean Q-learning in expectation, Q = (1 - e)(R + g P max Q) + e (-magnitude + g
    max Q(s')), s' the true next state or, if ``corruption.states`` aren't ``none``, state 0; e the share at that pair
    (uniform behaviour). It is the Q* of another process."""
    e = shares(mdp, corruption)[:, :, None]
    transitions = mdp.transitions
    if corruption.states != "none":
        transitions = (1 - e) * transitions + e * np.eye(mdp.states)[0]
    return best_q(
        replace(mdp, transitions=transitions, rewards=(1 - e[..., 0]) * mdp.rewards - e[..., 0] * corruption.magnitude)
    )


def robust_limit(
    mdp: MDP, corruption: Corruption, noise: float, trim: ArrayLike | None = None, tolerance: float = 1e-12
) -> Floats:
    """[S,A]: fixed point of trimmed Q-learning with epochs without end: Q = population trimmed mean of the mixture (1 -
    e) sum_s' P N(R + g V(s'), noise^2) + e (its corrupted targets), e the share at that pair (uniform behaviour).
    ``trim``: as of ``Rule``; None: ``trim_for`` the share. ``ConfigError`` if it isn't in [0, 1/2)."""
    noise = number("robust_limit", "noise", noise, 0)
    cut = array("robust_limit", "trim", trim_for(corruption.share) if trim is None else trim)
    if cut.size == 0 or (cut.size > 1 and cut.shape != (mdp.states, mdp.actions)):
        raise ConfigError(f"robust_limit: trim has shape {list(cut.shape)} but must be a number or "
                          f"[{mdp.states}, {mdp.actions}]")  # fmt: skip
    for value in (cut.min(), cut.max()):
        number("robust_limit", "trim", value, 0, below=0.5)
    tolerance = number("robust_limit", "tolerance", tolerance, high=1, above=0)
    # it contracts by gamma: after so many rounds only rounding is left
    rounds = _SLACK + (int(math.log(1e-17 * (1 - mdp.gamma)) / math.log(mdp.gamma)) if mdp.gamma > 0 else 0)
    cut = np.broadcast_to(cut, (mdp.states, mdp.actions))
    e = shares(mdp, corruption)[:, :, None]
    weights = np.concatenate([(1 - e) * mdp.transitions, e * mdp.transitions], -1)
    spread = np.repeat([noise, 0.0], mdp.states)
    q = np.zeros((mdp.states, mdp.actions))
    for _ in range(rounds):
        values = mdp.gamma * q.max(1)
        true = mdp.rewards[:, :, None] + values
        wrong = np.broadcast_to(
            -corruption.magnitude + (values if corruption.states == "none" else values[0]), true.shape
        )
        better = population_trimmed_mean(weights, np.concatenate([true, wrong], -1), spread, cut)
        change = np.abs(better - q).max()
        q = better
        if change * mdp.gamma <= tolerance * (1 - mdp.gamma) * max(1.0, np.abs(q).max()):
            return q
    raise ConfigError(f"robust_limit: no fixed point to {tolerance:g}; allow a larger tolerance")


def population_trimmed_mean(weights: ArrayLike, means: ArrayLike, spread: ArrayLike, trim: ArrayLike) -> Floats:
    """[...]: mean of the part between quantiles ``trim`` and 1 - ``trim`` [...] of mixtures of K normals, ``weights``
    [..., K], ``means`` [..., K], standard deviations ``spread`` [K] (0: a point mass). Quantiles by bisection."""
    where = "population_trimmed_mean"
    w, m = probabilities(where, "weights", weights), array(where, "means", means)
    if m.shape != w.shape:
        raise ConfigError(f"{where}: means have shape {list(m.shape)} but weights {list(w.shape)}")
    sd, t = array(where, "spread", spread, (w.shape[-1],)), array(where, "trim", trim)
    t = t.reshape(np.shape(trim))
    number(where, "smallest of spread", sd.min(), 0)
    if t.shape not in ((), w.shape[:-1]):
        raise ConfigError(f"{where}: trim has shape {list(t.shape)} but must be a number or {list(w.shape[:-1])}")
    for value in (t.min(), t.max()):
        number(where, "trim", value, 0, below=0.5)
    whole = np.asarray((w * m).sum(-1))
    if (t == 0).all():
        return whole
    inner = (_below(w, m, sd, 1 - t) - _below(w, m, sd, t)) / (1 - 2 * t)
    return np.where(t == 0, whole, inner)


def two_point_gap(share: float, gamma: float) -> tuple[float, float]:
    """(|p - p'|, gap in Q). Two processes with one state whose Bernoulli rewards have means p and p' with |p - p'| =
    share / (1 - share) can be corrupted into the same law: no learner tells their values, |p - p'| / (1 - gamma)
    apart, from one another, and errs by half of that on one of them."""
    share = number("two_point_gap", "share", share, 0, below=0.5)
    gamma = number("two_point_gap", "gamma", gamma, 0, below=1)
    gap = share / (1 - share)
    return gap, gap / (1 - gamma)


def _below(w: Floats, m: Floats, sd: Floats, level: Floats) -> Floats:
    """Integral of the quantile function from 0 to ``level``: E[X; X <= x] + x (level - F(x)) at its quantile x, which
    is exact at point masses too, on either side of them."""
    scale, smooth = np.where(sd > 0, sd, 1.0), sd > 0
    low, high = (m - _FAR * sd).min(-1), (m + _FAR * sd).max(-1)
    x = 0.5 * (low + high)
    for _ in range(_HALVINGS):  # Newton's steps inside the bracket, halving where they leave it
        z = (x[..., None] - m) / scale
        part = np.where(smooth, ndtr(z), z >= 0)
        density = np.where(smooth, np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi), 0.0)
        over, slope = (w * part).sum(-1) - level, (w * density / scale).sum(-1)
        low, high = np.where(over >= 0, low, x), np.where(over >= 0, x, high)
        newton = x - over / np.where(slope > 0, slope, np.inf)
        inside = (slope > 0) & (low <= newton) & (newton <= high)
        following = np.where(inside, newton, 0.5 * (low + high))
        if (np.abs(following - x) <= _NEAR * (1 + np.abs(x))).all():
            break
        x = following
    return np.asarray((w * (m * part - sd * density)).sum(-1) - x * over)
