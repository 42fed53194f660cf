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
    small, large = chain(50), chain(1000)
    rate = per_second(lambda n: q_learning(small, [0], VANILLA, epochs=1, batch=n), steps, repeats, 1)
    plain = per_second(lambda n: plain_q_learning(small, 0, VANILLA, Corruption(), epochs=1, batch=n), 40_000, 1, 1)
    wide = per_second(lambda n: q_learning(large, [0], VANILLA, epochs=1, batch=n), steps, repeats, 1)
    pair = two_over_one(lambda n: q_learning(small, [0, 1], VANILLA, epochs=1, batch=n), 5_000_000, 4 * repeats)
    noisy = per_second(lambda n: q_learning(small, [0], VANILLA, epochs=1, batch=n, noise=0.5), steps, repeats, 1)
    trimmed = per_second(
        lambda n: q_learning(small, [0], Rule(), Corruption(0.05), epochs=n // 8000, batch=8000, noise=0.5),
        steps, repeats, 1,
    )  # fmt: skip
    floor = "floor: one hash, one table row, two cached values of Q, each waiting for the state before"
    return [
        ("Q-learning, 50 states: million transitions/s on a core", rate / 1e6, 20, floor),
        ("Q-learning, 50 states: times a plain NumPy loop", rate / plain, 50, f"the loop: {plain:,.0f}/s"),
        ("Q-learning, 1000 states: million transitions/s on a core", wide / 1e6, 20, "96 kB: in L2"),
        ("Q-learning, 1000 states over 50", wide / rate, 0.7, "each step waits for L2 instead of L1, 3 times as long"),
        ("Q-learning: two cores over one", pair, 1.7, "two seeds; 2 at best"),
        ("with normal noise: million transitions/s", noisy / 1e6, 0, "reported; a logarithm and a cosine a step"),
        ("trimmed, corrupted, with noise: million transitions/s", trimmed / 1e6, 0, "reported; sorts each batch"),
    ]


def chain(states: int) -> MDP:
    """A walk to and fro with two actions."""
    transitions = np.zeros((states, 2, states))
    for s in range(states):
        for a, up in enumerate((0.7, 0.2)):
            transitions[s, a, min(s + 1, states - 1)] += up
            transitions[s, a, max(s - 1, 0)] += 1 - up
    return MDP(transitions, np.random.default_rng(0).random((states, 2)), 0.9)


def per_second(run: Callable[[int], object], steps: int, repeats: int, threads: int) -> float:
    """Steps of each seed together per second, best of ``repeats``, without building tables: (steps - 8000) over the
    difference to a run of 8000. On one thread CPU seconds, which a busy machine changes less; on two wall-clock."""
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    clock = time.process_time if threads == 1 else time.perf_counter
    run(8000)  # compiled
    best = 0.0
    for _ in range(repeats):
        taken = []
        for n in (8000, steps):
            start = clock()
            run(n)
            taken.append(clock() - start)
        best = max(best, (steps - 8000) / max(taken[1] - taken[0], 1e-9))
    return best


def two_over_one(run: Callable[[int], object], steps: int, repeats: int) -> float:
    """Wall-clock on one thread over that on two, best of each, measured in turn so that a busy machine slows both."""
    best = [float("inf"), float("inf")]
    run(8000)
    for _ in range(repeats):
        for i, threads in enumerate((1, 2)):
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
            start = time.perf_counter()
            run(steps)
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0] / best[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for name, measured, bar, note in rows(parser.parse_args().quick):
        print(f"{name}: {measured:.3g} (at least {bar:g}) - {note}")
