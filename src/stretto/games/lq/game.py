"""A discounted linear-quadratic game of any number of players, and the regulator that each player faces.

x' = A x + sum_j B_j u_j + noise @ N(0, I); player i pays x'Q_i x + 2 x'S_i u + u'R_i u a step, u all players' actions
one after the other, discounted by gamma. Policies are u_j = -K_j x. A constant is a state that stays 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, index_in


@dataclass(frozen=True)
class Regulator:
    """One player's problem: x' = A x + B u + noise, cost x'Qx + 2 x'Su + u'Ru, discount ``gamma``. Shapes: A, Q
    [n, n]; B, S [n, m]; R [m, m]; Q and R symmetric. ``ConfigError`` on other shapes or numbers that aren't finite."""

    A: Floats
    B: Floats
    Q: Floats
    S: Floats
    R: Floats
    gamma: float

    def __post_init__(self) -> None:
        n, m = array("Regulator", "B", self.B, (None, None)).shape
        for name, shape in {"A": (n, n), "B": (n, m), "Q": (n, n), "S": (n, m), "R": (m, m)}.items():
            object.__setattr__(self, name, array("Regulator", name, getattr(self, name), shape))
        object.__setattr__(self, "gamma", discount("Regulator", self.gamma))


@dataclass(frozen=True)
class LQGame:
    """The game. ``A`` [n, n]; ``B``: one [n, m_j] a player; ``Q``: one [n, n]; ``S``: one [n, m] and ``R``: one
    [m, m], m = sum_j m_j; ``noise`` [n, k], zero if None. ``own``: the players' costs as they know them (see
    ``from_own_costs``), None where a player's cost depends on what it can't see. ``ConfigError`` on other shapes."""

    A: Floats
    B: tuple[Floats, ...]
    Q: tuple[Floats, ...]
    S: tuple[Floats, ...]
    R: tuple[Floats, ...]
    gamma: float
    noise: Floats | None = None
    own: tuple[Floats, ...] | None = None

    def __post_init__(self) -> None:
        A = array("LQGame", "A", self.A, (None, None))
        n = array("LQGame", "A", A, (len(A), len(A))).shape[0]
        if n == 0 or len(self.B) == 0:
            raise ConfigError("LQGame: A and B must hold at least one state and one player")
        B = tuple(array("LQGame", f"B[{j}]", b, (n, None)) for j, b in enumerate(self.B))
        m = sum(b.shape[1] for b in B)
        shapes = {"Q": (n, n), "S": (n, m), "R": (m, m)}
        checked = {name: self._each(name, getattr(self, name), [shape] * len(B)) for name, shape in shapes.items()}
        for name in ("Q", "R"):
            checked[name] = tuple((x + x.T) / 2 for x in checked[name])
        for name, value in {"A": A, "B": B, **checked, "gamma": discount("LQGame", self.gamma)}.items():
            object.__setattr__(self, name, value)
        noise = np.zeros((n, 0)) if self.noise is None else array("LQGame", "noise", self.noise, (n, None))
        object.__setattr__(self, "noise", noise)
        if self.own is not None:
            own = self._each("own", self.own, [(2 * n + b.shape[1],) * 2 for b in B])
            object.__setattr__(self, "own", own)

    @staticmethod
    def _each(name: str, values: Sequence[ArrayLike], shapes: Sequence[tuple[int, int]]) -> tuple[Floats, ...]:
        if len(values) != len(shapes):
            raise ConfigError(
                f"LQGame: {name} has {len(values)} matrices, but B has {len(shapes)} players; give each one"
            )
        pairs = zip(values, shapes, strict=True)
        return tuple(array("LQGame", f"{name}[{i}]", x, shape) for i, (x, shape) in enumerate(pairs))

    @property
    def players(self) -> int:
        """N, the number of players."""
        return len(self.B)

    def where(self, player: int) -> slice:
        """The slice of the joint action u that is ``player``'s own; ``ConfigError`` for a player that doesn't exist."""
        player = index_in("LQGame", "player", player, self.players)
        start = sum(b.shape[1] for b in self.B[:player])
        return slice(start, start + self.B[player].shape[1])

    def gains(self, gains: Sequence[ArrayLike], where: str = "gains") -> tuple[Floats, ...]:
        """``gains``, one K_j [m_j, n] a player, as float64 arrays of the right shapes; else ``ConfigError``, which
        names ``where``."""
        if len(gains) != self.players:
            raise ConfigError(f"{where}: gains holds {len(gains)} matrices for {self.players} players")
        n = len(self.A)
        return tuple(
            array(where, f"gains[{j}]", K, (b.shape[1], n)) for j, (K, b) in enumerate(zip(gains, self.B, strict=True))
        )

    def face(self, gains: Sequence[ArrayLike], player: int) -> Regulator:
        """What ``player`` faces while the others keep u_j = -K_j x (its own gain in ``gains`` doesn't matter)."""
        checked = self.gains(gains, "LQGame.face")
        others = np.vstack(checked)  # u = -others x
        mine = self.where(player)
        others[mine] = 0
        Q, S, R = self.Q[player], self.S[player], self.R[player]
        return Regulator(
            self.A - np.hstack(self.B) @ others,
            self.B[player],
            Q - S @ others - (S @ others).T + others.T @ R @ others,
            S[:, mine] - others.T @ R[:, mine],
            R[mine, mine],
            self.gamma,
        )

    def closed_loop(self, gains: Sequence[ArrayLike]) -> Floats:
        """The matrix A - sum_j B_j K_j [n, n] that moves the state when all players follow u_j = -K_j x."""
        return np.asarray(self.A - np.hstack(self.B) @ np.vstack(self.gains(gains, "LQGame.closed_loop")))


