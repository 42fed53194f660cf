"""Speed of Q-learning on a chain: python benchmarks/tabular_q.py [--quick]. Ratios are taken within one run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numba
import numpy as np

from stretto.tabular.mdp import MDP
from stretto.tabular.q import Corruption, Rule, q_learning
from stretto.tabular.q.reference import plain_q_learning

VANILLA = Rule("vanilla")


def rows(quick: bool) -> list[tuple[str, float, float, str]]:
    """(name, measured, bar, note): measured at least the bar."""
    steps, repeats = (2_000_000, 3) if quick else (20_000_000, 5)
    small, plain_steps = chain(50), 20_000
    rate = per_second(lambda n: q_learning(small, [0], VANILLA, epochs=1, batch=n), steps, repeats, 1)
    plain = per_second(
        lambda n: plain_q_learning(small, 0, VANILLA, Corruption(), epochs=1, batch=n), plain_steps, 1, 1
    )
    wide = per_second(lambda n: q_learning(chain(4000), [0], VANILLA, epochs=1, batch=n), steps, repeats, 1)
    many = 2 * [0]
    for _ in range(repeats):  # the two in turn, so that a busy machine slows both
        for i, threads in enumerate((1, 2)):
            found = per_second(lambda n: q_learning(small, [0, 1], VANILLA, epochs=1, batch=n), steps, 1, threads)
            many[i] = max(many[i], found)
    noisy = per_second(lambda n: q_learning(small, [0], VANILLA, epochs=1, batch=n, noise=0.5), steps, repeats, 1)
    trimmed = per_second(
        lambda n: q_learning(small, [0], Rule(), Corruption(0.05), epochs=n // 8000, batch=8000, noise=0.5),
        steps, repeats, 1,
    )  # fmt: skip
    floor = "floor: one hash, one table row, two cached values of Q, each waiting for the state before"
    return [
        ("Q-learning, 50 states: million transitions/s on a core", rate / 1e6, 20, floor),
        ("Q-learning, 50 states: times a plain NumPy loop", rate / plain, 50, f"the loop: {plain:,.0f}/s"),
        (
            "Q-learning, 4000 states (0.5 MB, in L2) over 50",
            wide / rate,
            0.5,
            "tables no longer in L1: a load takes 3 times",
        ),
        ("Q-learning: two cores over one", many[1] / many[0], 1.7, "two seeds; 2 at best"),
        (
            "with normal noise: million transitions/s",
            noisy / 1e6,
            0,
            "reported; floor: a logarithm and a cosine a step",
        ),
        (
            "trimmed, corrupted, with noise: million transitions/s",
            trimmed / 1e6,
            0,
            "reported; floor: sorting the batch",
        ),
    ]


def chain(states: int) -> MDP:
    """A walk to and fro with two actions."""
    moves = np.zeros((states, 2, states))
    for s in range(states):
        for a, up in enumerate((0.7, 0.2)):
            moves[s, a, min(s + 1, states - 1)] += up
            moves[s, a, max(s - 1, 0)] += 1 - up
    return MDP(moves, np.random.default_rng(0).random((states, 2)), 0.9)


def per_second(run: Callable[[int], object], steps: int, repeats: int, threads: int) -> float:
    """Best of ``repeats``: steps of each seed together, per second of wall-clock on ``threads`` threads."""
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    run(8000)  # compiled
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        run(steps)
        best = max(best, steps / (time.perf_counter() - start))
    return best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for name, measured, bar, note in rows(parser.parse_args().quick):
        print(f"{name}: {measured:.3g} (at least {bar:g}) - {note}")
