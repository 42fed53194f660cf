"""Many decision processes solved at once: the gaps along a run, and alpha over all deterministic opponents."""

from __future__ import annotations

import numpy as np

from stretto.data.arrays import Floats
from stretto.games.markov import MarkovGame
from stretto.tabular.mdp import GAIN


def own_apart(game: MarkovGame, player: int, table: Floats) -> Floats:
    """Table [S, J, ..] as [S, A_i, O, ..]: the player's own action apart from the others' joint action."""
    rest = table.shape[2:]
    split = table.reshape(game.states, *game.actions, *rest)
    return np.moveaxis(split, 1 + player, 1).reshape(game.states, game.actions[player], -1, *rest)


def best_values(transitions: Floats, rewards: Floats, gamma: float) -> Floats:
    """[B, S]: the largest discounted sums of ``rewards`` [B, S, A] under ``transitions`` [B, S, A, S], by policy
    iteration in all B problems at once; an action changes only for a gain above rounding."""
    count, states = rewards.shape[:2]
    choice = np.zeros((count, states), np.int64)
    b, s = np.arange(count)[:, None], np.arange(states)
    while True:
        value = solve(transitions[b, s, choice], rewards[b, s, choice], gamma)
        q = rewards + gamma * np.einsum("bsat,bt->bsa", transitions, value)
        best = q.argmax(2)
        better = q[b, s, best] > q[b, s, choice] + GAIN * max(1.0, float(np.abs(q).max()))
        if not better.any():
            return value
        choice = np.where(better, best, choice)


def solve(transitions: Floats, rewards: Floats, gamma: float) -> Floats:
    """Discounted values [B, S] of B chains ``transitions`` [B, S, S] that pay ``rewards`` [B, S]."""
    return np.asarray(
        np.linalg.solve(np.eye(transitions.shape[-1]) - gamma * transitions, rewards[..., None])[..., 0], np.float64
    )


def nash_gaps(game: MarkovGame, policies: Floats) -> Floats:
    """``nash_gap`` [B] of B sets of policies [B, N, S, A] at once (A the largest number of actions, rest unused)."""
    count = len(policies)
    largest = np.full(count, -np.inf)
    for i in range(game.players):
        weight = np.ones((count, game.states, 1))
        for j, actions in enumerate(game.actions):
            if j != i:
                p = policies[:, j, :, :actions]
                weight = (weight[..., :, None] * p[..., None, :]).reshape(count, game.states, -1)
        transitions = _average(weight, own_apart(game, i, game.transitions))
        costs = _average(weight, own_apart(game, i, game.costs[i])[..., None])[..., 0]
        own = policies[:, i, :, : game.actions[i]]
        value = solve(np.einsum("bsa,bsat->bst", own, transitions), (own * costs).sum(-1), game.gamma)
        largest = np.maximum(largest, (value + best_values(transitions, -costs, game.gamma)) @ game.start)
    return largest


def _average(weight: Floats, table: Floats) -> Floats:
    """[B, S, A, X]: sum over o of weight [B, S, O] and table [S, A, O, X]."""
    states, own, others, rest = table.shape
    flat = table.transpose(0, 2, 1, 3).reshape(states, others, own * rest)
    return np.matmul(weight.transpose(1, 0, 2), flat).transpose(1, 0, 2).reshape(-1, states, own, rest)
