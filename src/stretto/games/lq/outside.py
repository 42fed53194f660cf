"""quantecon's solver as an oracle of ours: two players, its own iteration."""

from __future__ import annotations

import numpy as np

from stretto.data.arrays import Floats
from stretto.games.lq.game import LQGame
from stretto.games.lq.riccati import Equilibrium
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number


def quantecon_nash(game: LQGame, tol: float = 1e-8, limit: int = 1000) -> Equilibrium:
    """``quantecon.nnash`` on ``game``. ``ConfigError``: not two players, a cost that crosses the state with the other's
    action (it has no place for one), or quantecon isn't installed."""
    where = "quantecon_nash"
    if game.players != 2:
        raise ConfigError(f"{where}: game has {game.players} players; quantecon.nnash takes two")
    first, second = game.where(0), game.where(1)
    if np.abs(game.S[0][:, second]).max() > 0 or np.abs(game.S[1][:, first]).max() > 0:
        raise ConfigError(
            f"{where}: game.S crosses the state with the other's action; quantecon.nnash has no such term"
        )
    number(where, "tol", tol, above=0)
    rounds = int(number(where, "limit", limit, 1, whole=True))
    try:
        from quantecon import nnash
    except ImportError:
        raise ConfigError(f"{where}: quantecon isn't installed; pip install quantecon") from None
    R1, R2 = game.R
    try:
        found: tuple[Floats, ...] = nnash(
            game.A, *game.B, *game.Q, R1[first, first], R2[second, second], R1[second, second], R2[first, first],
            game.S[0][:, first], game.S[1][:, second], R1[second, first], R2[first, second],
            beta=game.gamma, tol=tol, max_iter=rounds,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"{where}: game isn't solved within limit = {limit} rounds ({error})") from None
    return Equilibrium(tuple(found[:2]), tuple(found[2:]), 0, np.zeros(0))
