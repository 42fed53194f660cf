"""Trimmed Q-learning from the steps of Gymnasium environments whose observations and rewards are corrupted."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.gym import TabularEnv, read_mdp
from stretto.tabular.mdp import deterministic, policy_value
from stretto.tabular.q import Corruption, Rule, best_q, corrupt
from stretto.tabular.q.corrupted_env import CorruptedSteps
from stretto.tabular.q.online import OnlineQ, TrimmedQ

WRONG = Corruption(0.05, 20.0, "both")


def lake() -> Any:
    return gymnasium.make("FrozenLake-v1", is_slippery=True, max_episode_steps=200)


def worth(env: Any, q: Any, gamma: float) -> float:
    """Value at the start of the greedy policy of ``q``, exactly."""
    mdp = read_mdp(env, gamma)
    choice = np.append(q.argmax(1), 0)
    return float(mdp.start @ policy_value(mdp, deterministic(choice, mdp.actions)))


def test_trimmed_beats_plain_on_a_corrupted_frozen_lake() -> None:
    gamma, errors, values = 0.9, {}, {}
    target = best_q(read_mdp(lake(), gamma))[:-1]
    live = [s for s in range(16) if s not in (5, 7, 11, 12, 15)]  # the others end an episode: nothing is learnt there
    for name in ("trimmed", "mean", "vanilla"):
        env = CorruptedSteps(lake(), WRONG, seed=1)
        options: dict[str, Any] = {"share": 0.1, "batch": 4000, "seed": 2}
        learner = TrimmedQ(env, gamma, **options) if name == "trimmed" else OnlineQ(env, gamma, Rule(name), **options)  # type: ignore[arg-type]
        learner.learn(env, 48_000, seed=3)
        errors[name] = np.abs(learner.q - target)[live].max()
        values[name] = worth(lake(), learner.q, gamma)
    assert errors["trimmed"] < errors["mean"] / 3
    assert errors["trimmed"] < errors["vanilla"] / 3
    assert values["trimmed"] >= values["mean"] - 1e-12


@pytest.mark.slow
def test_trimmed_beats_plain_on_a_corrupted_tabular_environment() -> None:
    world = corrupt(0)
    errors = {}
    for rule in (Rule("trimmed"), Rule("mean")):
        env = CorruptedSteps(TabularEnv(world, noise=0.5, horizon=1000), WRONG, seed=1)
        learner = OnlineQ(env, world.gamma, rule, share=0.1, batch=4000, seed=2)
        errors[rule.method] = np.abs(learner.learn(env, 64_000, seed=3) - best_q(world)).max()
    assert errors["trimmed"] < 1 < 5 < errors["mean"]


def test_without_corruption_every_rule_learns() -> None:
    env = TabularEnv(corrupt(2, states=4), horizon=50)
    target = best_q(env.mdp)
    for rule in (Rule("vanilla", step=0.02), Rule("mean"), Rule("median_of_means"), Rule("trimmed")):
        learner = OnlineQ(env, env.mdp.gamma, rule, batch=800, explore=0.5, seed=0)
        assert np.abs(learner.learn(env, 40_000, seed=0) - target).max() < 0.25, rule.method


def test_nothing_follows_a_terminal_step() -> None:
    env = lake()
    for rule in (Rule("vanilla", step=1.0), Rule("mean", step=1.0)):
        learner = OnlineQ(env, 0.9, rule, batch=4)
        learner.q[3] = 100.0
        learner._values = learner.q.max(1)
        for _ in range(4):
            learner.observe(2, 1, 1.0, 3, True)
        assert learner.q[2, 1] == 1.0
        for _ in range(4):
            learner.observe(2, 0, 1.0, 3, False)
        assert learner.q[2, 0] == pytest.approx(91.0)


def test_the_wrapper_corrupts_what_is_seen_and_nothing_else() -> None:
    for states in ("none", "next", "both"):
        clean, env = lake(), CorruptedSteps(lake(), Corruption(0.2, 7.0, states), seed=5)  # type: ignore[arg-type]
        assert clean.reset(seed=1)[0] == env.reset(seed=1)[0]
        actions, hits, seen = np.random.default_rng(0), 0, set()
        for _ in range(2000):
            action = int(actions.integers(4))
            true, told = clean.step(action), env.step(action)
            assert (told[4]["observation"], told[4]["reward"], *told[2:4]) == (true[0], true[1], *true[2:4])
            if told[4]["corrupted"]:
                hits += 1
                assert told[1] == -7
                seen.add(int(told[0]))
            else:
                assert told[:2] == true[:2]
            if true[2] or true[3]:
                clean.reset()
                env.reset()
        assert abs(hits - 400) < 4 * math.sqrt(2000 * 0.2 * 0.8)
        assert seen == {"next": {0}, "both": set(range(16))}.get(states, seen)


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    box = gymnasium.make("CartPole-v1")
    env = lake()
    learner = TrimmedQ(env, 0.9, share=0.1)
    for call, words in (
        (lambda: CorruptedSteps(box, WRONG), "CorruptedSteps: env"),
        (lambda: TrimmedQ(box, 0.9, share=0.1), "TrimmedQ: env.observation_space"),
        (lambda: TrimmedQ(env, 1.0, share=0.1), "TrimmedQ: gamma"),
        (lambda: TrimmedQ(env, 0.9, share=0.5), "TrimmedQ: share"),
        (lambda: TrimmedQ(env, 0.9, share=0.1, trim=0.7), "Rule: trim"),
        (lambda: OnlineQ(env, 0.9, Rule(), batch=0), "OnlineQ: batch"),
        (lambda: OnlineQ(env, 0.9, Rule(), explore=1.5), "OnlineQ: explore"),
        (lambda: learner.observe(16, 0, 0.0, 0, False), "TrimmedQ: observation"),
        (lambda: CorruptedSteps(env, 0.1), "CorruptedSteps: corruption"),  # type: ignore[arg-type]
        (lambda: OnlineQ(env, 0.9, "mean"), "OnlineQ: rule"),  # type: ignore[arg-type]
        (lambda: learner.observe(1.5, 0, 0.0, 0, False), "TrimmedQ: observation"),  # type: ignore[arg-type]
        (lambda: learner.observe(0, math.nan, 0.0, 0, False), "TrimmedQ.observe: action"),  # type: ignore[arg-type]
        (lambda: learner.act(99), "TrimmedQ: observation"),
        (lambda: learner.observe(0, 4, 0.0, 0, False), "TrimmedQ.observe: action"),
        (lambda: learner.observe(0, 0, math.nan, 0, False), "TrimmedQ.observe: reward"),
        (lambda: learner.learn(env, 0), "TrimmedQ.learn: steps"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
