"""OpenSpiel's one-shot games as Markov games: for this package's learners and oracles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stretto.games.markov import MarkovGame
from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    import pyspiel


def matrix_game(game: pyspiel.Game) -> MarkovGame:
    """The Markov game (one state, gamma 0, costs minus utilities) of an OpenSpiel game in which all players move once,
    at the same time: ``pyspiel.load_game("matrix_pd")``, any number of players. Actions keep OpenSpiel's order.
    ``ConfigError`` for another kind of game (several moves, chance, hidden draws)."""
    import pyspiel

    kind = game.get_type()
    one_shot = kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS and game.max_game_length() == 1
    first = game.new_initial_state()
    if not one_shot or not first.is_simultaneous_node():
        raise ConfigError(f"matrix_game: game {kind.short_name} isn't one simultaneous move; give a matrix game")
    legal = [first.legal_actions(i) for i in range(game.num_players())]
    actions = tuple(len(a) for a in legal)
    costs = np.empty((len(actions), 1, int(np.prod(actions))))
    for joint, places in enumerate(np.ndindex(*actions)):
        state = first.clone()
        state.apply_actions([legal[i][a] for i, a in enumerate(places)])
        if not state.is_terminal():
            raise ConfigError(f"matrix_game: game {kind.short_name} goes on after one move; give a matrix game")
        costs[:, 0, joint] = -np.array(state.returns())
    return MarkovGame(np.ones((1, costs.shape[2], 1)), costs, 0.0, actions, np.ones(1))
