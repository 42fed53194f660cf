"""Players who don't know of each other: the compiled loop, the plain one and the general one agree, and play settles
where theory says."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from stretto.games.lq.cournot import Cournot
from stretto.games.lq.cournot_learning import cournot_least_squares
from stretto.games.lq.cournot_reference import reference
from stretto.games.lq.game import LQGame, from_own_costs
from stretto.games.lq.learning import iterated_least_squares
from stretto.games.lq.market import Learned, Learners
from stretto.games.lq.riccati import best_response, nash
from stretto.games.lq.scalar import solve2, solve3
from stretto.kernel.errors import ConfigError

DUO = Cournot(s=0.3)
TRIO = Cournot(s=0.5, firms=3, timing=1, c=(1.5, 2.0, 2.5), k=3.0)
WAYS = {
    "uniform": (DUO, Learners()),
    "centred, published": (DUO, Learners(centred=True, periods=(7, 11), published=True)),
    "poisson, trio": (TRIO, Learners(clock="poisson", periods=(9, 5, 7), centred=True)),
    "geometric, forgetting": (DUO, Learners(clock="geometric", memory="forget", forget=0.99)),
    "doubling, trio, published": (TRIO, Learners(memory="doubling", periods=(20,), published=True)),
}


def same(a: Learned, b: Learned, run: int) -> bool:
    fields = ("gains", "profits", "consumer", "hhi", "price", "kept")
    return all(np.array_equal(getattr(a, f)[run], getattr(b, f)[0]) for f in fields)


@pytest.mark.parametrize("way", list(WAYS))
def test_the_compiled_loop_is_the_plain_one_bit_for_bit(way: str) -> None:
    model, learners = WAYS[way]
    fast = cournot_least_squares(model, learners, 600, [3, 8], [30, 77, 600])
    for run, seed in enumerate((3, 8)):
        assert same(fast, reference(model, learners, 600, seed, [30, 77, 600]), run)
    assert len(np.unique(fast.gains[:, :, :, 0])) > 3  # they did update


def test_a_frozen_firm_is_frozen_in_both_loops() -> None:
    start = [[-1.5, 0.0], [-2.0, -0.1]]
    fast = cournot_least_squares(DUO, Learners(), 300, [1], gains=start, frozen=(1,))
    assert same(fast, reference(DUO, Learners(), 300, 1, gains=start, frozen=(1,)), 0)
    np.testing.assert_array_equal(fast.gains[0, 0, 1], start[1])
    assert (fast.gains[0, 0, 0] != start[0]).all()


def test_the_number_of_threads_does_not_matter() -> None:
    before = numba.get_num_threads()
    runs = []
    for threads in (1, before):
        numba.set_num_threads(threads)
        runs.append(cournot_least_squares(DUO, Learners(), 2000, range(5)))
    numba.set_num_threads(before)
    np.testing.assert_array_equal(runs[0].gains, runs[1].gains)
    alone = cournot_least_squares(DUO, Learners(), 2000, [4])
    np.testing.assert_array_equal(alone.gains[0], runs[0].gains[4])


def keep(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bounds that the market's learners put on their models."""
    return np.array([[1, 0], [A[1, 0], A[1, 1].clip(-0.95, 0.999)]]), np.array([[0], B[1].clip(-5, -0.001)])


@pytest.mark.parametrize(
    "learners",
    [
        Learners(centred=True),
        Learners(centred=True, published=True),
        Learners(centred=True, clock="poisson", memory="forget", forget=0.999),
        Learners(centred=True, clock="geometric", memory="forget", forget=0.99, published=True),
    ],
)
def test_the_market_is_a_case_of_the_general_game(learners: Learners) -> None:
    fast = cournot_least_squares(DUO, learners, 1500, [5], [70, 500, 1500])
    general = iterated_least_squares(
        DUO.game(), 1500, 5, [1.0, 5.0], [[[-1.0, 0.0]]] * 2, periods=(50, 70), limits=(0, 4), bounds=keep,
        published=[[[1.0]], [[1.0]]] if learners.published else None, checkpoints=[70, 500, 1500], clock=learners.clock,
        forget=learners.forget if learners.memory == "forget" else 1.0,
    )  # fmt: skip
    np.testing.assert_allclose(np.array(general.gains)[:, :, 0], fast.gains[0], atol=1e-7)
    np.testing.assert_allclose(-general.costs, fast.profits[0], rtol=1e-9)
    assert general.state[1] == pytest.approx(fast.price[0], abs=1e-7)


