"""Iterated least squares in any linear-quadratic game, in NumPy: players who don't know that there are others.

Each sees the state x and its own action, fits x' = A x + B u_i by least squares, and at its own times takes the gain
that is optimal for that model and its own cost. (A, B) then estimates (A - sum_{j != i} B_j K_j, B_i), so that a fixed
point solves the coupled Riccati equations though nobody knows A or any other B_j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.errors import ConfigError
from stretto.games.lq.game import LQGame, own_regulator
from stretto.games.lq.market import ACTION, EXPLORE, NOISE, checkpoints_of
from stretto.games.lq.riccati import riccati
from stretto.tabular.arguments import Floats, array, distinct_seeds, number
from stretto.tabular.counter import key, normals, uniforms

Bounds = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Path:
    """A run: ``gains`` [checkpoints][players] -> [m_i, n] after ``checkpoints`` steps; ``models`` [players]: the last
    (A, B) of each; ``costs`` [players]: mean cost a step; ``state`` [n]: the last one; ``kept``: updates whose
    Riccati equation had no solution, so that the player kept its gain."""

    checkpoints: Any
    gains: list[tuple[Floats, ...]]
    models: list[tuple[Floats, Floats]]
    costs: Floats
    state: Floats
    kept: int

    def errors(self, target: Sequence[Any]) -> Floats:
        """Largest distance [checkpoints] of any gain from ``target`` (one [m_i, n] a player)."""
        return np.array([max(np.abs(K - T).max() for K, T in zip(at, target, strict=True)) for at in self.gains])


def iterated_least_squares(
    game: LQGame,
    steps: int,
    seed: int,
    start: Any,
    gains: Sequence[Any] | None = None,
    *,
    width: float | Sequence[Any] = 1.0,
    exploration: Any = 0.5,
    periods: Sequence[int] = (50,),
    published: Sequence[Any] | None = None,
    bounds: Bounds | None = None,
    limits: tuple[float, float] | None = None,
    warmup: int = 30,
    ridge: float = 1e-6,
    checkpoints: Sequence[int] | None = None,
    frozen: Sequence[int] = (),
) -> Path:
    """Run ``game`` from state ``start`` [n] and ``gains`` (zeros if None).

    A player explores at step t with probability min(1, t^-``exploration``) (or ``exploration[t]``), and in the first
    ``warmup`` steps: greedy action + U[-``width``, ``width``] in each coordinate (one number, or one [m_i] a player);
    all actions are kept within ``limits``. Player i updates every ``periods[i]`` steps, from step ``warmup`` on.
    ``published``: one D_j [r, m_j] a player; all see y = sum_j D_j u_j, regress x' on (x, y) and y - D_i u_i on x, and
    put both together (right where B_j = M D_j). ``bounds(A, B)`` keeps a model sensible before it is solved.
    ``frozen``: players who neither explore nor update. ``ConfigError`` if a player's cost depends on what it can't
    see (``game.own`` is None). All constants are [inferred].
    """
    where = "iterated_least_squares"
    if game.own is None:
        raise ConfigError(
            f"{where}: game has no own costs: its players pay for what they can't see; see from_own_costs"
        )
    count, marks = checkpoints_of(where, steps, checkpoints)
    seed = int(distinct_seeds(where, [seed])[0])
    n, players = len(game.A), game.players
    x = array(where, "start", start, (n,)).copy()
    zeros = [np.zeros((b.shape[1], n)) for b in game.B]
    K = list(game.gains(zeros if gains is None else gains, where))
    gaps = _gaps(where, periods, players)
    if any(i not in range(players) for i in frozen):
        raise ConfigError(f"{where}: frozen {tuple(frozen)} must be players of 0..{players - 1}")
    spread = _spread(where, width, game)
    rates = _rates(where, exploration, count, int(number(where, "warmup", warmup, 0, whole=True)))
    shown = None if published is None else _published(where, published, game)
    number(where, "ridge", ridge, above=0)
    B, C = np.hstack(game.B), game.own
    m, noises = B.shape[1], game.noise
    assert noises is not None
    explore = uniforms(key(seed, EXPLORE), count * players).reshape(count, players)
    where_to = 2 * uniforms(key(seed, ACTION), count * m).reshape(count, m) - 1
    noise = normals(key(seed, NOISE), count * noises.shape[1]).reshape(count, -1) @ noises.T
    seen = [b.shape[1] if shown is None else len(shown[j]) for j, b in enumerate(game.B)]
    G = [ridge * np.eye(n + r) for r in seen]
    H = [np.zeros((n + r, n)) for r in seen]
    F = [np.zeros((n, r)) for r in seen]
    models = [(np.zeros_like(game.A), np.zeros_like(b)) for b in game.B]
    costs, record, kept = np.zeros(players), [], 0
    u = np.zeros(m)
    for t in range(count):
        for i in range(players):
            mine = game.where(i)
            u[mine] = -K[i] @ x
            if limits is not None:
                u[mine] = u[mine].clip(*limits)
            if i not in frozen and explore[t, i] < rates[t]:
                u[mine] += spread[i] * where_to[t, mine]
        if limits is not None:
            u = u.clip(*limits)
        after = game.A @ x + B @ u + noise[t]
        if not np.abs(after).max() < 1e12:
            raise ConfigError(f"{where}: the state left every bound at step {t}; give limits or stable first gains")
        y = None if shown is None else sum(D @ u[game.where(j)] for j, D in enumerate(shown))
        for i in range(players):
            own = u[game.where(i)]
            z = np.concatenate([x, own, after])
            costs[i] += z @ C[i] @ z
            regressors = np.concatenate([x, own if y is None else y])
            G[i] += np.outer(regressors, regressors)
            H[i] += np.outer(regressors, after)
            if y is not None and shown is not None:
                F[i] += np.outer(x, y - shown[i] @ own)
            if i not in frozen and (t + 1) % gaps[i] == 0 and t + 1 >= warmup:
                model = np.asarray(np.linalg.solve(G[i], H[i]).T, np.float64)
                A, M = model[:, :n], model[:, n:]
                if shown is not None:
                    others = np.asarray(np.linalg.solve(G[i][:n, :n], F[i]).T, np.float64)
                    A, M = A + M @ others, M @ shown[i]
                models[i] = (A, M) if bounds is None else bounds(A, M)
                try:
                    K[i] = riccati(own_regulator(C[i], *models[i], game.gamma), "dare").K
                except ConfigError:  # no optimal gain for this model: the player keeps its own, and it's counted
                    kept += 1
        x = after
        if t + 1 in marks:
            record.append(tuple(K))
    return Path(marks, record, models, costs / count, x, kept)


def _gaps(where: str, periods: Sequence[int], players: int) -> list[int]:
    gaps = [int(number(where, "periods", p, 1, whole=True)) for p in np.atleast_1d(periods)]
    if len(gaps) not in (1, players):
        raise ConfigError(f"{where}: periods {tuple(gaps)} must be one number or one for each of {players} players")
    return gaps * players if len(gaps) == 1 else gaps


def _spread(where: str, width: Any, game: LQGame) -> list[Floats]:
    if np.ndim(width) == 0:
        return [np.full(b.shape[1], number(where, "width", width, above=0)) for b in game.B]
    if len(width) != game.players:
        raise ConfigError(f"{where}: width has {len(width)} entries for {game.players} players")
    return [array(where, f"width[{j}]", w, (b.shape[1],)) for j, (w, b) in enumerate(zip(width, game.B, strict=True))]


def _rates(where: str, exploration: Any, steps: int, warmup: int) -> Floats:
    if np.ndim(exploration) == 0:
        t = np.maximum(np.arange(steps, dtype=float), 1)
        rates = np.minimum(1.0, t ** -number(where, "exploration", exploration, 0))
    else:
        rates = array(where, "exploration", exploration, (steps,)).copy()
    rates[:warmup] = 1
    return rates


def _published(where: str, published: Sequence[Any], game: LQGame) -> list[Floats]:
    if len(published) != game.players:
        raise ConfigError(f"{where}: published has {len(published)} matrices for {game.players} players")
    rows = len(np.atleast_2d(published[0]))
    return [
        array(where, f"published[{j}]", D, (rows, b.shape[1]))
        for j, (D, b) in enumerate(zip(published, game.B, strict=True))
    ]
