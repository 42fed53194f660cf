"""The phase diagram over (lambda, delta): a collusion index a cell, unless a critic ran away there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.data.arrays import Floats
from stretto.games.pricing.ddpg import DDPG, train
from stretto.games.pricing.detector import divergences
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market
from stretto.games.pricing.tabular import QLearning, learn
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, of_type


@dataclass(frozen=True)
class Cell:
    """One (lambda, delta): collusion index ``delta`` [S] and mean ``price`` [S] of each run, and ``invalid``, how many
    runs the divergence detector marked. ``index``: mean collusion index, NaN if a run is marked."""

    clocks: Clocks
    delta: Floats
    price: Floats
    invalid: int = 0

    @property
    def index(self) -> float:
        """Mean collusion index over the cell's runs; NaN if the divergence detector marked one."""
        return float("nan") if self.invalid else float(self.delta.mean())


def tabular_cell(market: Market, clocks: Clocks, seeds: Sequence[int], learner: QLearning | None = None) -> Cell:
    """The phase diagram's cell of Q-learning sellers with these ``clocks``: figures of greedy play after learning, a
    run a seed."""
    done = learn(market, clocks, seeds, learner)
    return Cell(clocks, np.asarray(market.collusion(done.profit.mean(1))), done.price.mean(1))


def ddpg_cell(market: Market, clocks: Clocks, seeds: Sequence[int], learner: DDPG | None = None) -> Cell:
    """The phase diagram's cell of DDPG sellers with these ``clocks``: figures of the last 20 % of training, a run a
    seed."""
    done = train(market, clocks, seeds, learner)
    marked = sum(d is not None for d in divergences(done))
    return Cell(clocks, done.delta, done.price.mean(1), marked)


def diagram(
    rates: Sequence[float], delays: Sequence[float], cell: Callable[[Clocks], Cell], base: Clocks | None = None
) -> list[list[Cell]]:
    """Cells [rates][delays]; ``base``: the other settings of the clocks. ``ConfigError`` without a rate or a delay."""
    down, across = array("diagram", "rates", rates, (None,)), array("diagram", "delays", delays, (None,))
    base = Clocks() if base is None else base
    of_type("diagram", base=(base, Clocks))
    if not callable(cell):
        raise ConfigError(f"diagram: cell must be a function; got {type(cell).__name__}")
    if not down.size or not across.size:
        raise ConfigError("diagram: rates and delays must hold at least one number each")
    return [[cell(replace(base, rate=r, delay=d)) for d in across.tolist()] for r in down.tolist()]