def test_without_noise_least_squares_finds_the_effective_system() -> None:
    """Rivals that keep to -K x are part of the system: A - B_j K_j, and no trace of them elsewhere."""
    quiet = Cournot(s=0.3, sigma=0.0, firms=3).game()
    gains = [[[-1.0, 0.0]], [[-1.5, -0.1]], [[-0.5, -0.2]]]
    run = iterated_least_squares(quiet, 3000, 0, [1.0, 5.0], gains, ridge=1e-12, frozen=(1, 2))
    A, B = run.models[0]
    np.testing.assert_allclose(A, quiet.face(gains, 0).A, atol=1e-8)
    np.testing.assert_allclose(B, quiet.B[0], atol=1e-8)
    np.testing.assert_allclose(run.gains[-1][0], best_response(quiet, gains, 0).K, atol=1e-6)
    np.testing.assert_array_equal(run.gains[-1][1], gains[1])


@pytest.mark.parametrize("published", [False, True])
def test_against_frozen_rivals_a_firm_learns_its_best_response(published: bool) -> None:
    model = Cournot(s=0.5, firms=3)
    start = [[-1.0, 0.0], [-1.5, -0.1], [-1.0, -0.2]]
    best = best_response(model.game(), [[row] for row in start], 0).K[0]
    learners = Learners(nu=0.25, periods=(50,), published=published)
    run = cournot_least_squares(model, learners, 200_000, range(8), [2000, 200_000], gains=start, frozen=(1, 2))
    off = np.abs(run.gains[:, :, 0] - best).max(2)
    assert np.median(off[:, 1]) < (0.003 if published else 0.03)
    assert np.median(off[:, 1]) < np.median(off[:, 0]) / 3


@pytest.mark.parametrize("clock", ["fixed", "poisson", "geometric"])
def test_permuting_clocks_leaves_the_limit(clock: str) -> None:
    model, marks = Cournot(s=0.9), [3000, 300_000]
    ends = []
    for periods in ((50, 70), (70, 50), (20, 200)):
        run = cournot_least_squares(model, Learners(nu=0.25, periods=periods, clock=clock), 300_000, range(8), marks)
        ends.append(np.median(run.gains[:, 1], 0))
        assert np.median(run.errors()[:, 1]) < 0.02 < np.median(run.errors()[:, 0])
    assert np.abs(np.diff(ends, axis=0)).max() < 0.02


@pytest.mark.parametrize("firms", [1, 4])
def test_any_number_of_firms_comes_near_its_equilibrium(firms: int) -> None:
    model = Cournot(s=0.9, firms=firms, c=tuple(1.5 + 0.2 * i for i in range(firms)))
    run = cournot_least_squares(model, Learners(nu=0.25, periods=(50,)), 300_000, range(8), [1000, 300_000])
    first, last = np.median(run.errors(), 0)
    assert last < 0.03
    assert last < first / 4


def test_the_general_learner_finds_the_equilibrium_of_another_game() -> None:
    """Two players push a point on a plane, each towards its own place; neither knows of the other."""
    A = np.array([[1.0, 0, 0], [0.1, 0.8, 0.1], [-0.1, 0.0, 0.7]])
    B = [np.array([[0.0], [1.0], [0.3]]), np.array([[0.0, 0], [0.2, 0.1], [0.0, 1.0]])]
    own = [np.zeros((7, 7)), np.zeros((8, 8))]
    own[0][[1, 2, 3], [1, 2, 3]] = 1.0, 0.2, 0.5
    own[1][[1, 2, 3, 4], [1, 2, 3, 4]] = 0.2, 1.0, 0.5, 0.5
    own[0][0, 1] = own[0][1, 0] = -0.5
    game = from_own_costs(A, B, own, 0.9, 0.1 * np.array([[0.0, 0], [1, 0], [0, 1]]))
    goal = nash(game).gains
    run = iterated_least_squares(game, 20_000, 0, [1.0, 0, 0], exploration=0.25, periods=(100, 130),
                                 checkpoints=[200, 20_000])  # fmt: skip
    first, last = run.errors(goal)
    assert last < 0.02
    assert last < first / 3
    assert run.kept == 0


