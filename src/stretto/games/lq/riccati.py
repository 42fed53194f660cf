"""Exact solutions: a player's Riccati equation by two routes, the coupled ones by best responses in turn.

Route 1 repeats the discounted Riccati step; route 2 is ``scipy.linalg.solve_discrete_are`` with the cross term, A and B
times sqrt(gamma) (Basar and Olsder, Dynamic Noncooperative Game Theory, for the coupled equations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError, solve_discrete_are, solve_discrete_lyapunov

from stretto.data.arrays import Floats
from stretto.games.lq.game import LQGame, Regulator
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, index_in, number

Route = Literal["recursion", "dare"]
_TINY, _HUGE = 1e-12, 1e100


@dataclass(frozen=True)
class Solution:
    """Gain ``K`` [m, n] (u = -K x) and ``P`` [n, n]: x'Px is the expected discounted cost from x, but for the
    noise."""

    K: Floats
    P: Floats


@dataclass(frozen=True)
class Equilibrium:
    """A Nash equilibrium in linear policies: one ``gains`` [m_i, n] and one ``P`` [n, n] a player; ``rounds`` of best
    responses that it took, ``changes`` [rounds] the largest change of a gain in each."""

    gains: tuple[Floats, ...]
    P: tuple[Floats, ...]
    rounds: int
    changes: Floats

    @property
    def ratio(self) -> float:
        """Late contraction: the ratio of the last two changes above rounding (0 with fewer than two)."""
        clear = self.changes[self.changes > 1e-11]
        return float(clear[-1] / clear[-2]) if len(clear) > 1 else 0.0


def riccati_step(problem: Regulator, P: Floats) -> Solution:
    """One backward step: K = (R + gamma B'PB)^-1 (S' + gamma B'PA), and the new P. ``ConfigError`` where the matrix
    to invert isn't positive definite (a singular Riccati equation)."""
    den = problem.R + problem.gamma * problem.B.T @ P @ problem.B
    cross = problem.S.T + problem.gamma * problem.B.T @ P @ problem.A
    try:
        root = np.linalg.cholesky(den)
        singular = bool(root.diagonal().min() ** 2 <= _TINY * np.abs(den).max())
    except LinAlgError:
        singular = True
    if singular:
        raise ConfigError(
            "riccati: R + gamma B'PB is singular or not positive definite: this player's cost has no minimum; give "
            "its own actions a positive cost R"
        )
    K = np.asarray(np.linalg.solve(den, cross), np.float64)
    new = problem.Q + problem.gamma * problem.A.T @ P @ problem.A - cross.T @ K
    return Solution(K, (new + new.T) / 2)


def riccati(problem: Regulator, route: Route = "recursion", tol: float = 1e-13, limit: int = 100_000) -> Solution:
    """The optimal linear policy. ``route``: ``recursion`` from P = 0 until P moves by less than ``tol`` relative to
    its size, or ``dare``. ``ConfigError``: a singular equation, or no convergence within ``limit`` steps (no policy
    keeps the discounted cost finite)."""
    if route == "dare":
        return _dare(problem)
    if route != "recursion":
        raise ConfigError(f"riccati: route {route!r} is unknown; use 'recursion' or 'dare'")
    P, tol = np.zeros_like(problem.Q), number("riccati", "tol", tol, above=0)
    for _ in range(int(number("riccati", "limit", limit, 1, whole=True))):
        found = riccati_step(problem, P)
        if not np.abs(found.P).max() < _HUGE:
            break
        if np.abs(found.P - P).max() <= tol * max(1.0, np.abs(P).max()):
            return Solution(riccati_step(problem, found.P).K, found.P)
        P = found.P
    raise ConfigError(
        f"riccati: the recursion hasn't settled within {limit} steps: (A, B) can't be stabilised at this gamma, or the "
        "cost isn't bounded below"
    )


def _dare(problem: Regulator) -> Solution:
    root = np.sqrt(problem.gamma)
    if root == 0:
        return riccati_step(problem, np.zeros_like(problem.Q))
    try:
        P = solve_discrete_are(root * problem.A, root * problem.B, problem.Q, problem.R, s=problem.S)
    except (LinAlgError, ValueError) as error:
        raise ConfigError(
            f"riccati: the Riccati equation is singular or has no stabilising solution ({error})"
        ) from None
    return Solution(riccati_step(problem, P).K, P)


def best_response(game: LQGame, gains: Sequence[ArrayLike], player: int, route: Route = "dare") -> Solution:
    """What ``player`` does best while the others keep ``gains`` (one K [m_j, n] a player; its own is ignored)."""
    return riccati(game.face(gains, player), route)


def nash(
    game: LQGame,
    start: Sequence[ArrayLike] | None = None,
    tol: float = 1e-12,
    limit: int = 1000,
    damping: float = 1.0,
    route: Route = "dare",
) -> Equilibrium:
    """Best responses in turn from ``start`` (gains; zeros if None) until a round moves no gain by more than ``tol``.
    ``damping`` in (0, 1]: how far each goes towards its best response. ``ConfigError`` if the rounds don't settle."""
    damping = number("nash", "damping", damping, above=0, high=1)
    tol = number("nash", "tol", tol, above=0)
    zeros = [np.zeros((b.shape[1], len(game.A))) for b in game.B]
    gains = list(game.gains(zeros if start is None else start, "nash"))
    changes = []
    for rounds in range(1, int(number("nash", "limit", limit, 1, whole=True)) + 1):
        change = 0.0
        for i in range(game.players):
            move = damping * (best_response(game, gains, i, route).K - gains[i])
            gains[i] = gains[i] + move
            change = max(change, float(np.abs(move).max()))
        changes.append(change)
        if change <= tol:
            P = tuple(riccati(game.face(gains, i), route).P for i in range(game.players))
            return Equilibrium(tuple(gains), P, rounds, np.array(changes))
        if not change < 1e12:
            break
    raise ConfigError(
        f"nash: best responses in turn haven't settled after {len(changes)} rounds (last change {changes[-1]:.3g}): "
        "they may go round in circles; try damping below 1 or another start"
    )


def nash_residual(game: LQGame, found: Equilibrium) -> float:
    """How far the coupled equations are from holding: the largest |P - step(P)| and |K - step(P).K| over the
    players."""
    worst = 0.0
    for i in range(game.players):
        after = riccati_step(game.face(found.gains, i), found.P[i])
        scale = max(1.0, float(np.abs(found.P[i]).max()))
        worst = max(
            worst, float(np.abs(after.P - found.P[i]).max()) / scale, float(np.abs(after.K - found.gains[i]).max())
        )
    return worst


def policy_costs(game: LQGame, gains: Sequence[ArrayLike]) -> tuple[Floats, ...]:
    """One P_i [n, n] a player: x'P_i x is its discounted cost from x under any linear ``gains``, but for the noise.
    ``ConfigError`` if sqrt(gamma) times the closed loop isn't stable."""
    checked = game.gains(gains, "policy_costs")
    loop = np.sqrt(game.gamma) * game.closed_loop(checked)
    radius = float(np.abs(np.linalg.eigvals(loop)).max())
    if radius >= 1:
        raise ConfigError(f"policy_costs: gains leave sqrt(gamma) (A - sum B K) with spectral radius {radius:.4g} >= 1")
    K = np.vstack(checked)
    out = []
    for Q, S, R in zip(game.Q, game.S, game.R, strict=True):
        now = Q - S @ K - (S @ K).T + K.T @ R @ K
        out.append(np.asarray(solve_discrete_lyapunov(loop.T, now)))
    return tuple(out)


def discounted_cost(game: LQGame, gains: Sequence[ArrayLike], start: ArrayLike) -> Floats:
    """Expected discounted cost of each player [players] from state ``start`` [n], noise included: x'Px +
    gamma/(1-gamma) tr(P W), W = noise noise'."""
    x = array("discounted_cost", "start", start, (len(game.A),))
    assert game.noise is not None
    W = game.noise @ game.noise.T
    rest = game.gamma / (1 - game.gamma)
    return np.array([x @ P @ x + rest * np.trace(P @ W) for P in policy_costs(game, gains)])


def deviation_gain(
    game: LQGame, gains: Sequence[ArrayLike], player: int, start: ArrayLike, size: float = 1e-3
) -> float:
    """The most that ``player`` saves from state ``start`` [n] by a small change of its own gain: +- ``size`` in each
    entry and each pair of entries. At an equilibrium it's below 0, of the order of size squared."""
    checked = game.gains(gains, "deviation_gain")
    player = index_in("deviation_gain", "player", player, game.players)
    size = number("deviation_gain", "size", size, above=0)
    here = discounted_cost(game, checked, start)[player]
    entries = np.eye(checked[player].size)
    steps = [*entries, *(a + sign * b for i, a in enumerate(entries) for b in entries[:i] for sign in (1, -1))]
    saved = []
    for step in (sign * size * step for step in steps for sign in (1, -1)):
        moved = list(checked)
        moved[player] = moved[player] + step.reshape(moved[player].shape)
        saved.append(here - discounted_cost(game, moved, start)[player])
    return float(max(saved))
