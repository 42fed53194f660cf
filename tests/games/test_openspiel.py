"""OpenSpiel's one-shot games: the same distance from equilibrium by its own oracle, and this package's learner on
them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.games.markov import joint_policy, nash_conv, nash_gap, uniform_policies
from stretto.games.openspiel import matrix_game
from stretto.games.potential.online import Schedule, learn_online
from stretto.kernel.errors import ConfigError

pyspiel = pytest.importorskip("pyspiel")
GAMES = ("matrix_pd", "matrix_rps", "matrix_bos", "matrix_cd", "matrix_shapleys_game", "blotto(coins=3,fields=2)",
         "blotto(coins=2,fields=2,players=3)")  # fmt: skip


def openspiels_nash_conv(game: object, policies: list[np.ndarray]) -> float:
    """By OpenSpiel, on the turn-based form of the game."""
    from open_spiel.python import policy
    from open_spiel.python.algorithms import exploitability

    turns = pyspiel.convert_to_turn_based(game)
    table = policy.TabularPolicy(turns)
    for player, states in enumerate(table.states_per_player):
        for state in states:
            table.policy_for_key(state)[:] = policies[player][0]
    return float(exploitability.nash_conv(turns, table))


def test_uniform_play_in_the_prisoners_dilemma_is_three_from_equilibrium() -> None:
    game = matrix_game(pyspiel.load_game("matrix_pd"))
    assert nash_conv(game, uniform_policies(game)) == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize("name", GAMES)
def test_nash_conv_is_openspiels(name: str) -> None:
    theirs = pyspiel.load_game(name)
    game = matrix_game(theirs)
    rng = np.random.default_rng(0)
    for policies in (uniform_policies(game), [rng.dirichlet(np.ones(a), size=1) for a in game.actions]):
        assert nash_conv(game, policies) == pytest.approx(openspiels_nash_conv(theirs, policies), abs=1e-9)


def test_the_online_learner_leaves_the_dilemma_for_its_equilibrium() -> None:
    game = matrix_game(pyspiel.load_game("matrix_pd"))
    run = learn_online(game, 20_000, [0, 1], Schedule(floor=0.1, floor_power=0.5), noise=0.1)
    for seed in (0, 1):
        assert nash_gap(game, run.at(seed, 0)) == pytest.approx(1.5)
        last = run.at(seed, -1)
        assert nash_gap(game, last) < 0.05
        assert joint_policy(game, last)[0, -1] > 0.97  # both defect


def test_a_game_of_several_moves_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"matrix_game: game .* one simultaneous move"):
        matrix_game(pyspiel.load_game("kuhn_poker"))
    with pytest.raises(ConfigError, match="matrix_game"):
        matrix_game(pyspiel.load_game("goofspiel"))