def test_the_small_solves_are_numpys() -> None:
    g = np.random.default_rng(0)
    z = np.column_stack([np.ones(50), g.standard_normal(50) + 5, g.random(50)])
    G, h = z.T @ z, z.T @ g.standard_normal(50)
    found = solve3(G[0, 0], G[0, 1], G[0, 2], G[1, 1], G[1, 2], G[2, 2], *h)
    np.testing.assert_allclose(found, np.linalg.solve(G, h), rtol=1e-9)
    np.testing.assert_allclose(
        solve2(G[0, 0], G[0, 1], G[1, 1], h[0], h[1]), np.linalg.solve(G[:2, :2], h[:2]), rtol=1e-9
    )
    assert np.isnan(solve3(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)).all()
    assert np.isnan(solve2(1.0, 1.0, 1.0, 1.0, 1.0)).all()


def test_no_exploration_at_all_is_a_choice() -> None:
    assert Learners(e0=0.0, warmup=0).exploration(3).tolist() == [0, 0, 0]
    assert Learners(e0=0.0, warmup=2).exploration(3).tolist() == [1, 1, 0]


def test_random_clocks_ring_as_often_as_they_should() -> None:
    """Each step with chance 1/period, or with that of a Poisson process of mean gap ``period`` to ring in a step."""
    assert Learners(periods=(4,), clock="geometric").gaps(2)[1] == pytest.approx([0.25, 0.25])
    assert Learners(periods=(4, 8), clock="poisson").gaps(2)[1] == pytest.approx(
        [1 - np.exp(-1 / 4), 1 - np.exp(-1 / 8)]
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Learners(nu=-1.0), "Learners: nu"),
        (lambda: Learners(forget=1.5), "Learners: forget"),
        (lambda: Learners(ridge=0.0), "Learners: ridge"),
        (lambda: Learners(clock="sun"), "Learners: clock = 'sun'"),
        (lambda: Learners(memory="none"), "Learners: memory"),
        (lambda: Learners(periods=(0, 5)), "Learners: periods"),
        (lambda: cournot_least_squares(DUO, Learners(periods=(5, 6, 7)), 100, [0]), "periods .* 2 players"),
        (lambda: cournot_least_squares(DUO, Learners(), 0, [0]), "steps = 0"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [1, 1]), "seeds"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0], [50, 200]), "checkpoints must increase within"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0], gains=[[0.0, 0.0]]), "gains has shape"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0], frozen=[2]), "frozen .* players of 0..1"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0], frozen=1), "frozen has shape"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0], [[1, 2], [3]]), "checkpoints"),
        (lambda: cournot_least_squares(DUO, Learners(), 100, [0]).errors([1.0, 2.0]), "target has shape"),
        (lambda: Learners(periods=(50.5, 70)), "Learners: periods = 50.5"),
        (lambda: Learners(periods=("a",)), "Learners: periods"),
        (lambda: Learners(periods=float("nan")), "Learners: periods"),
        (lambda: Learners(periods=()), "Learners: periods"),
        (lambda: Learners(warmup=2.5), "Learners: warmup"),
        (lambda: reference(DUO, Learners(), 100, -1), "seeds"),
        (lambda: iterated_least_squares(_no_own(), 100, 0, [1.0, 5.0]), "own costs"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0]), "start has shape"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], periods=(1, 2, 3)), "periods"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], width=0.0), "width"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], exploration=[0.5]), "exploration has shape"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], published=[[[1.0]]]), "published has 1"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], frozen=[2]), "frozen"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], frozen=2), "frozen"),
        (lambda: iterated_least_squares(DUO.game(), 9, 0, [1.0, 5.0], exploration=[2.0] * 9), "exploration must hold"),
        (lambda: iterated_least_squares(DUO.game(), 9, 0, [1.0, 5.0], width=[[-1.0], [1.0]]), "width holds"),
        (lambda: iterated_least_squares(DUO.game(), 9, 0, [1.0, 5.0]).errors([[[0.0, 0.0]]]), "target has 1"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], clock="sun"), "clock = 'sun'"),
        (lambda: iterated_least_squares(DUO.game(), 100, 0, [1.0, 5.0], limits=(4, 0)), "limits"),
        (lambda: iterated_least_squares(DUO.game(), 1000, 0, [1.0, 5.0], [[[0.0, 50.0]]] * 2, warmup=1000),
         "left every bound"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error(make, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def _no_own() -> LQGame:
    game = DUO.game()
    return LQGame(game.A, game.B, game.Q, game.S, game.R, game.gamma)
