"""Tables of environments from outside: spaces that don't begin at 0, and tables that aren't what is played."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import StickyAction, TimeLimit, TransformObservation, TransformReward

from stretto.kernel.errors import ConfigError
from stretto.tabular.gym import TabularEnv, read_mdp
from stretto.tabular.mdp import MDP, policy_value, uniform_policy


class Walk(gymnasium.Env):
    """States 0, 1, 2; action 1 goes on (reward 1 at the end), action 0 slips back with chance .5. ``first``: numbers of
    states and actions begin there; ``table``: how P is keyed."""

    def __init__(self, first: tuple[int, int] = (0, 0), table: str = "labels", slip: float = 0.5) -> None:
        self.first, self.slip = first, slip
        self.observation_space = spaces.Discrete(3, start=first[0])
        self.action_space = spaces.Discrete(2, start=first[1])
        s, a = first if table == "labels" else (0, 0)
        rows: dict[int, Any] = {
            s + i: {
                a: [(0.5, s + max(i - 1, 0), 0.0, False), (0.5, s + i, 0.0, False)],
                a + 1: [(1.0, s + min(i + 1, 2), float(i == 2), i == 2)],
            }
            for i in range(3)
        }
        self.P: Any = [[row[0], row[1]] for row in rows.values()] if table == "list" else rows

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        return self.first[0], {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        forward, was = int(action) - self.first[1], self.at
        assert forward in (0, 1)
        if forward:
            self.at = min(was + 1, 2)
        elif self.np_random.random() < self.slip:
            self.at = max(was - 1, 0)
        over = bool(forward and was == 2)
        return self.first[0] + self.at, float(over), over, False, {}


@pytest.mark.parametrize("first", [(0, 0), (1, 0), (0, 1), (5, -2), (-3, 1)])
@pytest.mark.parametrize("table", ["labels", "positions", "list"])
def test_spaces_begin_where_they_say(first: tuple[int, int], table: str) -> None:
    plain, found = read_mdp(Walk(), 0.9, check=500), read_mdp(Walk(first, table), 0.9, check=500)
    for name in ("transitions", "rewards", "start"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    assert found.start.tolist() == [1, 0, 0, 0]  # where all resets begin
    assert found.transitions[0, 0].tolist() == [1, 0, 0, 0]
    assert found.transitions[1, 0].tolist() == [0.5, 0.5, 0, 0]
    assert found.transitions[2, 1].tolist() == [0, 0, 0, 1]
    assert found.rewards[:, 1].tolist() == [0, 0, 1, 0]


def test_a_time_limit_is_no_part_of_the_table_and_the_environment_is_not_touched() -> None:
    env = TimeLimit(Walk(), 4)
    env.reset(seed=3)
    env.step(np.int64(1))
    before = env.unwrapped.np_random.bit_generator.state
    np.testing.assert_array_equal(read_mdp(env, 0.9).transitions, read_mdp(Walk(), 0.9).transitions)
    assert (env.unwrapped.at, env.unwrapped.np_random.bit_generator.state) == (1, before)
    assert env.step(1)[0] == 2


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (lambda: TransformReward(Walk(), lambda r: r - 0.1), "reward -0.1"),
        (lambda: StickyAction(Walk(), 0.3), "isn't what it plays|not as frequent"),
        (lambda: TransformObservation(Walk(), lambda o: 2 - o, spaces.Discrete(3)), "isn't what it plays|begin"),
        (lambda: TransformObservation(Walk(), lambda o: o + 7, spaces.Discrete(3)), "not in its Discrete space"),
        (lambda: Walk(slip=0.2), "not as frequent"),
        (lambda: Walk(slip=0.0), "not as frequent"),
        (lambda: gymnasium.make("Taxi-v4", fickle_passenger=True), "fickle_passenger is no part"),
        (lambda: gymnasium.make("Taxi-v4", fickle_passenger=True, is_rainy=True), "fickle_passenger"),
        (lambda: gymnasium.make("CartPole-v1"), "publishes no table"),
        (lambda: None, "not a Gymnasium environment"),
        (lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("FrozenLake-v1")), "observations Box"),
        (lambda: TransformObservation(Walk(), lambda o: (o, 0), spaces.MultiDiscrete([3, 1])), "observations Mult"),
    ],
)
def test_a_table_that_is_not_what_is_played_is_refused(env: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_mdp(env(), 0.9, check=2000)


@pytest.mark.parametrize(
    ("name", "options"),
    [("FrozenLake-v1", {"is_slippery": True}), ("FrozenLake-v1", {"map_name": "8x8"}), ("Taxi-v4", {"is_rainy": True}),
     ("CliffWalking-v1", {"is_slippery": True})],
)  # fmt: skip
def test_stochastic_tables_that_are_what_is_played_are_read(name: str, options: dict[str, Any]) -> None:
    mdp = read_mdp(gymnasium.make(name, **options), 0.9, check=4000)
    np.testing.assert_allclose(mdp.transitions.sum(2), 1.0, atol=1e-12)


def test_the_start_is_the_given_one_the_published_one_or_what_resets_show() -> None:
    env = gymnasium.make("FrozenLake-v1")
    assert read_mdp(env, 0.9).start[0] == 1
    with pytest.raises(ConfigError, match="don't begin"):
        read_mdp(Published([0.5, 0.5, 0.0]), 0.9)
    assert read_mdp(Published([0.5, 0.5, 0.0]), 0.9, check=0).start.tolist() == [0.5, 0.5, 0, 0]
    assert read_mdp(Walk(), 0.9, check=500, start=[1.0, 0, 0]).start.tolist() == [1, 0, 0, 0]
    for wrong in ([0.5, 0.5], [0.5, 0.5, 0.5], [1, 0, 0, 0]):
        with pytest.raises(ConfigError, match="start"):
            read_mdp(Walk(), 0.9, start=wrong)


class Published(Walk):
    """With a law of the first state that isn't that of its resets."""

    def __init__(self, law: Any) -> None:
        super().__init__()
        self.initial_state_distrib = law


def test_a_broken_table_is_named() -> None:
    env = Walk()
    del env.P[1]
    with pytest.raises(ConfigError, match=r"lacks a state of Discrete\(3\)"):
        read_mdp(env, 0.9)
    env = Walk()
    env.P[0][1] = [(1.0, 9, 0.0, False)]
    with pytest.raises(ConfigError, match="leads to state 9"):
        read_mdp(env, 0.9)


def test_actions_and_states_may_be_numpy_integers() -> None:
    mdp = MDP(np.full((2, 2, 2), 0.5), np.zeros((2, 2)), 0.5)
    env = TabularEnv(mdp)
    env.reset(seed=0, options={"state": np.int32(1)})
    for action in (np.int64(1), np.array(1), np.uint8(0)):
        assert env.step(action)[0] in (0, 1)
    assert policy_value(mdp, uniform_policy(mdp)).tolist() == [0, 0]
