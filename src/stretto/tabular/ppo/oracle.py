"""What is exact in a layered world: values, gradient, variance of returns, the mean of a policy update."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular.arguments import array, number, probabilities
from stretto.tabular.ppo.worlds import Layered


def values(world: Layered, policy: ArrayLike) -> tuple[Floats, Floats]:
    """Q [H, S, A] and V [H, S] of a policy [H, S, A]: Q_h = R_h + P_h V_{h+1}, backward."""
    pi = _policy("values", world, policy)
    q = np.zeros(world.rewards.shape)
    v = np.zeros((world.layers + 1, world.states))
    for h in reversed(range(world.layers)):
        q[h] = world.rewards[h] + world.transitions[h] @ v[h + 1]
        v[h] = (pi[h] * q[h]).sum(-1)
    return q, v[:-1]


def optimal_values(world: Layered) -> Floats:
    """Largest possible expected reward V* [H, S] from each layer and state to the end, by backward induction."""
    v = np.zeros((world.layers + 1, world.states))
    for h in reversed(range(world.layers)):
        v[h] = (world.rewards[h] + world.transitions[h] @ v[h + 1]).max(-1)
    return v[:-1]


def occupancy(world: Layered, policy: ArrayLike) -> Floats:
    """d [H, S], the chance of each state in each layer: d_{h+1} = d_h pi_h P_h, forward."""
    pi = _policy("occupancy", world, policy)
    d = np.zeros((world.layers, world.states))
    d[0] = world.start
    for h in range(world.layers - 1):
        d[h + 1] = np.einsum("s,sa,sap->p", d[h], pi[h], world.transitions[h])
    return d


def gain(world: Layered, policy: ArrayLike) -> float:
    """J, the expected total reward of an episode of ``policy`` [H, S, A] that starts as ``world.start`` says."""
    return float(world.start @ values(world, policy)[1][0])


def optimal_gain(world: Layered) -> float:
    """J*, the largest expected total reward of an episode that any policy reaches."""
    return float(world.start @ optimal_values(world)[0])


def gradient(world: Layered, policy: ArrayLike) -> Floats:
    """grad J [H, S, A] by the logits of a softmax policy: d_h(s) pi(a|s) (Q - V)."""
    pi = _policy("gradient", world, policy)
    q, v = values(world, pi)
    return occupancy(world, pi)[:, :, None] * pi * (q - v[:, :, None])


def critic_error(world: Layered, policy: ArrayLike, critic: ArrayLike) -> float:
    """Squared error of a critic V [H, S] weighted by visits: sum over h, s of d_h(s) (V - V^pi)^2."""
    v = array("critic_error", "critic", critic, world.rewards.shape[:2])
    return float((occupancy(world, policy) * (v - values(world, policy)[1]) ** 2).sum())


def return_variance(world: Layered, policy: ArrayLike) -> Floats:
    """Var(G | h, s) [H, S] of the undiscounted return from layer h, reward noise included:
    noise^2 + sum_a pi P ((R + V' - V)^2 + Var'), backward."""
    pi = _policy("return_variance", world, policy)
    _, v = values(world, pi)
    after = np.vstack([v[1:], np.zeros(world.states)])
    variance = np.zeros((world.layers + 1, world.states))
    for h in reversed(range(world.layers)):
        off = world.rewards[h][:, :, None] + after[h] - v[h][:, None, None]
        spread = (world.transitions[h] * (off**2 + variance[h + 1])).sum(-1)
        variance[h] = world.noise**2 + (pi[h] * spread).sum(-1)
    return variance[:-1]


def mean_advantages(world: Layered, policy: ArrayLike, critic: ArrayLike, lam: float) -> Floats:
    """E[A_lam | h, s, a] [H, S, A] of GAE (arXiv 1506.02438) with a critic [H, S] where ``policy`` samples:
    R - V + P (V' + lam sum_a' pi(a') A_lam')."""
    pi = _policy("mean_advantages", world, policy)
    v = array("mean_advantages", "critic", critic, pi.shape[:2])
    lam = number("mean_advantages", "lam", lam, 0, 1)
    mean = np.zeros(pi.shape)
    ahead = np.zeros(world.states)
    for h in reversed(range(world.layers)):
        mean[h] = world.rewards[h] - v[h][:, None] + world.transitions[h] @ ahead
        ahead = v[h] + lam * (pi[h] * mean[h]).sum(-1)
    return mean


def expected_update(
    world: Layered, policy: ArrayLike, critic: ArrayLike, lam: float, behaviour: ArrayLike | None = None
) -> Floats:
    """Mean direction [H, S, A] of one unclipped epoch: d pi (A_lam - its mean under pi), by recursion. Episodes, d and
    A_lam are of ``behaviour`` (default: the policy itself), which the ratios turn into ``policy``'s actions."""
    pi = _policy("expected_update", world, policy)
    sampled = pi if behaviour is None else _policy("expected_update", world, behaviour)
    advantage = mean_advantages(world, sampled, critic, lam)
    centred = advantage - (pi * advantage).sum(-1, keepdims=True)
    return occupancy(world, sampled)[:, :, None] * pi * centred


def _policy(where: str, world: Layered, policy: ArrayLike) -> Floats:
    return probabilities(where, "policy", policy, world.rewards.shape)
