"""The Cournot learners in plain Python, one seed: what the compiled loop must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.games.lq.cournot import Cournot
from stretto.games.lq.cournot_learning import SUMS, believed, learned, prepare
from stretto.games.lq.market import ACTION, EXPLORE, NOISE, RING, Learned, Learners
from stretto.games.lq.scalar import firm_gain
from stretto.tabular.arguments import distinct_seeds
from stretto.tabular.counter import key, normals, uniforms


class Firm:
    """One firm of the plain loop: its gain (K0, K1), its regression sums, and when it explores and updates."""

    def __init__(self, learners: Learners, gain: Floats, period: int, chance: float, c: float, k: float) -> None:
        self.options, self.c, self.k = learners, c, k
        self.K0, self.K1 = float(gain[0]), float(gain[1])
        self.period, self.chance = period, chance
        self.now, self.old = np.zeros(SUMS), np.zeros(SUMS)

    def quantity(self, p: float, q_max: float, explores: bool, u: float) -> float:
        """The quantity that it makes at price ``p``; where it ``explores``, ``u`` in [0, 1) says how much."""
        greedy = min(max(-(self.K0 + self.K1 * p), 0.0), q_max)
        if not explores:
            return greedy
        if not self.options.centred:
            return q_max * u
        return min(max(greedy + self.options.width * (2.0 * u - 1.0), 0.0), q_max)

    def observe(self, p: float, q: float, seen: float, after: float) -> None:
        """Add a step to the sums; ``seen``: the quantity that it regresses on, its own or the total."""
        if self.options.memory == "forget":
            self.now *= self.options.forget
        self.now += [1.0, p, p * p, seen, p * seen, seen * seen, after, p * after, seen * after, q, p * q]

    def update(self, model: Cournot) -> bool:
        """Take the gain that is best for its model; False: there is none, the old one stays."""
        a0, a1, bb = believed(self.now, self.old, self.options.ridge, self.options.published)
        K0, K1, found = firm_gain.py_func(a0, a1, bb, self.c, self.k, model.beta, model.timing)
        if found:
            self.K0, self.K1 = K0, K1
        return bool(found)


def reference(
    model: Cournot,
    learners: Learners,
    steps: int,
    seed: int,
    checkpoints: Sequence[int] | None = None,
    gains: ArrayLike | None = None,
    frozen: Sequence[int] = (),
) -> Learned:
    """``cournot_least_squares`` of one ``seed`` in plain Python, step by step: what the compiled loop must agree with,
    bit for bit."""
    inputs = prepare("reference", model, learners, steps, checkpoints, gains, frozen)
    _, _, rates, periods, chances, learns, c, k, marks, first = inputs
    seed, n = int(distinct_seeds("reference", [seed])[0]), model.firms
    explore, action, ring = (
        uniforms(key(seed, stream), len(rates) * n).reshape(-1, n).tolist() for stream in (EXPLORE, ACTION, RING)
    )
    noise = normals(key(seed, NOISE), len(rates)).tolist()
    firms = [Firm(learners, first[i], int(periods[i]), float(chances[i]), float(c[i]), float(k[i])) for i in range(n)]
    flows, p, record, window, selling = [0.0] * (n + 4), model.a / 2, [], 2, 0
    for t, rate in enumerate(rates.tolist()):
        q = [
            firm.quantity(p, model.q_max, bool(learns[i]) and explore[t][i] < rate, action[t][i])
            for i, firm in enumerate(firms)
        ]
        total = 0.0
        for x in q:
            total += x
        after = (1 - model.s) * p + model.s * (model.a - model.b * total) + model.sigma * noise[t]
        paid = after if model.timing == 2 else p
        squares = 0.0
        for i, x in enumerate(q):
            flows[i] += (paid - firms[i].c - firms[i].k / 2 * x) * x
            squares += x * x
        flows[n] += (model.a - model.b / 2 * total - paid) * total
        if total > 0:
            flows[n + 1] += squares / (total * total)
            selling += 1
        for i, firm in enumerate(firms):
            if not learns[i]:
                continue
            firm.observe(p, q[i], total if learners.published else q[i], after)
            due = (t + 1) % firm.period == 0 if firm.period else ring[t][i] < firm.chance
            if due and t + 1 >= learners.warmup and not firm.update(model):
                flows[n + 3] += 1
        if learners.memory == "doubling" and t + 1 == window:
            for firm in firms:
                firm.old, firm.now = firm.now, np.zeros(SUMS)
            window *= 2
        p = after
        if t + 1 in marks:
            record.append([[firm.K0, firm.K1] for firm in firms])
    flows = [x / len(rates) for x in flows[: n + 1]] + [flows[n + 1] / max(selling, 1), p, flows[n + 3]]
    return learned(model, marks, np.array([record]), np.array([flows]))
