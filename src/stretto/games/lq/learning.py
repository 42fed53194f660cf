"""Iterated least squares in any linear-quadratic game, in NumPy: players who don't know that there are others.

Each sees the state x and its own action, fits x' = A x + B u_i by least squares, and at its own times takes the gain
that is optimal for that model and its own cost. (A, B) then estimates (A - sum_{j != i} B_j K_j, B_i), so that a fixed
point solves the coupled Riccati equations though nobody knows A or any other B_j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.lq.game import LQGame, own_regulator
from stretto.games.lq.market import ACTION, EXPLORE, NOISE, RING, Clock, checkpoints_of, frozen_of, gaps_of
from stretto.games.lq.riccati import riccati
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, distinct_seeds, number
from stretto.tabular.counter import key, normals, uniforms

Bounds = Callable[[Floats, Floats], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Path:
    """A run: ``gains`` [checkpoints][players] -> [m_i, n] after ``checkpoints`` steps; ``models`` [players]: the last
    (A, B) of each; ``costs`` [players]: mean cost a step; ``state`` [n]: the last one; ``kept``: updates whose
    Riccati equation had no solution, so that the player kept its gain."""

    checkpoints: Ints
    gains: list[tuple[Floats, ...]]
    models: list[tuple[Floats, Floats]]
    costs: Floats
    state: Floats
    kept: int

    def errors(self, target: Sequence[ArrayLike]) -> Floats:
        """Largest distance [checkpoints] of any gain from ``target`` (one [m_i, n] a player)."""
        if len(target) != len(self.models):
            raise ConfigError(f"Path.errors: target has {len(target)} gains for {len(self.models)} players")
        return np.array(
            [max(np.abs(K - np.asarray(T)).max() for K, T in zip(at, target, strict=True)) for at in self.gains]
        )


class Player:
    """One learner: its gain ``K`` [m, n], its sums, the ``model`` (A, B) that it last acted on."""

    def __init__(self, game: LQGame, i: int, K: Floats, ridge: float, forget: float, shown: Floats | None) -> None:
        assert game.own is not None
        self.cost, self.gamma, self.K = game.own[i], game.gamma, K
        self.ridge, self.forget, self.shown = ridge, forget, shown
        n, m = game.B[i].shape
        r = m if shown is None else len(shown)
        self.G, self.H, self.F = np.zeros((n + r, n + r)), np.zeros((n + r, n)), np.zeros((n, r))
        self.model = (np.zeros((n, n)), np.zeros((n, m)))

    def observe(self, x: Floats, own: Floats, y: Floats | None, after: Floats) -> None:
        """Add a step to the sums: x' against (x, u_i), or against (x, y) and what the others add to y against x."""
        z = np.concatenate([x, own if y is None else y])
        self.G = self.forget * self.G + np.outer(z, z)
        self.H = self.forget * self.H + np.outer(z, after)
        if y is not None and self.shown is not None:
            self.F = self.forget * self.F + np.outer(x, y - self.shown @ own)

    def fit(self) -> tuple[Floats, Floats]:
        """The player's present model (A [n, n], B [n, m]) of x' = A x + B u_i, by least squares with a ridge over what
        it has observed."""
        n = len(self.F)
        G = self.G + self.ridge * np.eye(len(self.G))
        model = np.asarray(np.linalg.solve(G, self.H).T, np.float64)
        A, M = model[:, :n], model[:, n:]
        if self.shown is None:
            return A, M
        others = np.asarray(np.linalg.solve(G[:n, :n], self.F).T, np.float64)
        return A + M @ others, M @ self.shown

    def update(self, bounds: Bounds | None) -> bool:
        """Take the gain that is best for its model; False: there is none, the old one stays."""
        try:
            A, B = self.fit()
            self.model = (A, B) if bounds is None else bounds(A, B)
            self.K = riccati(own_regulator(self.cost, *self.model, self.gamma), "dare").K
        except (ConfigError, np.linalg.LinAlgError):
            return False
        return True


