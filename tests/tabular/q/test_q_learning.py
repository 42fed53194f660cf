"""Compiled Q-learning against its plain reference, and what must hold exactly."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import MDP, action_values
from stretto.tabular.q import Corruption, Rule, best_q, corrupt, q_learning, sup_errors
from stretto.tabular.q.corruption import contaminate
from stretto.tabular.q.kernel import improve
from stretto.tabular.q.reference import plain_q_learning
from stretto.tabular.q.robust import TRIMMED

METHODS = ("vanilla", "mean", "median_of_means", "trimmed")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "corruption", [Corruption(), Corruption(0.05), Corruption(0.1, 100, "both"), Corruption(0.1, 10, "next")]
)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_compiled_loop_is_the_plain_one_bit_for_bit(method: str, corruption: Corruption, noise: float) -> None:
    world, rule = corrupt(1, states=5, actions=3), Rule(method)  # type: ignore[arg-type]
    behaviour = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    options = {"epochs": 3, "batch": 150, "noise": noise, "behaviour": behaviour}
    fast = q_learning(world, [4, 9], rule, corruption, **options)
    for i, seed in enumerate((4, 9)):
        assert np.array_equal(fast[i], plain_q_learning(world, seed, rule, corruption, **options))


@pytest.mark.parametrize("method", METHODS)
def test_results_do_not_depend_on_the_number_of_threads(method: str) -> None:
    world, rule = corrupt(0), Rule(method)  # type: ignore[arg-type]
    found = []
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        found.append(q_learning(world, range(5), rule, Corruption(0.05), epochs=4, batch=500, noise=0.5))
        numba.set_num_threads(before)
    assert np.array_equal(*found)
    assert np.array_equal(found[0][3:4], q_learning(world, [3], rule, Corruption(0.05), epochs=4, batch=500, noise=0.5))


def test_without_trim_and_noise_an_epoch_of_a_sure_world_is_a_bellman_backup() -> None:
    """Next states are certain, so each target is exact: alpha = 1 and trim = 0 back Q up once an epoch."""
    g = np.random.default_rng(3)
    transitions = np.eye(4)[[[1, 2], [2, 0], [3, 1], [0, 2]]]
    world = MDP(transitions, g.random((4, 2)), 0.9)
    history = q_learning(world, [0], Rule("trimmed", step=1.0, trim=0.0), epochs=20, batch=400)[0]
    q = np.zeros((4, 2))
    for learnt in history:
        q = action_values(world, q.max(1))
        assert learnt == pytest.approx(q, abs=1e-12)


def test_without_trim_expected_targets_are_a_bellman_backup() -> None:
    """A batch that holds every next state as often as its probability says (in 20ths)."""
    g = np.random.default_rng(5)
    counts = g.multinomial(20, np.full(3, 1 / 3), size=(3, 2))
    world = MDP(counts / 20, g.random((3, 2)), 0.8)
    q = g.normal(size=(3, 2))
    pairs = [s * 2 + a for s in range(3) for a in range(2) for _ in range(20)]
    after = [n for s in range(3) for a in range(2) for n in range(3) for _ in range(counts[s, a, n])]
    targets = world.rewards.ravel()[pairs] + 0.8 * q.max(1)[after]
    backed_up = q.copy()
    improve(backed_up, np.array(pairs), targets, 1.0, TRIMMED, np.zeros(6), 8, 4)
    assert backed_up == pytest.approx(action_values(world, q.max(1)), abs=1e-12)


@pytest.mark.parametrize("method", ["mean", "median_of_means", "trimmed"])
def test_the_empirical_operator_contracts_by_gamma_on_common_samples(method: str) -> None:
    g, gamma = np.random.default_rng(6), 0.8
    rule = Rule(method, step=1.0)  # type: ignore[arg-type]
    pairs, after, rewards = g.integers(0, 6, 300), g.integers(0, 3, 300), g.standard_t(1.5, 300)
    for _ in range(20):
        one, two = g.normal(size=(2, 3, 2)) * 5
        gap = np.abs(one - two).max()
        for q in (one, two):
            targets = rewards + gamma * q.max(1)[after]
            improve(q, pairs, targets, 1.0, rule.kind, np.full(6, 0.1), 8, 4)
        assert np.abs(one - two).max() <= gamma * gap + 1e-12


def test_an_epoch_without_enough_samples_of_a_pair_leaves_it_alone() -> None:
    q = np.arange(6.0).reshape(3, 2)
    before = q.copy()
    improve(q, np.array([0, 0, 0, 0, 3, 3, 3]), np.full(7, 9.0), 0.5, TRIMMED, np.zeros(6), 8, 4)
    assert q[0, 0] == 4.5
    q[0, 0] = before[0, 0]
    assert np.array_equal(q, before)
    never = np.array([[1.0, 0.0]] * 6)
    learnt = q_learning(corrupt(0), [0], Rule("trimmed"), epochs=5, batch=200, noise=0.5, behaviour=never)
    assert (learnt[..., 1] == 0).all()
    assert (learnt[..., 0] != 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_corruption_leaves_the_stream_alone(method: str) -> None:
    """Nobody is hit: the same run."""
    world, rule = corrupt(0), Rule(method, trim=0.1 if method == "trimmed" else None)  # type: ignore[arg-type]
    options = {"epochs": 2, "batch": 300, "noise": 0.5}
    clean = q_learning(world, [2], rule, Corruption(), **options)
    assert np.array_equal(clean, q_learning(world, [2], rule, Corruption(0.0, 100, "both"), **options))
    assert np.array_equal(clean, q_learning(world, [2], rule, Corruption(1e-12, 100, "both"), **options))


def test_a_hit_changes_what_is_seen_not_what_happens() -> None:
    """States in a ring, rewards that name the state, one sample a mean: at steps without a hit the learner sees the
    clean run's samples, so the chain has gone on untouched."""
    ring = MDP(np.eye(5)[(np.arange(5)[:, None] + [1, 2]) % 5], np.arange(10.0).reshape(5, 2), 0.0)
    options = {"epochs": 400, "batch": 1, "noise": 0.5}
    clean = q_learning(ring, [3], Rule("vanilla", step=1.0), **options)[0]
    hit = q_learning(ring, [3], Rule("vanilla", step=1.0), Corruption(0.2, 100.0), **options)[0]
    _, who = contaminate(np.ones(400), 0.2, -100.0, 3)
    written = np.argwhere(np.diff(clean, axis=0, prepend=0.0) != 0)
    assert 50 < who.sum() < 110
    assert len(written) == 400
    for t, s, a in written:
        assert hit[t, s, a] == pytest.approx(-100.0 if who[t] else clean[t, s, a], abs=1e-12)


