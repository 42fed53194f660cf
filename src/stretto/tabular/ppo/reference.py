"""The loop of ``kernel`` in plain Python, to be read and tested against: same numbers, same results to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.tabular.counter import key, normals, uniforms
from stretto.tabular.delay import DelayLine
from stretto.tabular.ppo.kernel import ACTION, MOVE, NOISE, START
from stretto.tabular.ppo.learn import Lateness
from stretto.tabular.ppo.options import TabularPPO
from stretto.tabular.ppo.worlds import Layered
from stretto.tabular.sampling import alias_sample, alias_table


@dataclass(frozen=True)
class Batch:
    """Episodes: ``states`` [n, H+1] (the last one is beyond the world), ``actions``, ``rewards``, ``advantages``,
    ``returns`` [n, H]."""

    states: Ints
    actions: Ints
    rewards: Floats
    advantages: Floats
    returns: Floats


def softmax_policy(theta: Floats) -> Floats:
    """pi [H, S, A], the softmax of the logits ``theta``, summed in the order of actions as the compiled loop does."""
    pi = np.empty(theta.shape)
    for h, s in np.ndindex(theta.shape[:2]):
        weights = [math.exp(x - theta[h, s].max()) for x in theta[h, s]]
        pi[h, s] = [w / sum(weights) for w in weights]
    return pi


def sample(world: Layered, pi: Floats, critic: Floats, lam: float, seed: int, first: int, episodes: int) -> Batch:
    """Episodes number ``first`` .. of the run with ``seed``, with GAE of ``critic`` [H, S] and returns."""
    layers, states, actions = world.rewards.shape
    tables, entry = alias_table(world.transitions), alias_table(world.start)
    keys = [np.uint64(key(seed, stream)) for stream in (START, ACTION, MOVE, NOISE)]
    starts = uniforms(keys[0], episodes, first)
    u_action, u_move = (uniforms(k, episodes * layers, first * layers) for k in keys[1:3])
    noise = normals(keys[3], episodes * layers, first * layers)
    at, acted = np.empty((episodes, layers + 1), np.int64), np.empty((episodes, layers), np.int64)
    got, advantages, returns = (np.empty((episodes, layers)) for _ in range(3))
    for i in range(episodes):
        s = alias_sample(*entry, 0, starts[i])
        for h in range(layers):
            j = i * layers + h
            a = min(int((np.cumsum(pi[h, s]) <= u_action[j]).sum()), actions - 1)
            at[i, h], acted[i, h] = s, a
            got[i, h] = world.rewards[h, s, a] + (world.noise * noise[j] if world.noise > 0 else 0.0)
            s = alias_sample(*tables, (h * states + s) * actions + a, u_move[j])
        at[i, layers] = s
        advantage = ahead = after = 0.0
        for h in reversed(range(layers)):
            value = critic[h, at[i, h]]
            advantage = (got[i, h] + after - value) + lam * advantage
            ahead = got[i, h] + ahead
            advantages[i, h], returns[i, h], after = advantage, ahead, value
    return Batch(at, acted, got, advantages, returns)


def critic_move(batch: Batch, critic: Floats) -> Floats:
    """Sum over the batch of 1{s} (G - V(s)) [H, S]."""
    move = np.zeros(critic.shape)
    for i, h in np.ndindex(batch.actions.shape):
        s = batch.states[i, h]
        move[h, s] += batch.returns[i, h] - critic[h, s]
    return move


def actor_move(batch: Batch, sampled: Floats, pi: Floats, clip: float) -> Floats:
    """Sum over the batch of 1{s} w A rho (onehot(a) - pi(.|s)) [H, S, A]."""
    move = np.zeros(pi.shape)
    for i, h in np.ndindex(batch.actions.shape):
        s, a, advantage = batch.states[i, h], batch.actions[i, h], batch.advantages[i, h]
        ratio = pi[h, s, a] / sampled[h, s, a]
        outward = (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip)
        if not outward:
            weight = advantage * ratio
            move[h, s] -= weight * pi[h, s]
            move[h, s, a] += weight
    return move


def mean_kl(batch: Batch, sampled: Floats, pi: Floats) -> float:
    """KL(behaviour || current) in nats, mean over the batch's states [inferred]."""
    episodes, layers = batch.actions.shape
    total = 0.0
    for h in range(layers):
        for s in range(pi.shape[1]):
            visits = float((batch.states[:, h] == s).sum())
            pairs = zip(sampled[h, s], pi[h, s], strict=True)
            divergence = sum(float(p) * math.log(p / q) if q > 0 else math.inf for p, q in pairs if p > 0)
            total += visits * divergence if visits > 0 else 0.0
    return total / (episodes * layers)


def ppo_reference(
    world: Layered, options: TabularPPO, iterations: int, seed: int, lateness: Lateness | None = None
) -> Iterator[tuple[Floats, Floats, int]]:
    """(theta [H, S, A], V [H, S], epochs used) after each iteration of one run from zero."""
    theta, critic = np.zeros(world.rewards.shape), np.zeros(world.rewards.shape[:2])
    delays = np.zeros(iterations, int) if lateness is None else lateness.of_run(seed, iterations)
    alphas, betas = options.actor_steps(iterations), options.critic_steps(iterations)
    line: DelayLine[tuple[Floats, Floats]] = DelayLine(initial=(theta.copy(), critic.copy()))
    for t in range(iterations):
        line.push(t, (theta.copy(), critic.copy()), int(delays[t]))
        behaviour, old_critic = line.latest(t)
        sampled = softmax_policy(behaviour)
        batch = sample(world, sampled, old_critic, options.lam, seed, t * options.episodes, options.episodes)
        critic += betas[t] * critic_move(batch, old_critic) / options.episodes
        used = 0
        for _ in range(options.epochs):
            pi = softmax_policy(theta)
            if options.kl_stop is not None and mean_kl(batch, sampled, pi) > options.kl_stop:
                break
            used += 1
            theta += alphas[t] * actor_move(batch, sampled, pi, options.clip) / options.episodes
        yield theta.copy(), critic.copy(), used
