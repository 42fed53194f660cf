"""Linear-quadratic games: the equilibrium by three routes, any number of players, and no profitable deviation."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.games.lq.cournot import Cournot
from stretto.games.lq.game import LQGame, Regulator, from_own_costs
from stretto.games.lq.outside import quantecon_nash
from stretto.games.lq.riccati import (
    best_response,
    deviation_gain,
    discounted_cost,
    nash,
    nash_residual,
    policy_costs,
    riccati,
    riccati_step,
)
from stretto.kernel.errors import ConfigError


def drawn(players: int, seed: int = 0, gamma: float = 0.9) -> LQGame:
    """Three states, one or two actions a player, every kind of cross term."""
    g = np.random.default_rng(seed)
    widths = [1 + i % 2 for i in range(players)]
    B = [0.5 * g.standard_normal((3, w)) for w in widths]
    m = sum(widths)
    Q, S, R = [], [], []
    for _ in range(players):
        root = g.standard_normal((3, 3))
        Q.append(root @ root.T)
        S.append(0.05 * g.standard_normal((3, m)))
        R.append(2 * np.eye(m) + 0.05 * g.standard_normal((m, m)))
    return LQGame(0.4 * g.standard_normal((3, 3)), tuple(B), tuple(Q), tuple(S), tuple(R), gamma, 0.1 * np.eye(3))


@pytest.mark.parametrize("players", [1, 2, 3, 5])
def test_the_coupled_equations_hold_by_both_routes(players: int) -> None:
    game = drawn(players)
    found, other = nash(game), nash(game, route="recursion")
    assert nash_residual(game, found) < 1e-10
    for a, b in zip(found.gains, other.gains, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)
    for i in range(players):
        np.testing.assert_allclose(best_response(game, found.gains, i).K, found.gains[i], atol=1e-10)


def test_quantecon_finds_the_same_equilibrium() -> None:
    game = drawn(2, seed=3)
    first = slice(0, game.B[0].shape[1])
    with pytest.raises(ConfigError, match="crosses the state"):
        quantecon_nash(game)
    second = slice(first.stop, None)
    plain = LQGame(game.A, game.B, game.Q, (_only(game.S[0], first), _only(game.S[1], second)), game.R, game.gamma)
    found, theirs = nash(plain), quantecon_nash(plain, tol=1e-12)
    for ours, other in zip([*found.gains, *found.P], [*theirs.gains, *theirs.P], strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-7)


def _only(S: np.ndarray, columns: slice) -> np.ndarray:
    kept = np.zeros_like(S)
    kept[:, columns] = S[:, columns]
    return kept


def test_one_player_is_the_riccati_equation_and_its_fixed_point() -> None:
    game = drawn(1, seed=5)
    problem = game.face([np.zeros((1, 3))], 0)
    np.testing.assert_allclose(nash(game).gains[0], riccati(problem, "dare").K, atol=1e-11)
    again = riccati_step(problem, riccati(problem).P)
    np.testing.assert_allclose(again.P, riccati(problem).P, atol=1e-10)


@pytest.mark.parametrize("game", [drawn(3, seed=1), Cournot(s=0.3, firms=3).game()], ids=["drawn", "cournot"])
def test_no_unilateral_linear_deviation_lowers_the_discounted_cost(game: LQGame) -> None:
    found = nash(game)
    start = np.linspace(1, 2, len(game.A))
    here = discounted_cost(game, found.gains, start)
    g = np.random.default_rng(0)
    for i in range(game.players):
        np.testing.assert_allclose(policy_costs(game, found.gains)[i], found.P[i], atol=1e-7, rtol=1e-9)
        for _ in range(8):
            step = 1e-3 * g.standard_normal(found.gains[i].shape)
            costs = []
            for sign in (1, -1):
                gains = list(found.gains)
                gains[i] = gains[i] + sign * step
                costs.append(discounted_cost(game, gains, start)[i] - here[i])
            assert min(costs) > 0
            assert -1e-4 < deviation_gain(game, found.gains, i, start) < 0
            assert abs(costs[0] - costs[1]) < 0.02 * sum(costs)  # the slope is 0, the curvature isn't


def test_the_discounted_cost_is_the_sum_of_simulated_ones() -> None:
    game = drawn(2, seed=2)
    gains = nash(game).gains
    K, g = np.vstack(gains), np.random.default_rng(0)
    runs, x = 4000, np.tile([1.0, -1.0, 0.5], (4000, 1))
    total = np.zeros((runs, 2))
    for t in range(120):
        u = -x @ K.T
        for i in range(2):
            cost = (x @ game.Q[i] * x).sum(1) + 2 * (x @ game.S[i] * u).sum(1) + (u @ game.R[i] * u).sum(1)
            total[:, i] += game.gamma**t * cost
        x = x @ game.A.T + u @ np.hstack(game.B).T + g.standard_normal((runs, 3)) @ game.noise.T
    expected = discounted_cost(game, gains, [1.0, -1.0, 0.5])
    assert (np.abs(total.mean(0) - expected) < 4 * total.std(0) / np.sqrt(runs)).all()


def test_costs_on_the_next_state_are_costs_on_the_state_and_all_actions() -> None:
    g = np.random.default_rng(0)
    A, B = g.standard_normal((2, 2)), [g.standard_normal((2, 1)), g.standard_normal((2, 2))]
    own = [g.standard_normal((5, 5)), g.standard_normal((6, 6))]
    game = from_own_costs(A, B, own, 0.9)
    x, u = g.standard_normal(2), g.standard_normal(3)
    after = A @ x + np.hstack(B) @ u
    for i in range(2):
        z = np.concatenate([x, u[game.where(i)], after])
        direct = x @ game.Q[i] @ x + 2 * x @ game.S[i] @ u + u @ game.R[i] @ u
        assert direct == pytest.approx(z @ own[i] @ z, rel=1e-12)


def test_relabelling_players_relabels_the_gains() -> None:
    game = Cournot(firms=3, c=(1.0, 2.0, 2.5), k=(1.0, 0.5, 2.0)).game()
    order = [2, 0, 1]
    other = Cournot(firms=3, c=(2.5, 1.0, 2.0), k=(2.0, 1.0, 0.5)).game()
    gains = np.vstack(nash(game).gains)
    np.testing.assert_allclose(np.vstack(nash(other).gains), gains[order], atol=1e-10)
    assert np.abs(gains[0] - gains[1]).max() > 0.1


def test_damping_reaches_the_same_equilibrium() -> None:
    game = drawn(2)
    np.testing.assert_allclose(np.hstack(nash(game, damping=0.5).gains[0]), np.hstack(nash(game).gains[0]), atol=1e-9)


UNSTABLE = Regulator(2 * np.eye(1), np.zeros((1, 1)), np.eye(1), np.zeros((1, 1)), np.eye(1), 0.9)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: riccati(Regulator(np.eye(1), np.zeros((1, 1)), np.eye(1), np.zeros((1, 1)), np.zeros((1, 1)), 0.9)),
         "singular"),
        (lambda: riccati(UNSTABLE, "dare"), "singular or has no stabilising"),
        (lambda: riccati(UNSTABLE, limit=50), "hasn't settled"),
        (lambda: riccati(UNSTABLE), "hasn't settled"),
        (lambda: riccati(UNSTABLE, tol=-1), "riccati: tol"),
        (lambda: Regulator(np.eye(2), np.ones((3, 1)), np.eye(2), np.ones((2, 1)), np.eye(1), 0.9), "Regulator: A"),
        (lambda: Regulator(np.eye(1) * np.nan, *[np.eye(1)] * 4, 0.9), "Regulator: A"),
        (lambda: Regulator(*[np.eye(1)] * 5, 1.0), "Regulator: gamma"),
        (lambda: best_response(drawn(2), nash(drawn(2)).gains, 2), "player = 2"),
        (lambda: best_response(drawn(2), nash(drawn(2)).gains, -1), "player = -1"),
        (lambda: deviation_gain(drawn(1), nash(drawn(1)).gains, 1, [1.0, 0, 0]), "deviation_gain: player"),
        (lambda: deviation_gain(drawn(1), nash(drawn(1)).gains, 0, [1.0, 0, 0], 0), "deviation_gain: size"),
        (lambda: riccati(drawn(1).face([np.zeros((1, 3))], 0), "newton"), "route 'newton'"),
        (lambda: nash(Cournot(s=0.6, timing=1, k=1.0).game()), "singular or has no"),
        (lambda: nash(drawn(2), limit=2), "haven't settled after 2 rounds"),
        (lambda: nash(drawn(2), damping=0.0), "nash: damping"),
        (lambda: nash(drawn(2), start=[np.zeros((1, 3))]), "gains holds 1"),
        (lambda: nash(drawn(2), start=[np.zeros((1, 3)), np.full((2, 3), np.nan)]), r"gains\[1\]"),
        (lambda: drawn(2, gamma=1.0), "gamma = 1"),
        (lambda: LQGame(np.eye(2), (), (), (), (), 0.9), "at least one state and one player"),
        (lambda: LQGame(np.eye(2), (np.eye(2),), (np.eye(3),), (np.eye(2),), (np.eye(2),), 0.9), r"Q\[0\] has shape"),
        (lambda: LQGame(np.eye(2), (np.eye(2),), (), (np.eye(2),), (np.eye(2),), 0.9), "Q has 0 matrices"),
        (lambda: from_own_costs(np.eye(2), [np.eye(2)], [np.eye(3)], 0.9), r"own\[0\] has shape"),
        (lambda: quantecon_nash(drawn(3)), "3 players"),
        (lambda: from_own_costs(np.eye(2), [np.eye(2)], [], 0.9), "own has 0 costs"),
        (lambda: policy_costs(drawn(1), [[[50.0, 0, 0]]]), "spectral radius"),
        (lambda: discounted_cost(drawn(1), nash(drawn(1)).gains, [1.0]), "start has shape"),
    ],
)  # fmt: skip
def test_bad_input_is_one_error(make, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