def iterated_least_squares(
    game: LQGame,
    steps: int,
    seed: int,
    start: ArrayLike,
    gains: Sequence[ArrayLike] | None = None,
    *,
    width: float | Sequence[ArrayLike] = 1.0,
    exploration: ArrayLike = 0.5,
    periods: Sequence[int] = (50,),
    clock: Clock = "fixed",
    forget: float = 1.0,
    published: Sequence[ArrayLike] | None = None,
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
    all actions are kept within ``limits``. Player i updates every ``periods[i]`` steps (``clock``: as in
    ``Learners``), from step ``warmup`` on; ``forget`` below 1 multiplies its sums each step. ``published``: one D_j
    [r, m_j] a player; all see y = sum_j D_j u_j, regress x' on (x, y) and y - D_i u_i on x, and put both together
    (right where B_j = M D_j). ``bounds(A, B)`` keeps a model sensible before it is solved.
    ``frozen``: players who neither explore nor update. ``ConfigError`` if a player's cost depends on what it can't
    see (``game.own`` is None). All constants are [inferred].
    """
    where = "iterated_least_squares"
    if game.own is None:
        raise ConfigError(
            f"{where}: game has no own costs: its players pay for what they can't see; see from_own_costs"
        )
    count, marks = checkpoints_of(where, steps, checkpoints)
    run, n, everyone = int(distinct_seeds(where, [seed])[0]), len(game.A), range(game.players)
    x = array(where, "start", start, (n,)).copy()
    K = game.gains([np.zeros((b.shape[1], n)) for b in game.B] if gains is None else gains, where)
    gaps, chances = gaps_of(where, periods, clock, len(everyone))
    learn = _learners(where, frozen, len(everyone))
    low, high = _limits(where, limits)
    spread = _spread(where, width, game)
    rates = _rates(where, exploration, count, int(number(where, "warmup", warmup, 0, whole=True)))
    shown = None if published is None else _published(where, published, game)
    ridge, forget = number(where, "ridge", ridge, above=0), number(where, "forget", forget, above=0, high=1)
    players = [Player(game, i, K[i], ridge, forget, None if shown is None else shown[i]) for i in everyone]
    B, places = np.hstack(game.B), [game.where(i) for i in everyone]
    draws = _draws(run, count, game)
    costs, u, kept = np.zeros(len(everyone)), np.zeros(B.shape[1]), 0
    record: list[tuple[Floats, ...]] = []
    for t, (explore, action, ring, noise) in enumerate(zip(*draws, strict=True)):
        for i, player in enumerate(players):
            u[places[i]] = (-player.K @ x).clip(low, high)
            if learn[i] and explore[i] < rates[t]:
                u[places[i]] += spread[i] * action[places[i]]
        u = u.clip(low, high)
        after = game.A @ x + B @ u + noise
        if not np.abs(after).max() < 1e12:
            raise ConfigError(f"{where}: the state left every bound at step {t}; give limits or stable first gains")
        y = None if shown is None else np.sum([D @ u[at] for D, at in zip(shown, places, strict=True)], axis=0)
        for i, player in enumerate(players):
            own = u[places[i]]
            z = np.concatenate([x, own, after])
            costs[i] += z @ player.cost @ z
            if not learn[i]:
                continue
            player.observe(x, own, y, after)
            due = (t + 1) % gaps[i] == 0 if gaps[i] else ring[i] < chances[i]
            if due and t + 1 >= warmup:
                kept += not player.update(bounds)
        x = after
        if t + 1 in marks:
            record.append(tuple(player.K for player in players))
    return Path(marks, record, [player.model for player in players], costs / count, x, kept)


def _draws(seed: int, steps: int, game: LQGame) -> tuple[Floats, ...]:
    """Of each step: who explores, where to (each in [-1, 1)), whose random clock rings, and the noise on x."""
    assert game.noise is not None
    n, m, k = game.players, game.R[0].shape[0], game.noise.shape[1]
    explore, ring = (uniforms(key(seed, stream), steps * n).reshape(steps, n) for stream in (EXPLORE, RING))
    action = 2 * uniforms(key(seed, ACTION), steps * m).reshape(steps, m) - 1
    return explore, action, ring, normals(key(seed, NOISE), steps * k).reshape(steps, k) @ game.noise.T


def _learners(where: str, frozen: Sequence[int], players: int) -> list[bool]:
    still = frozen_of(where, frozen, players)
    return [i not in still for i in range(players)]


def _limits(where: str, limits: tuple[float, float] | None) -> tuple[float, float]:
    if limits is None:
        return -np.inf, np.inf
    low, high = array(where, "limits", limits, (2,)).tolist()
    number(where, "limits", high, above=low)
    return low, high


def _spread(where: str, width: float | Sequence[ArrayLike], game: LQGame) -> list[Floats]:
    given = width.tolist() if isinstance(width, np.ndarray) else width
    if isinstance(given, str) or not isinstance(given, Sequence):
        return [np.full(b.shape[1], number(where, "width", given, above=0)) for b in game.B]
    if len(given) != game.players:
        raise ConfigError(f"{where}: width has {len(given)} entries for {game.players} players")
    each = [array(where, f"width[{j}]", w, (b.shape[1],)) for j, (w, b) in enumerate(zip(given, game.B, strict=True))]
    if any((w < 0).any() for w in each):
        raise ConfigError(f"{where}: width holds a negative number")
    return each


def _rates(where: str, exploration: ArrayLike, steps: int, warmup: int) -> Floats:
    if np.ndim(exploration) == 0:
        t = np.maximum(np.arange(steps, dtype=float), 1)
        rates = np.minimum(1.0, t ** -number(where, "exploration", exploration, 0))
    else:
        rates = array(where, "exploration", exploration, (steps,)).copy()
        if (rates < 0).any() or (rates > 1).any():
            raise ConfigError(f"{where}: exploration must hold probabilities, from 0 to 1")
    rates[:warmup] = 1
    return rates


def _published(where: str, published: Sequence[ArrayLike], game: LQGame) -> list[Floats]:
    if len(published) != game.players:
        raise ConfigError(f"{where}: published has {len(published)} matrices for {game.players} players")
    rows = len(np.atleast_2d(published[0]))
    return [
        array(where, f"published[{j}]", D, (rows, b.shape[1]))
        for j, (D, b) in enumerate(zip(published, game.B, strict=True))
    ]
