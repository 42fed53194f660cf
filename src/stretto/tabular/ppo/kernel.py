"""The compiled loop of closed-loop PPO-Clip, one run a thread. ``reference`` is the same loop in plain Python.

Logits theta and policies are [H, S, A], critics V [H+1, S] with V[H] = 0. Random numbers are counted: draw
(t n + i) of the run's START stream, draw (t n + i) H + h of its ACTION, MOVE and NOISE streams.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange

from stretto.data.arrays import Floats, Ints, Words
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.sampling import alias_sample

Alias = tuple[Floats, int]
"""Columns and bits of a table, as ``alias_sample`` takes them."""
Batch = tuple[Ints, Ints, Floats]
"""States [n, H+1], actions [n, H] and rewards [n, H] of n episodes."""
START, ACTION, MOVE, NOISE = 0, 1, 2, 3


@njit(cache=True)
def policy_of(theta: Floats, pi: Floats) -> None:
    """Fill ``pi`` [H, S, A] with the softmax over actions of the logits ``theta`` [H, S, A]."""
    layers, states, actions = theta.shape
    for h in range(layers):
        for s in range(states):
            top = theta[h, s, 0]
            for a in range(1, actions):
                top = max(top, theta[h, s, a])
            total = 0.0
            for a in range(actions):
                pi[h, s, a] = math.exp(theta[h, s, a] - top)
                total += pi[h, s, a]
            for a in range(actions):
                pi[h, s, a] /= total


@njit(cache=True)
def _copy(x: Floats, out: Floats) -> None:
    """Element by element: an array assignment would compile its error messages, too."""
    flat, target = x.ravel(), out.ravel()
    for i in range(flat.size):
        target[i] = flat[i]


@njit(cache=True)
def _measure(
    transitions: Floats, rewards: Floats, start: Floats, pi: Floats, critic: Floats, q: Floats, v: Floats
) -> tuple[float, float, float]:
    """J, |grad J|^2 and the critic error, exact. Fills the work space ``q`` [H, S, A], ``v`` [H+1, S]."""
    layers, states, actions = pi.shape
    for h in range(layers - 1, -1, -1):
        for s in range(states):
            v[h, s] = 0.0
            for a in range(actions):
                q[h, s, a] = rewards[h, s, a]
                for after in range(states):
                    q[h, s, a] += transitions[h, s, a, after] * v[h + 1, after]
                v[h, s] += pi[h, s, a] * q[h, s, a]
    d, gain, slope, error = start.copy(), 0.0, 0.0, 0.0
    for s in range(states):
        gain += d[s] * v[0, s]
    for h in range(layers):
        following = np.zeros(states)
        for s in range(states):
            error += d[s] * (critic[h, s] - v[h, s]) ** 2
            for a in range(actions):
                mass = d[s] * pi[h, s, a]
                slope += (mass * (q[h, s, a] - v[h, s])) ** 2
                for after in range(states):
                    following[after] += mass * transitions[h, s, a, after]
        d = following
    return gain, slope, error


@njit(cache=True)
def _sample(
    keys: Words, first: int, pi: Floats, rewards: Floats, noise: float, transitions: Alias, start: Alias, batch: Batch
) -> None:
    """Fills ``batch`` = (states [n, H+1], actions [n, H], rewards [n, H]) from episode number ``first`` on."""
    layers, states, actions = pi.shape
    at, acted, got = batch
    for i in range(len(acted)):
        s = alias_sample(start[0], start[1], 0, uniform(keys[START], first + i))
        for h in range(layers):
            number = (first + i) * layers + h
            u = uniform(keys[ACTION], number)
            a, mass = 0, pi[h, s, 0]
            while u >= mass and a < actions - 1:
                a += 1
                mass += pi[h, s, a]
            reward = rewards[h, s, a]
            if noise > 0:
                reward += noise * normal(keys[NOISE], number)
            at[i, h], acted[i, h], got[i, h] = s, a, reward
            s = alias_sample(
                transitions[0], transitions[1], (h * states + s) * actions + a, uniform(keys[MOVE], number)
            )
        at[i, layers] = s


@njit(cache=True)
def _critic(batch: Batch, lam: float, step: float, old: Floats, critic: Floats, advantages: Floats) -> None:
    """Advantages [n, H] of the old critic, and one step of the current one towards the returns."""
    at, acted, got = batch
    episodes, layers = acted.shape
    move = np.zeros(critic.shape)
    for i in range(episodes):
        advantage, ahead = 0.0, 0.0
        for h in range(layers - 1, -1, -1):
            s = at[i, h]
            delta = got[i, h] + old[h + 1, at[i, h + 1]] - old[h, s]
            advantage = delta + lam * advantage
            ahead = got[i, h] + ahead
            advantages[i, h] = advantage
            move[h, s] += ahead - old[h, s]
    for h in range(layers):
        for s in range(critic.shape[1]):
            critic[h, s] += step * move[h, s] / episodes


@njit(cache=True)
def _mean_kl(at: Ints, sampled: Floats, pi: Floats) -> float:
    """KL(behaviour || current), mean over the batch's states."""
    layers, states, actions = pi.shape
    total = 0.0
    for h in range(layers):
        visits = np.zeros(states)
        for i in range(len(at)):
            visits[at[i, h]] += 1.0
        for s in range(states):
            divergence = 0.0
            for a in range(actions):
                if sampled[h, s, a] > 0 and pi[h, s, a] == 0:
                    divergence = math.inf  # the current policy has underflowed there
                elif sampled[h, s, a] > 0:
                    divergence += sampled[h, s, a] * math.log(sampled[h, s, a] / pi[h, s, a])
            if visits[s] > 0:
                total += visits[s] * divergence
    return total / (len(at) * layers)