def from_own_costs(
    A: ArrayLike, B: Sequence[ArrayLike], own: Sequence[ArrayLike], gamma: float, noise: Floats | None = None
) -> LQGame:
    """A game in which player i pays z'C_i z, z = (x, u_i, x'): of the others it feels only what they do to x'. So it
    can work out its cost from a model of x' in x and u_i. ``own``: the C_i [2n + m_i, 2n + m_i], symmetrised. The
    constant that noise adds to a cost on x' is left out (no policy changes it)."""
    where = "from_own_costs"
    A = array(where, "A", A, (None, None))
    n = len(A)
    Bs = [array(where, f"B[{j}]", b, (n, None)) for j, b in enumerate(B)]
    if len(own) != len(Bs):
        raise ConfigError(f"{where}: own has {len(own)} costs for {len(Bs)} players; give each one")
    widths = [b.shape[1] for b in Bs]
    m, ends = sum(widths), np.cumsum(widths)
    Q, S, R, costs = [], [], [], []
    for i, (width, end) in enumerate(zip(widths, ends, strict=True)):
        C = array(where, f"own[{i}]", own[i], (2 * n + width, 2 * n + width))
        pick = np.zeros((width, m))
        pick[:, end - width : end] = np.eye(width)
        now = _substituted((C + C.T) / 2, pick, A, np.hstack(Bs))
        Q.append(now[:n, :n])
        S.append(now[:n, n:])
        R.append(now[n:, n:])
        costs.append((C + C.T) / 2)
    return LQGame(A, tuple(Bs), tuple(Q), tuple(S), tuple(R), gamma, noise, tuple(costs))


def own_regulator(cost: Floats, A: Floats, B: Floats, gamma: float) -> Regulator:
    """The regulator of a player whose cost on (x, u_i, x') is ``cost`` and whose model is x' = A x + B u_i."""
    n = len(A)
    now = _substituted(cost, np.eye(B.shape[1]), A, B)
    return Regulator(A, B, now[:n, :n], now[:n, n:], now[n:, n:], gamma)


def _substituted(cost: Floats, pick: Floats, A: Floats, B: Floats) -> Floats:
    """The cost on (x, u) [n + m, n + m] of a cost on (x, pick u, A x + B u)."""
    n, m = B.shape
    lift = np.block([[np.eye(n), np.zeros((n, m))], [np.zeros((len(pick), n)), pick], [A, B]])
    return np.asarray(lift.T @ cost @ lift)
