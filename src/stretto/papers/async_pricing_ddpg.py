"""The settings of the DDPG part of asynchronous pricing, and what is measured in each: index, price, deviation gain,
signalling, recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.games.pricing.ddpg import DDPG, Trained, train
from stretto.games.pricing.detector import divergences
from stretto.games.pricing.deviation import deviation, to_grid
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market
from stretto.games.pricing.traces import shock, signalling

LOW_BOX, HIGH_BOX = (1.0, 2.0), (1.43, 1.97)
RHO = 0.05
_CHECKED = 3  # runs of a line whose policies are checked against the best deviation and shocked


@dataclass(frozen=True)
class Line:
    """One row of the table: box, actor step, clocks, and the Delta (mean, spread) ``expected`` before the first run
    (None: none was)."""

    box: tuple[float, float]
    actor_lr: float
    clocks: Clocks
    seeds: int
    expected: tuple[float, float] | None
    twin: bool

    @property
    def name(self) -> str:
        """The line's label: price box, actor step, clocks."""
        when = "sync" if self.clocks.synchronous else f"async, delta={self.clocks.delay:g}"
        return f"[{self.box[0]:g},{self.box[1]:g}], lr {self.actor_lr:.0e}, {when}{', twin' if self.twin else ''}"

    @property
    def setting(self) -> tuple[tuple[float, float], float, bool]:
        """(box, actor step, twin): what a synchronous line and its asynchronous ones have in common."""
        return self.box, self.actor_lr, self.twin


def _clocks(delay: float | None) -> Clocks:
    return Clocks(rho=RHO, synchronous=True) if delay is None else Clocks(rho=RHO, delay=delay)


LINES = tuple(
    Line(box, lr, _clocks(delay), seeds, expected, expected is None)
    for box, lr, delay, seeds, expected in (
        (HIGH_BOX, 1e-5, None, 8, (0.63, 0.04)), (HIGH_BOX, 1e-5, 0.0, 32, (0.64, 0.05)),
        (HIGH_BOX, 1e-5, 1.0, 32, (0.40, 0.31)), (HIGH_BOX, 1e-5, 3.0, 8, (0.52, 0.20)),
        (HIGH_BOX, 1e-4, None, 6, (0.48, 0.11)), (HIGH_BOX, 1e-4, 0.0, 6, (0.54, 0.15)),
        (HIGH_BOX, 1e-4, 1.0, 6, (0.40, 0.14)),
        (HIGH_BOX, 1e-3, None, 6, (0.17, 0.25)), (HIGH_BOX, 1e-3, 0.0, 6, (0.39, 0.24)),
        (LOW_BOX, 1e-5, None, 8, (0.04, 0.10)), (LOW_BOX, 1e-5, 0.0, 8, (0.26, 0.27)),
        (LOW_BOX, 1e-4, None, 8, (0.11, 0.16)), (LOW_BOX, 1e-4, 0.0, 8, (0.21, 0.23)),
        (HIGH_BOX, 1e-5, 1.0, 6, None),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One ``Line`` of the table after training, with what was read off its runs."""

    line: Line
    done: Trained
    invalid: int
    gain: float
    recovery: float
    slopes: tuple[float, float]
    information: tuple[float, float]

    @property
    def row(self) -> dict[str, float | str]:
        """The line's figures as the report shows them, by name."""
        index = self.done.delta
        row: dict[str, float | str] = {"Delta": float(index.mean()) if not self.invalid else "invalid: critic diverged"}
        row |= {"spread": float(index.std(ddof=1)), "Delta_mid": self.done.delta_mid,
                "price": float(self.done.price.mean()), "deviation gain": self.gain,
                "map moved": float(np.median(self.done.drift()))}  # fmt: skip
        if self.line.expected is not None:
            mean, spread = self.line.expected
            near = abs(float(index.mean()) - mean) <= 2 * max(spread, float(index.std(ddof=1)))
            row["within two spreads"] = "yes" if near else "no"
        return row


def measure(market: Market, line: Line, seeds: Sequence[int], moves: int) -> Found:
    """Trains the line and reads it: deviation gain and shock over the first few runs, signalling early and late."""
    done = train(market, line.clocks, seeds, DDPG(box=line.box, actor_lr=line.actor_lr, moves=moves, twin=line.twin))
    runs = [int(s) for s in np.flatnonzero(done.ended < 0)[:_CHECKED]]
    gains = [deviation_gain(market, line.clocks, done, s) for s in runs]
    back: list[float] = [
        shock(market, line.clocks, [done.greedy(s, 0), done.greedy(s, 1)], done.price[s], s)[0] for s in runs
    ]
    early, late = _signals(done, 0.0), _signals(done, 0.8)
    marked = sum(d is not None for d in divergences(done))
    came = [x for x in back if np.isfinite(x)]
    return Found(
        line, done, marked, float(np.mean(gains or [np.nan])), float(np.mean(came or [np.nan])),
        (early[0], late[0]), (early[1], late[1]),
    )  # fmt: skip


def myopic(market: Market, seeds: Sequence[int]) -> Trained:
    """Sellers to whom only the next moment counts, as rho is far above lambda. Each answers the rival's price, so the
    exact end of learning is known: Bertrand prices, from a midpoint that is worth .709. The box leaves room below."""
    learner = DDPG(box=(1.0, 2.4), actor_lr=1e-3, critic_lr=3e-3, noise=(0.5, 0.05), moves=3000)
    return train(market, Clocks(rho=20.0), seeds, learner)


def lagging(done: Trained, delay: float) -> float:
    """Share of moves whose mover saw the very price that the rival had in force ``delay`` before: 1 if latency is what
    it says. The rival's prices are read off the trace."""
    right, moves = 0, 0
    for s in range(len(done.ended)):
        ran = np.isfinite(done.trace[s, :, 0])  # a run whose critic ran away ends early
        rows, who = done.trace[s, ran], done.movers[s, ran]
        for firm in range(2):
            mine, others = rows[who == firm], rows[who != firm]
            known = np.searchsorted(others[:, 0] + delay, mine[:, 0], side="right")
            prices = np.concatenate([[done.learner.midpoint], others[:, 3]])
            right += int((prices[known] == mine[:, 2]).sum())
            moves += len(mine)
    return right / moves


def deviation_gain(market: Market, clocks: Clocks, done: Trained, s: int) -> float:
    """Mean gain of a best response over both firms' greedy policies of run ``s``, on 41 x 41 prices, without latency,
    along play from the run's mean prices."""
    grid = np.linspace(*done.learner.box, 41)
    policies = to_grid(grid, done.price_map(grid, done.actors[s : s + 1])[0].ravel()).reshape(2, 41, 41)
    gains, _ = deviation(market, clocks.live, grid, policies, to_grid(grid, done.price[s]))
    return float(gains.mean())


def _signals(done: Trained, start: float) -> tuple[float, float]:
    """Mean slope, and mean information over lags 1-10, over runs and firms, in a fifth of the run from ``start``."""
    moves = done.trace.shape[1]
    first = max(int(start * moves), 0)
    slopes, nats = [], []
    for s in range(done.trace.shape[0]):
        rows, who = done.trace[s, first : first + moves // 5], done.movers[s, first : first + moves // 5]
        for firm in range(2):
            mine = rows[who == firm]
            if np.isfinite(mine).all():
                found = signalling(mine[:, 3], mine[:, 2])
                slopes.append(found.slope)
                nats.append(float(found.information.mean()))
    return float(np.mean(slopes)), float(np.mean(nats))
