"""Natural policy gradient with the KL projection, on exact values: pi_i <- project_floor(pi_i exp(-eta Q_i) / Z)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stretto.data.arrays import Floats
from stretto.games.markov import MarkovGame, Policies, uniform_policies, values
from stretto.games.potential.projection import kl_project
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number


def check_floor(where: str, game: MarkovGame, floor: float) -> float:
    """``floor`` as a float; ``ConfigError`` unless every player can give it to each of its actions."""
    return number(where, "floor", floor, 0.0, 1.0 / max(game.actions))


def player_q(game: MarkovGame, policies: Policies) -> list[Floats]:
    """Q_i [S, A_i] of every player: expected discounted cost of an action, all following ``policies`` afterwards."""
    v = values(game, policies)
    whole = game.costs + game.gamma * np.einsum("sjt,nt->nsj", game.transitions, v)
    return [_others_average(game, policies, i, whole[i]) for i in range(game.players)]


def npg(
    game: MarkovGame,
    rounds: int,
    eta: float,
    floor: float,
    policies: Policies | None = None,
    sequential: bool = False,
    bias: Sequence[Floats] | None = None,
    watch: Callable[[int, list[Floats]], None] = lambda k, policies: None,
) -> list[Floats]:
    """Policies after ``rounds`` exact updates with step ``eta`` from ``policies`` (uniform if None). A round moves all
    players at once, or one after the other if ``sequential``. ``bias``: added to every Q_i (an oracle's error).
    ``watch(k, policies)`` sees the policies before round k = 0, 1, .. and after the last."""
    number("npg", "rounds", rounds, 0, whole=True)
    number("npg", "eta", eta, above=0)
    check_floor("npg", game, floor)
    if bias is not None and len(bias) != game.players:
        raise ConfigError(f"npg: bias has {len(bias)} entries for {game.players} players; give one [S, A_i] each")
    shapes = [(game.states, a) for a in game.actions]
    wrong = [np.zeros(shape) if bias is None else array("npg", f"bias[{i}]", bias[i], shape)
             for i, shape in enumerate(shapes)]  # fmt: skip
    now = [np.array(p) for p in (uniform_policies(game) if policies is None else policies)]
    for k in range(rounds):
        watch(k, now)
        if sequential:
            for i in range(game.players):
                now[i] = _step(now[i], player_q(game, now)[i] + wrong[i], eta, floor)
        else:
            q = player_q(game, now)
            now = [_step(p, q[i] + wrong[i], eta, floor) for i, p in enumerate(now)]
    watch(rounds, now)
    return now


def _step(policy: Floats, q: Floats, eta: float, floor: float) -> Floats:
    """Subtracting the row's least q changes nothing after the projection, and keeps exp() from vanishing."""
    return kl_project(policy * np.exp(-eta * (q - q.min(-1, keepdims=True))), floor)


def _others_average(game: MarkovGame, policies: Policies, player: int, table: Floats) -> Floats:
    """[S, A_i]: the table [S, J] averaged over the other players' draws."""
    split = table.reshape(game.states, *game.actions)
    for j in reversed(range(game.players)):  # the last axes go first, so that earlier axes keep their places
        if j != player:
            p = policies[j].reshape(game.states, *([1] * (split.ndim - 2)), game.actions[j])
            split = (np.moveaxis(split, 1 + j, -1) * p).sum(-1)
    return split