def test_steps_are_hit_as_contaminate_says() -> None:
    """With gamma = 0 and sure rewards, each step's sample is the reward itself."""
    flat, steps = MDP([[[1.0]]], [[1.0]], 0.0), 1000
    path = q_learning(flat, [8], Rule("vanilla", step=1.0), Corruption(0.1, 5.0), epochs=steps, batch=1)[0, :, 0, 0]
    seen, hit = contaminate(np.ones(steps), 0.1, -5.0, 8)
    assert np.array_equal(path, seen)
    assert 50 < hit.sum() < 150


def test_whole_numbers_may_be_floats() -> None:
    world, options = corrupt(0), {"epochs": 1, "batch": 100}
    one, other = (q_learning(world, [0], Rule("median_of_means", block=b), **options) for b in (8, 8.0))  # type: ignore[arg-type]
    assert np.array_equal(one, other)


def test_it_learns_and_trimming_saves_it() -> None:
    world = corrupt(0)
    target = best_q(world)
    options = {"epochs": 60, "batch": 4000, "noise": 0.5}
    clean = sup_errors(q_learning(world, range(3), Rule("mean"), **options), target)[:, -5:].mean()
    assert clean < 0.1
    plain, trimmed = (
        sup_errors(q_learning(world, range(3), Rule(m), Corruption(0.05, 100.0), **options), target)[:, -5:].mean()
        for m in ("mean", "trimmed")
    )
    assert plain > 20
    assert trimmed < 0.5


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    world = corrupt(0)
    for options, words in (
        ({"epochs": 0}, "epochs"),
        ({"batch": 2.5}, "batch"),
        ({"noise": -1}, "noise"),
        ({"behaviour": np.full((6, 2), 0.6)}, "behaviour"),
        ({"seeds": [1, 1]}, "seeds"),
        ({"seeds": []}, "seeds"),
        ({"rule": "trimmed"}, "rule"),
        ({"corruption": 0.05}, "corruption"),
        ({"batch": 10**15}, "batch"),
    ):
        with pytest.raises(ConfigError, match=f"q_learning: .*{words}"):
            q_learning(world, **{"seeds": [0], "epochs": 1, "batch": 10, **options})
    for bad, words in (({"seed": -1}, "seed"), ({"states": 0}, "states"), ({"gamma": 1.0}, "gamma")):
        with pytest.raises(ConfigError, match=words):
            corrupt(**bad)  # type: ignore[arg-type]