@njit(cache=True)
def _epoch(
    batch: Batch, advantages: Floats, sampled: Floats, pi: Floats, clip: float, step: float, theta: Floats, move: Floats
) -> int:
    """One clipped step of ``theta``; how many samples were clipped."""
    at, acted, _ = batch
    episodes, layers = acted.shape
    actions = pi.shape[2]
    move.fill(0.0)
    clipped = 0
    for i in range(episodes):
        for h in range(layers):
            s, a, advantage = at[i, h], acted[i, h], advantages[i, h]
            ratio = pi[h, s, a] / sampled[h, s, a]
            if (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip):
                clipped += 1
                continue
            weight = advantage * ratio
            for b in range(actions):
                move[h, s, b] -= weight * pi[h, s, b]
            move[h, s, a] += weight
    for h in range(layers):
        for s in range(pi.shape[1]):
            for b in range(actions):
                theta[h, s, b] += step * move[h, s, b] / episodes
    return clipped


@njit(cache=True)
def _learn(
    seed: int, world: tuple[Floats, Floats, Floats, float], tables: tuple[Alias, Alias], steps: tuple[Floats, Floats],
    numbers: tuple[int, int, float, float, float], read: Ints, every: int, goal: float, theta: Floats, critic: Floats,
    old: tuple[Floats, Floats], trace: Floats, used: Ints,
) -> int:  # fmt: skip
    """One run in place; the number of iterations done."""
    transitions, rewards, start, noise = world
    alphas, betas = steps
    episodes, epochs, clip, lam, kl_stop = numbers
    layers, states, actions = theta.shape
    keys = np.empty(4, np.uint64)
    for stream in range(4):
        keys[stream] = key(seed, stream)
    depth = 1
    for t in range(len(read)):
        depth = max(depth, t - read[t] + 1)
    thetas, critics = np.empty((depth, layers, states, actions)), np.empty((depth, layers + 1, states))
    batch = (np.empty((episodes, layers + 1), np.int64), np.empty((episodes, layers), np.int64),
             np.empty((episodes, layers)))  # fmt: skip
    advantages = np.empty((episodes, layers))
    pi, sampled, move = np.empty(theta.shape), np.empty(theta.shape), np.empty(theta.shape)
    q, v = np.zeros(theta.shape), np.zeros(critic.shape)
    done = len(alphas)
    for t in range(len(alphas) + 1):
        _copy(theta, thetas[t % depth])
        _copy(critic, critics[t % depth])
        if t % every == 0:
            policy_of(theta, pi)
            gain, slope, error = _measure(transitions, rewards, start, pi, critic, q, v)
            trace[0, t // every], trace[1, t // every], trace[2, t // every] = gain, slope, error
            if gain >= goal:
                done = t
        if t == done:
            break
        behaviour, old_critic = thetas[read[t] % depth], critics[read[t] % depth]
        policy_of(behaviour, sampled)
        _sample(keys, t * episodes, sampled, rewards, noise, tables[0], tables[1], batch)
        _critic(batch, lam, betas[t], old_critic, critic, advantages)
        for epoch in range(epochs):
            policy_of(theta, pi)
            if kl_stop >= 0 and _mean_kl(batch[0], sampled, pi) > kl_stop:
                break
            used[epoch, 0] += 1
            used[epoch, 1] += _epoch(batch, advantages, sampled, pi, clip, alphas[t], theta, move)
    _copy(thetas[read[done] % depth], old[0])
    _copy(critics[read[done] % depth], old[1])
    return done


@njit(cache=True, parallel=True)
def learn(
    seeds: Ints, transitions: Floats, rewards: Floats, start: Floats, noise: float, move_columns: Floats,
    move_bits: int, start_columns: Floats, start_bits: int, alphas: Floats, betas: Floats, episodes: int, epochs: int,
    clip: float, lam: float, kl_stop: float, reads: Ints, every: int, goal: float, thetas: Floats, critics: Floats,
    old_thetas: Floats, old_critics: Floats, traces: Floats, used: Ints, done: Ints,
) -> None:  # fmt: skip
    """All runs, in place. ``move_..``, ``start_..``: alias tables; ``kl_stop`` negative: off; ``reads`` [runs, T+1]:
    the iteration whose pair iteration t reads; what comes after ``goal`` has a leading axis of runs. ``traces``
    [runs, 3, T // every + 1] receives J, |grad J|^2 and the critic error; ``used`` [runs, E, 2] epochs done and
    samples clipped."""
    for run in prange(len(seeds)):
        done[run] = _learn(
            seeds[run], (transitions, rewards, start, noise), ((move_columns, move_bits), (start_columns, start_bits)),
            (alphas, betas), (episodes, epochs, clip, lam, kl_stop), reads[run], every, goal, thetas[run],
            critics[run], (old_thetas[run], old_critics[run]), traces[run], used[run],
        )  # fmt: skip
