"""Asynchronous pricing: DDPG against the floor that its matrix products set, in one run.

    python benchmarks/tabular_pricing.py [--quick]

16 seeds side by side on two threads, the whole loop timed (engine, replay, update, action), in events of one seed. The
floor: the same threads do nothing but the products of one update, of the same shapes. Ten of 64 x 64 x 64: forward in
target actor, target critic, critic, actor, and critic at the actor's action; backward two for the critic, one through
it to the action, two for the actor. And the thin ones, with the inputs (2 or 3 columns) and the output (1 column). The
floor is taken twice, by ``np.dot`` in a compiled loop and by ``torch.bmm`` over the stacked seeds; the faster counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch

from stretto.games.pricing.ddpg import DDPG, train
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market

SEEDS, BATCH, HIDDEN, THREADS = 16, 64, 64, 2
SHARE_BAR, RATE_BAR = 0.5, 1500.0


@numba.njit(nogil=True)
def dots(x: Any, w: Any, y: Any, g: Any, x2: Any, w2: Any, x3: Any, w3: Any, v: Any, o: Any, updates: int) -> None:
    """The products of ``updates`` updates of one seed, by BLAS; nothing that is written is read again."""
    for _ in range(updates):
        for _ in range(8):
            np.dot(x, w, y)
        for _ in range(2):
            np.dot(x.T, x, g)
        for _ in range(2):
            np.dot(x2, w2, y)
        for _ in range(3):
            np.dot(x3, w3, y)
        np.dot(x2.T, x, g[:2])
        np.dot(x3.T, x, g[:3])
        for _ in range(6):
            np.dot(x, v, o)
        for _ in range(2):
            np.dot(x.T, x[0], o)


def blas(updates: int) -> None:
    """All seeds, on as many threads as the loop gets."""
    shapes = ((BATCH, HIDDEN), (HIDDEN, HIDDEN), (BATCH, HIDDEN), (HIDDEN, HIDDEN), (BATCH, 2), (2, HIDDEN), (BATCH, 3),
              (3, HIDDEN), (HIDDEN,), (BATCH,))  # fmt: skip
    jobs = [[np.ones(shape, np.float32) for shape in shapes] for _ in range(SEEDS)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda job: dots(*job, updates), jobs))


def bmm(updates: int) -> None:
    """The same products over stacked seeds."""
    x, w, y, g = (torch.ones(SEEDS, BATCH, HIDDEN) for _ in range(4))
    thin = [(torch.ones(SEEDS, BATCH, k), torch.ones(SEEDS, k, HIDDEN), torch.ones(SEEDS, k, HIDDEN)) for k in (2, 3)]
    v, o = torch.ones(SEEDS, HIDDEN, 1), torch.ones(SEEDS, BATCH, 1)
    for _ in range(updates):
        for _ in range(8):
            torch.bmm(x, w, out=y)
        for _ in range(2):
            torch.bmm(x.transpose(1, 2), x, out=g)
        for (a, b, c), n in zip(thin, (2, 3), strict=True):
            for _ in range(n):
                torch.bmm(a, b, out=y)
            torch.bmm(a.transpose(1, 2), x, out=c)
        for _ in range(6):
            torch.bmm(x, v, out=o)
        for _ in range(2):
            torch.bmm(x.transpose(1, 2), v, out=o)


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rows(quick: bool) -> list[tuple[str, float, float, str]]:
    """(name, measured, bar, note): the floor's share of an event's time (a half: within twice the floor), and
    seed-events/s."""
    numba.set_num_threads(THREADS)
    torch.set_num_threads(THREADS)
    market, clocks, warm = Market(), Clocks(rho=0.05), 200
    updates = 300 if quick else 2000
    learner = DDPG(moves=updates + warm, warm=warm)
    train(market, clocks, [0], DDPG(moves=300, warm=200))
    blas(1)
    bmm(1)
    shares, rates, floors = [], [], []
    for _ in range(3 if quick else 5):  # side by side, so that what else the machine does meets all alike
        by_dot = seconds(lambda: blas(updates)) / updates
        ours = seconds(lambda: train(market, clocks, range(SEEDS), learner)) / updates
        by_bmm = seconds(lambda: bmm(updates)) / updates
        floors.append(min(by_dot, by_bmm))
        shares.append(floors[-1] / ours)
        rates.append(SEEDS / ours)
    floor = 1e6 * float(np.median(floors))
    note = f"floor {floor:.0f} us an event of {SEEDS} seeds: the products of one update, {THREADS} threads"
    return [
        ("DDPG pricing: its products' share of an event's time", float(np.median(shares)), SHARE_BAR, note),
        ("DDPG pricing: seed-events/s", float(np.median(rates)), RATE_BAR, f"{SEEDS} seeds, {THREADS} threads"),
    ]
