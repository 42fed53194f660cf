"""Markov games by arrays: what a player faces, best responses, gaps."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test

from stretto.games.foraging.outside import play
from stretto.games.foraging.tactical import TacticalLearner
from stretto.games.markov import (
    MarkovGame,
    best_response,
    face,
    gaps,
    joint_policy,
    nash_conv,
    nash_gap,
    uniform_policies,
    values,
)
from stretto.games.zoo import Group, ParallelGame
from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import policy_value


def _game(seed: int = 0, actions: tuple[int, ...] = (2, 3, 2), gamma: float = 0.8) -> MarkovGame:
    g = np.random.default_rng(seed)
    joint = int(np.prod(actions))
    transitions = g.dirichlet(np.ones(3), size=(3, joint))
    return MarkovGame(transitions, g.random((len(actions), 3, joint)), gamma, actions, g.dirichlet(np.ones(3)))


def _policies(game: MarkovGame, seed: int = 1) -> list[np.ndarray]:
    g = np.random.default_rng(seed)
    return [g.dirichlet(np.ones(a), size=game.states) for a in game.actions]


def test_joint_actions_put_player_0_slowest() -> None:
    game = _game()
    assert game.joint_actions()[:4].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    policies = _policies(game)
    joint = joint_policy(game, policies)
    for j, chosen in enumerate(game.joint_actions()):
        product = np.prod([p[:, a] for p, a in zip(policies, chosen, strict=True)], 0)
        assert joint[:, j] == pytest.approx(product, abs=1e-15)


@pytest.mark.parametrize("player", [0, 1, 2])
def test_what_a_player_faces_is_the_average_over_the_others(player: int) -> None:
    game = _game()
    policies = _policies(game)
    mdp = face(game, policies, player)
    transitions, costs = np.zeros_like(mdp.transitions), np.zeros_like(mdp.rewards)
    for j, chosen in enumerate(game.joint_actions()):
        weight = np.prod([policies[i][:, a] for i, a in enumerate(chosen) if i != player], 0)
        transitions[:, chosen[player]] += weight[:, None] * game.transitions[:, j]
        costs[:, chosen[player]] += weight * game.costs[player, :, j]
    assert np.abs(mdp.transitions - transitions).max() < 1e-14
    assert np.abs(mdp.rewards + costs).max() < 1e-14
    assert np.abs(-policy_value(mdp, policies[player]) - values(game, policies)[player]).max() < 1e-13


def test_a_best_response_beats_every_deterministic_policy() -> None:
    game = _game(actions=(2, 2))
    policies = _policies(game)
    for player in range(2):
        found, choice = best_response(game, policies, player)
        every = []
        for c in itertools.product(range(2), repeat=3):
            changed = list(policies)
            changed[player] = np.eye(2)[list(c)]
            every.append(values(game, changed)[player])
        assert found == pytest.approx(np.min(every, 0), abs=1e-12)
        changed = list(policies)
        changed[player] = np.eye(2)[choice]
        assert values(game, changed)[player] == pytest.approx(found, abs=1e-12)


def test_gaps_are_nonnegative_and_vanish_at_an_equilibrium() -> None:
    game = _game()
    assert (gaps(game, _policies(game)) > 0).all()
    assert nash_gap(game, _policies(game)) < nash_conv(game, _policies(game))
    dominant = MarkovGame(np.ones((1, 4, 1)), [[[0, 0, 1, 1]], [[0, 1, 0, 1]]], 0.5, (2, 2))
    at_it = [np.array([[1.0, 0.0]])] * 2
    assert nash_conv(dominant, at_it) == pytest.approx(0, abs=1e-12)
    assert nash_gap(dominant, uniform_policies(dominant)) == pytest.approx(1)
    assert nash_conv(dominant, uniform_policies(dominant)) == pytest.approx(2)


def test_the_parallel_environment_plays_the_arrays() -> None:
    game = _game()
    parallel_api_test(ParallelGame(game, horizon=20), num_cycles=60)
    env = ParallelGame(game)
    seen, _ = env.reset(seed=4, options={"state": 1})
    assert set(seen.values()) == {1}
    after = np.zeros(3)
    for _ in range(8000):
        env.reset(options={"state": 1})
        seen, rewards, *_ = env.step({"player_0": 1, "player_1": 2, "player_2": 0})
        after[seen["player_0"]] += 1
    joint = 1 * 6 + 2 * 2
    assert after / 8000 == pytest.approx(game.transitions[1, joint], abs=4 * 0.5 / np.sqrt(8000))
    assert [rewards[f"player_{i}"] for i in range(3)] == (-game.costs[:, 1, joint]).tolist()
    rest = {"player_1": 0, "player_2": 0}
    bad: list[dict[str, Any]] = [{"player_0": 0}, *({"player_0": a} | rest for a in (2, -1, 0.5, "a", None))]
    for actions in bad:
        with pytest.raises(ConfigError, match=r"ParallelGame.step: action"):
            env.step(actions)
    for state in (7, -1, 0.5, "a"):
        with pytest.raises(ConfigError, match=r"ParallelGame.reset: state"):
            env.reset(options={"state": state})
    with pytest.raises(ConfigError, match=r"ParallelGame.reset: seed"):
        env.reset(seed=-1)


def test_what_does_not_fit_is_named() -> None:
    good: dict[str, Any] = {"transitions": np.full((2, 4, 2), 0.5), "costs": np.zeros((2, 2, 4)), "gamma": 0.5,
                            "actions": (2, 2)}  # fmt: skip
    bad = {
        r"MarkovGame: transitions\[0, 0\] sums to 0.8": {"transitions": np.full((2, 4, 2), 0.4)},
        "MarkovGame: costs has shape": {"costs": np.zeros((2, 2, 3))},
        "MarkovGame: gamma = 1": {"gamma": 1},
        "MarkovGame: actions": {"actions": (4, 0)},
        r"MarkovGame: actions = \(2, 2.5\)": {"actions": (2, 2.5)},
        "MarkovGame: actions has shape": {"actions": 4},
        "MarkovGame: actions must be an array of numbers": {"actions": ("a", 4)},
        r"MarkovGame: transitions has shape \[2, 3, 2\]": {"transitions": np.full((2, 3, 2), 0.5)},
    }
    for said, change in bad.items():
        with pytest.raises(ConfigError, match=said):
            MarkovGame(**(good | change))
    game = MarkovGame(**good)
    with pytest.raises(ConfigError, match=r"policies\[1\]\[0\] sums to 2"):
        values(game, [np.full((2, 2), 0.5), np.ones((2, 2))])
    for player in (2, -1, 0.5):
        for call in (face, best_response):
            with pytest.raises(ConfigError, match=f"face: player = {player}"):
                call(game, uniform_policies(game), player)  # type: ignore[operator]
    with pytest.raises(ConfigError, match="1 entries for 2 players"):
        nash_gap(game, [np.full((2, 2), 0.5)])


def test_a_game_whose_actions_fit_neither_array_blames_the_actions() -> None:
    game = _game(actions=(2, 2))
    for actions in ((2,), (2, 3), (4,), (2, 2, 1)):
        with pytest.raises(ConfigError, match=r"actions = .* hold 4 joint actions of 2 players"):
            MarkovGame(game.transitions, game.costs, game.gamma, actions)
    with pytest.raises(ConfigError, match="costs has shape"):
        MarkovGame(game.transitions, game.costs[..., :3], game.gamma, (2, 2))


def test_learners_of_tuples_play_a_parallel_environment() -> None:
    game = _game(actions=(2, 2))
    group = Group(ParallelGame(game, horizon=4))
    learners = [TacticalLearner(2, seed=i) for i in range(2)]
    returns = play(group, learners, 3, int, seed=5)
    alone = ParallelGame(game, horizon=4)
    again, total = [TacticalLearner(2, seed=i) for i in range(2)], 0.0
    seen, _ = alone.reset(seed=5)
    while alone.agents:
        chosen = {a: learner.act(seen[a]) for a, learner in zip(alone.possible_agents, again, strict=True)}
        after, rewards, *_ = alone.step(chosen)
        for a, learner in zip(alone.possible_agents, again, strict=True):
            learner.learn(seen[a], chosen[a], rewards[a], after[a])
        seen, total = after, total + sum(rewards.values())
    assert returns[0] == pytest.approx(total)


def test_an_agent_that_leaves_early_waits_for_the_others() -> None:
    group = Group(_Leaving())
    assert group.reset(seed=0)[0] == [0, 0]
    assert group.step([0, 1])[:4] == ([1, 1], [1.0, 1.0], False, False)
    assert group.step([0, 1])[:4] == ([1, 2], [0.0, 1.0], True, False)
    with pytest.raises(ConfigError, match=r"Group.step: actions = \[0\] must be 2"):
        group.step([0])


class _Leaving(ParallelEnv[str, int, int]):
    """``first`` leaves after a step, ``last`` after two."""

    possible_agents = ["first", "last"]  # noqa: RUF012  # PettingZoo's own form

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None) -> Any:
        self.agents, self.steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions: dict[str, int]) -> Any:
        assert sorted(actions) == self.agents
        self.steps += 1
        now, self.agents = self.agents, ["last"] if self.steps == 1 else []
        ended = {agent: agent not in self.agents for agent in now}
        return dict.fromkeys(now, self.steps), dict.fromkeys(now, 1.0), ended, dict.fromkeys(now, False), {}


def test_a_group_wants_discrete_actions() -> None:
    class Other(_Leaving):
        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Box(0, 1)

    with pytest.raises(ConfigError, match="Group: the action space of first"):
        Group(Other())
