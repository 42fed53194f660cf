"""How fast the online learner of Markov games is: ``python benchmarks/tabular_games.py``."""

from __future__ import annotations

import time

import numba

from stretto.games.potential.congestion import imcg
from stretto.games.potential.online import SET_2, learn_online
from stretto.tabular import counter

PLAYERS, BAR = 4, 1e6


@numba.njit(cache=True)
def draws(steps: int, players: int) -> float:
    """The random numbers that a step can't do without: an action and a cost's noise for each player, a next state."""
    choose, move, blur = counter.key(0, 0), counter.key(0, 1), counter.key(0, 2)
    total = 0.0
    for t in range(steps):
        total += counter.uniform(move, t)
        for i in range(players):
            total += counter.uniform(choose, t * players + i) + counter.normal(blur, t * players + i)
    return total


def rows(quick: bool) -> list[tuple[str, float, float, str]]:
    """(name, measured, bar, note): steps a second on one core, four players, noisy costs; CPU time, best of five."""
    steps = 200_000 if quick else 1_000_000
    game = imcg(0.1, PLAYERS).game
    learn_online(game, 10, [0], SET_2, 0.1)
    draws(10, PLAYERS)
    learned = min(_cpu(lambda: learn_online(game, steps, [0], SET_2, 0.1, times=[steps])) for _ in range(5)) / steps
    drawn = min(_cpu(lambda: draws(steps, PLAYERS)) for _ in range(5)) / steps
    floor = f"floor: its {2 * PLAYERS + 1} random draws alone take {drawn / learned:.0%} of the step"
    return [("online game learner, 4 players, steps/s on one core", 1 / learned, BAR, floor)]


def _cpu(run: object) -> float:
    start = time.process_time()
    run()  # type: ignore[operator]
    return time.process_time() - start
