"""Both layers of the foragers: each alone, the coupled loop against its plain reference, and what it keeps fixed."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.games.foraging.loop import run
from stretto.games.foraging.reference import Moment, plain
from stretto.games.foraging.strategist import Strategist, overlap, strategic_reward
from stretto.games.foraging.tactical import TacticalLearner
from stretto.games.foraging.training import Runs, Training
from stretto.games.foraging.world import Foraging
from stretto.kernel.errors import ConfigError

WORLD = Foraging()
ARRAYS = ("food", "overlap", "rich", "theta", "visits", "values")


def same(a: Runs, b: Runs, row: int = 0) -> list[str]:
    return [n for n in ARRAYS if not np.array_equal(getattr(a, n)[row], getattr(b, n)[0])]


@pytest.mark.parametrize(
    ("world", "training"),
    [
        pytest.param(WORLD, Training(blocks=4, episodes=3, late=2), id="as published"),
        pytest.param(WORLD, Training(blocks=3, episodes=2, coupling=0.0), id="coupling 0"),
        pytest.param(WORLD, Training(blocks=3, episodes=2, guided=False), id="unguided"),
        pytest.param(WORLD, Training(blocks=8, episodes=1, scale=200.0, track=0.5), id="an update an episode"),
        pytest.param(
            Foraging(side=4, period=7, periods=3, rich=0.9, poor=0.2, pull=1.0),
            Training(blocks=5, episodes=2, step=0.3, discount=0.5, explore=0.4),
            id="another world",
        ),
    ],
)
def test_the_compiled_loop_is_its_plain_reference_bit_for_bit(world: Foraging, training: Training) -> None:
    both = run(world, training, [11, 3])
    assert same(both, plain(world, training, 11), 0) == []
    assert same(both, plain(world, training, 3), 1) == []
    assert not np.array_equal(both.values[0], both.values[1])


def test_results_do_not_depend_on_threads_or_on_the_other_seeds() -> None:
    training, threads = Training(blocks=5, episodes=2), numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = run(WORLD, training, range(4))
    finally:
        numba.set_num_threads(threads)
    together = run(WORLD, training, range(4))
    for name in ARRAYS:
        assert np.array_equal(getattr(alone, name), getattr(together, name))
    assert same(together, run(WORLD, training, [2]), 2) == []


def test_a_run_from_the_rules_by_hand() -> None:
    """One period, one step a period: every number of it recomputed from the formulas."""
    world = Foraging(period=1, periods=1)
    seen: list[Moment] = []
    out = plain(world, Training(blocks=1, episodes=1), 0, seen.append)
    (moment,) = seen
    overlapped = float((moment.field.shares[0] * moment.field.shares[1]).sum())
    reward = 1 - overlapped + 3.0 * moment.field.eaten
    expected = np.zeros((2, 16))
    expected[moment.field.z] = 30.0 * reward * ((np.arange(16) == moment.field.arm) - 1 / 16)
    np.testing.assert_allclose(out.theta[0], expected, rtol=1e-12)
    for i in range(2):
        assert out.values[0, i].sum() == pytest.approx(0.1 * (moment.got.food[i] + moment.got.shaping[i]))


def test_guidance_is_constant_in_a_period_and_theta_in_a_block() -> None:
    arms: dict[int, set[tuple[int, int]]] = {}
    thetas: dict[int, set[bytes]] = {}

    def watch(moment: Moment) -> None:
        arms.setdefault(moment.period, set()).add((moment.field.z, moment.field.arm))
        thetas.setdefault(moment.block, set()).add(moment.strategist.theta.tobytes())

    plain(WORLD, Training(blocks=3, episodes=2), 5, watch)
    assert [len(arms[p]) for p in range(24)] == [1] * 24
    assert len({arm for found in arms.values() for arm in found}) > 5
    assert [len(thetas[b]) for b in range(3)] == [1] * 3
    assert len({theta for found in thetas.values() for theta in found}) == 3


def test_flipping_the_season_leaves_the_actions() -> None:
    """With the same food, guidance and luck a forager acts alike whatever the season is."""
    flipped = 0

    def watch(moment: Moment) -> None:
        nonlocal flipped
        field, learners = moment.field, moment.learners
        draws = [(0.5, 0.25), (0.05, 0.7)]
        before = [learner.act(field.observe(i), draws[i]) for i, learner in enumerate(learners)]
        field.z = 1 - field.z
        assert [learner.act(field.observe(i), draws[i]) for i, learner in enumerate(learners)] == before
        field.z = 1 - field.z
        flipped += 1

    plain(WORLD, Training(blocks=2, episodes=2), 9, watch)
    assert flipped == 2 * 2 * 48


def periods(seed: int) -> list[tuple[int, int, Any, int]]:
    """(z, arm, shares, food) of the periods of a run."""
    found = []

    def watch(moment: Moment) -> None:
        if moment.field.shares.sum() == 2 * WORLD.period:
            field = moment.field
            found.append((field.z, field.arm, field.shares / WORLD.period, field.eaten))

    plain(WORLD, Training(blocks=2, episodes=3), seed, watch)
    return found


def test_without_coupling_the_strategic_gradient_is_independent_of_food() -> None:
    trajectory = periods(1)
    foods = [food for *_, food in trajectory]
    assert len(set(foods)) > 2

    def gradient(coupling: float, foods: list[int]) -> Any:
        strategist = Strategist()
        for (z, arm, shares, _), food in zip(trajectory, foods, strict=True):
            strategist.note(z, arm, strategic_reward(shares, food, WORLD.period, coupling))
        return strategist.grad

    assert np.array_equal(gradient(0.0, foods), gradient(0.0, foods[::-1]))
    assert not np.allclose(gradient(3.0, foods), gradient(3.0, foods[::-1]))


def test_the_strategic_reward_is_affine_in_the_coupling_on_a_fixed_trajectory() -> None:
    for _, _, shares, food in periods(2):
        zero, one, seven = (strategic_reward(shares, food, WORLD.period, c) for c in (0.0, 1.0, 7.0))
        assert zero == 1 - overlap(shares)
        assert seven - zero == pytest.approx(7 * (one - zero), abs=1e-12)
        assert one - zero == pytest.approx(food / WORLD.period, abs=1e-12)


def test_overlap_of_equal_and_of_disjoint_shares() -> None:
    assert overlap([[0.25] * 4, [0.25] * 4]) == 1.0
    assert overlap([[0.5, 0.5, 0, 0], [0, 0, 1, 0]]) == 0.0
    assert overlap([[0.75, 0.25, 0, 0], [0.5, 0, 0.5, 0]]) == 0.5


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_the_softmax_gradient_sums_to_zero_in_each_season(seed: int) -> None:
    rng, strategist = np.random.default_rng(seed), Strategist()
    strategist.theta[:] = rng.normal(size=(2, 16)) * 3
    for _ in range(10):
        strategist.note(int(rng.integers(2)), int(rng.integers(16)), float(rng.normal()))
    np.testing.assert_allclose(strategist.grad.sum(1), 0, atol=1e-12)


def test_the_strategist_by_its_formulas() -> None:
    s = Strategist(states=2, arms=3, scale=6.0, track=0.25)
    s.note(1, 2, 4.0)
    assert s.base.tolist() == [0.0, 1.0]
    np.testing.assert_allclose(s.grad, [[0, 0, 0], [-4 / 3, -4 / 3, 8 / 3]])
    s.note(1, 0, 2.0)  # advantage 1: the baseline was moved by the period before
    s.update()
    np.testing.assert_allclose(s.theta[1], np.array([-4 / 3 + 2 / 3, -5 / 3, 8 / 3 - 1 / 3]) * 6 / 2)
    assert not s.grad.any()
    before = s.theta.copy()
    s.note(0, 0, 1.0)
    s.update()
    np.testing.assert_allclose(s.theta[0] - before[0], 6 / math.sqrt(2) * np.array([2, -1, -1]) / 3)
    np.testing.assert_allclose(s.policy(1).sum(), 1)
    cumulative = s.policy(1).cumsum()
    assert [s.choose(1, u) for u in (0.0, cumulative[0], cumulative[1], 1 - 1e-16)] == [0, 1, 2, 2]


def test_the_tactical_learner_by_its_formula() -> None:
    learner = TacticalLearner(3, step=0.5, discount=0.5, explore=0.0)
    assert learner.learn("here", 1, 2.0, "there") == 2.0
    assert learner.values("here").tolist() == [0, 1, 0]
    learner.learn("there", 0, 0.0, "here")
    assert learner.values("there").tolist() == [0.25, 0, 0]
    learner.learn("there", 0, 1.0, "here", ended=True)  # nothing follows
    assert learner.values("there").tolist() == [0.625, 0, 0]
    assert learner.act("here") == 1
    assert "elsewhere" not in learner.table
    assert not learner.values("elsewhere").any()


def test_exploration_and_ties_follow_the_uniforms() -> None:
    learner = TacticalLearner(4, explore=0.1)
    assert [learner.act("new", (0.5, u)) for u in (0.0, 0.3, 0.5, 0.99)] == [0, 1, 2, 3]  # four ties
    learner.learn("new", 2, 1.0, None, ended=True)
    assert [learner.act("new", (0.1, u)) for u in (0.0, 0.99)] == [2, 2]
    assert [learner.act("new", (0.09, u)) for u in (0.0, 0.99)] == [0, 3]
    learner.learn("new", 0, 1.0, None, ended=True)
    assert [learner.greedy("new", u) for u in (0.0, 0.49, 0.5, 0.99)] == [0, 0, 2, 2]


def test_the_tactical_learner_finds_the_values_of_a_corridor() -> None:
    """Cells 0..4, reward 1 on entering 4 from the left: Q* = .9^(3 - cell) for going right."""
    learner, rng = TacticalLearner(2, explore=0.5, seed=1), np.random.default_rng(0)
    for _ in range(2000):
        at = int(rng.integers(4))
        for _ in range(10):
            action = learner.act(at)
            new = max(0, at - 1) if action == 0 else at + 1
            learner.learn(at, action, float(new == 4), new, ended=new == 4)
            if new == 4:
                break
            at = new
    assert [learner.values(c)[1] for c in range(4)] == pytest.approx([0.729, 0.81, 0.9, 1.0], abs=1e-3)
    assert [learner.greedy(c) for c in range(4)] == [1, 1, 1, 1]


def test_plans_name_quadrants() -> None:
    theta = np.zeros((2, 2, 16))
    theta[0, 0, 12], theta[0, 1, 6], theta[1, 0, 5], theta[1, 1, 1] = 1, 1, 1, 1  # (3,0) (1,2) | (1,1) (0,1)
    runs = Runs(*[np.zeros((2, 4))] * 3, theta, np.zeros(0, np.int64), np.zeros(0))
    assert runs.plans() == [(3, 0), (1, 2), (1, 1), (0, 1)]
    assert runs.split_share() == 0.75
    assert runs.rich_pairs() == 0.5


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Training(blocks=0), "Training: blocks = 0"),
        (lambda: Training(episodes=2.5), "Training: episodes = 2.5"),  # type: ignore[arg-type]
        (lambda: Training(coupling=-1), "Training: coupling = -1"),
        (lambda: Training(discount=1.0), "Training: discount = 1"),
        (lambda: Training(step=0), "Training: step = 0"),
        (lambda: Training(explore=1.1), "Training: explore = 1.1"),
        (lambda: run(WORLD, Training(), []), "run: seeds"),
        (lambda: run(WORLD, Training(), [1, 1]), "run: seeds hold the same number twice"),
        (lambda: TacticalLearner(0), "TacticalLearner: actions = 0"),
        (lambda: TacticalLearner(3, discount=1.0), "TacticalLearner: discount = 1"),
        (lambda: TacticalLearner(3, step=0.0), "TacticalLearner: step = 0"),
        (lambda: TacticalLearner(3, explore=2), "TacticalLearner: explore = 2"),
        (lambda: TacticalLearner(3).act(np.zeros(2)), "observation of type ndarray can't be looked up"),
        (lambda: TacticalLearner(3).learn(0, 3, 0.0, 0), "TacticalLearner.learn: action = 3"),
        (lambda: TacticalLearner(3).learn(0, 0, math.nan, 0), "TacticalLearner.learn: reward = nan"),
        (lambda: Strategist(arms=1), "Strategist: arms = 1"),
        (lambda: Strategist(scale=-1), "Strategist: scale = -1"),
        (lambda: Strategist(track=1.5), "Strategist: track = 1.5"),
        (lambda: Strategist().update(), "no period was noted"),
        (lambda: Strategist().note(2, 0, 1.0), "Strategist.note: z = 2"),
        (lambda: Strategist().note(0, 16, 1.0), "Strategist.note: arm = 16"),
        (lambda: Strategist().note(0, 0, math.inf), "Strategist.note: reward = inf"),
        (lambda: overlap(np.zeros((3, 4))), "overlap: shares"),
        (lambda: strategic_reward(np.zeros((2, 4)), 1, 0, 1.0), "strategic_reward: steps = 0"),
    ],
)
def test_bad_input_is_one_error_that_names_it(made: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made()
