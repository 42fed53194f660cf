"""Markov games given by arrays: what a player faces, best responses, distance from a Nash equilibrium. Costs, not
rewards: players minimise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, index_in, probabilities
from stretto.tabular.mdp import MDP, as_policy, policy_iteration

Policies = Sequence[Floats]


@dataclass(frozen=True)
class MarkovGame:
    """``transitions`` [S,J,S], ``costs`` [N,S,J] expected cost of each player, ``gamma`` in [0, 1), ``actions`` the
    players' numbers of actions (their product is J; joint actions are enumerated with player 0 slowest), ``start`` [S]
    (None: uniform). ``ConfigError`` names what doesn't fit."""

    transitions: Floats
    costs: Floats
    gamma: float
    actions: tuple[int, ...]
    start: Floats = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        counts = array("MarkovGame", "actions", self.actions, (None,))
        actions = tuple(int(a) for a in counts)
        if not actions or min(actions) < 1 or (counts != np.round(counts)).any():
            raise ConfigError(
                f"MarkovGame: actions = {self.actions} must give each player a whole number of actions, at least one"
            )
        joint = int(np.prod(actions))
        transitions, costs = (array("MarkovGame", x, getattr(self, x), (None,) * 3) for x in ("transitions", "costs"))
        if costs.shape[2] == transitions.shape[1] and (costs.shape[0], costs.shape[2]) != (len(actions), joint):
            raise ConfigError(
                f"MarkovGame: actions = {actions} name {len(actions)} players with {joint} joint actions, but "
                f"transitions and costs hold {costs.shape[2]} joint actions of {costs.shape[0]} players"
            )
        transitions = probabilities("MarkovGame", "transitions", transitions, (None, joint, None))
        if transitions.shape[0] != transitions.shape[2]:
            raise ConfigError(f"MarkovGame: transitions must be [S,J,S]; got {list(transitions.shape)}")
        states = len(transitions)
        start = np.full(states, 1 / states) if self.start is None else self.start
        fixed = {
            "transitions": transitions,
            "costs": array("MarkovGame", "costs", costs, (len(actions), states, joint)),
            "gamma": discount("MarkovGame", self.gamma),
            "actions": actions,
            "start": probabilities("MarkovGame", "start", start, (states,)),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    @property
    def players(self) -> int:
        """N, the number of players."""
        return len(self.actions)

    @property
    def states(self) -> int:
        """S, the number of states."""
        return self.transitions.shape[0]

    def joint_actions(self) -> Ints:
        """Each player's action in each joint action [J,N], in the order of the arrays."""
        return np.stack(np.unravel_index(np.arange(self.transitions.shape[1]), self.actions), 1).astype(np.int64)


def uniform_policies(game: MarkovGame) -> list[Floats]:
    """One policy [S,A_i] a player that takes each of its actions with the same probability."""
    return [np.full((game.states, a), 1 / a) for a in game.actions]


def joint_policy(game: MarkovGame, policies: Policies) -> Floats:
    """Probability [S,J] of each joint action when each player acts independently by its own of ``policies``.
    ``ConfigError`` names a bad policy."""
    checked = _checked("joint_policy", game, policies)
    out = np.ones((game.states, 1))
    for p in checked:
        out = (out[:, :, None] * p[:, None, :]).reshape(game.states, -1)
    return out


def values(game: MarkovGame, policies: Policies) -> Floats:
    """Expected discounted cost V [N,S] of each player from each state when all follow ``policies``."""
    joint = joint_policy(game, policies)
    transitions = np.einsum("sj,sjt->st", joint, game.transitions)
    costs = np.einsum("sj,nsj->ns", joint, game.costs)
    return np.linalg.solve(np.eye(game.states) - game.gamma * transitions, costs.T).T


def face(game: MarkovGame, policies: Policies, player: int) -> MDP:
    """The decision process of ``player`` when the others keep ``policies`` (its own entry is not used): rewards are
    minus its costs."""
    checked, player = _checked("face", game, policies), index_in("face", "player", player, game.players)
    others = [p if i != player else np.ones((game.states, game.actions[i])) for i, p in enumerate(checked)]
    weights = np.ones((game.states, 1))
    for p in others:
        weights = (weights[:, :, None] * p[:, None, :]).reshape(game.states, -1)
    shape = (game.states, *game.actions)
    sums = tuple(1 + i for i in range(game.players) if i != player)
    own = (weights * game.costs[player]).reshape(shape).sum(sums)
    transitions = (weights[:, :, None] * game.transitions).reshape(*shape, game.states).sum(sums)
    return MDP(transitions / transitions.sum(-1, keepdims=True), -own, game.gamma, game.start)


def best_response(game: MarkovGame, policies: Policies, player: int) -> tuple[Floats, Ints]:
    """Least cost [S] that ``player`` can reach against the others' ``policies``, and the actions [S] that do."""
    found, choice = policy_iteration(face(game, policies, player))
    return -found, choice


def gaps(game: MarkovGame, policies: Policies) -> Floats:
    """How much each player [N] could save from ``game.start`` by a best response to the others; >= 0 up to rounding."""
    own = values(game, policies)
    return np.array([game.start @ (own[i] - best_response(game, policies, i)[0]) for i in range(game.players)])


def nash_gap(game: MarkovGame, policies: Policies) -> float:
    """The most that any player can gain by changing its policy alone, from ``game.start``: the largest of ``gaps``; 0
    at a Nash equilibrium."""
    return float(gaps(game, policies).max())


def nash_conv(game: MarkovGame, policies: Policies) -> float:
    """What the players can gain by changing their policies alone, added up: the sum of ``gaps``; 0 at a Nash
    equilibrium."""
    return float(gaps(game, policies).sum())


def _checked(where: str, game: MarkovGame, policies: Policies) -> list[Floats]:
    if len(policies) != game.players:
        raise ConfigError(f"{where}: policies has {len(policies)} entries for {game.players} players")
    return [
        as_policy(where, f"policies[{i}]", p, game.states, a)
        for i, (p, a) in enumerate(zip(policies, game.actions, strict=True))
    ]
