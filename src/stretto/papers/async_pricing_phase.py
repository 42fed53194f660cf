"""The phase diagram of asynchronous pricing over (lambda, delta), offline: 4 x 4 cells of 32 DDPG runs of 20,000 moves
take about a quarter of an hour on two cores.

    python -m stretto.papers.async_pricing_phase --learner ddpg --seeds 32 --out phase.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from stretto.games.pricing.ddpg import DDPG
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market
from stretto.games.pricing.phase import Cell, ddpg_cell, diagram, tabular_cell
from stretto.observe.canvas import Canvas
from stretto.papers.async_pricing_figures import phase
from stretto.papers.run import save_figure


def main(argv: list[str] | None = None) -> None:
    """The command line: run every cell, print each as a line of JSON, and save the phase diagram."""
    parser = argparse.ArgumentParser(prog="python -m stretto.papers.async_pricing_phase", description=__doc__)
    parser.add_argument("--learner", choices=("tabular", "ddpg"), default="ddpg")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0, 5.0])
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 0.5, 1.0, 2.0])
    parser.add_argument("--rho", type=float, default=0.05)
    parser.add_argument("--moves", type=int, default=20_000, help="price settings of a DDPG run")
    parser.add_argument("--actor-lr", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("phase.png"))
    given = parser.parse_args(argv)
    market, seeds = Market(), range(given.first_seed, given.first_seed + given.seeds)
    learner = DDPG(actor_lr=given.actor_lr, moves=given.moves)

    def cell(clocks: Clocks) -> Cell:
        if given.learner == "tabular":
            found = tabular_cell(market, clocks, seeds)
        else:
            found = ddpg_cell(market, clocks, seeds, learner)
        row = {"lambda": clocks.rate, "delta": clocks.delay, "Delta": None if found.invalid else found.index}
        row |= {"spread": float(found.delta.std()), "price": float(found.price.mean()), "invalid": found.invalid}
        print(json.dumps(row), flush=True)
        return found

    cells = diagram(given.rates, given.delays, cell, Clocks(rho=given.rho))

    def fill(figure: Canvas) -> None:
        phase(figure, figure.subplots(), given.rates, given.delays, cells)

    print(save_figure(fill, given.out))


if __name__ == "__main__":
    main()
