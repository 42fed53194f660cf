"""Has a critic run away? Then the cell is invalid, and its collusion index isn't reported."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.games.pricing.ddpg import Trained
from stretto.games.pricing.engine import box_of
from stretto.games.pricing.logit import Market
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number, of_type

_STRIDE, _FIRST = 20, 500  # updates between looks; updates before the first


@dataclass(frozen=True)
class Divergence:
    """The first sign: at ``move``, ``kind`` value (|Q|), target or loss, of ``size`` over ``limit``."""

    move: int
    kind: str
    size: float
    limit: float


def largest_flow(market: Market, box: tuple[float, float], points: int = 101) -> float:
    """The largest |normalised profit flow| |pi - pi_B| / (pi_M - pi_B) of a firm at prices in ``box``, on ``points`` x
    ``points`` prices: no policy is worth more, since the flow is normalised."""
    of_type("largest_flow", market=(market, Market))
    box = box_of("largest_flow", box)
    number("largest_flow", "points", points, 2, whole=True)
    grid = np.linspace(*box, int(points))
    pairs = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1)
    return float(np.abs(market.collusion(market.profit(pairs))).max())


def detect(said: ArrayLike, limit: float, window: int = 100, ratio: float = 50.0) -> Divergence | None:
    """The first divergence in ``said`` [T, 3] (largest |Q|, largest |target|, critic loss of each update of one firm;
    rows of zeros, moves without an update, are passed over): |Q| or |target| > ``limit``, or the loss's mean over
    ``window`` updates > ``ratio`` times the running median of those means, looked at from update 500 on [inferred].
    None if there is none."""
    try:
        rows = np.asarray(said, np.float64)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or rows.shape[1] != 3:
        raise ConfigError("detect: said must be numbers [T, 3]")
    number("detect", "limit", limit, above=0)
    window = int(number("detect", "window", window, 1, whole=True))
    number("detect", "ratio", ratio, above=1)
    moves = np.flatnonzero(rows.any(1))
    found = []
    for column, kind in enumerate(("value", "target")):
        over = moves[~(rows[moves, column] <= limit)]  # what isn't a number is over, too
        if over.size:
            found.append(Divergence(int(over[0]), kind, float(rows[over[0], column]), limit))
    total = np.concatenate([[0.0], np.cumsum(rows[moves, 2])])
    past: list[float] = []
    for at in range(window, moves.size + 1, _STRIDE):
        mean = float(total[at] - total[at - window]) / window
        median = past[len(past) // 2] if past else 0.0
        if at >= _FIRST and median > 0 and not mean <= ratio * median:
            found.append(Divergence(int(moves[at - 1]), "loss", mean, ratio * median))
            break
        insort(past, mean)
    return min(found, key=lambda d: d.move, default=None)


def divergences(done: Trained, factor: float = 2.0) -> list[Divergence | None]:
    """For each run the first divergence of either firm, |Q| and |target| measured against ``factor`` times the largest
    flow profit in the box. A run that was stopped has one."""
    of_type("divergences", done=(done, Trained))
    limit = number("divergences", "factor", factor, above=0) * largest_flow(done.market, done.learner.box)
    out: list[Divergence | None] = []
    for s in range(len(done.ended)):
        last = int(done.ended[s])
        end = done.said.shape[1] if last < 0 else last + 1
        rows, movers = done.said[s, :end], done.movers[s, :end].copy()
        signs = [detect(np.where((movers == i)[:, None], rows, 0), limit) for i in range(2)]
        if last >= 0:
            signs.append(Divergence(last, "target", float(rows[-1, 1]), limit))
        out.append(min((d for d in signs if d is not None), key=lambda d: d.move, default=None))
    return out
