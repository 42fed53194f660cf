"""Two states that are hard to tell apart and a slow hub: the chain on which TD's rate is sharp.

    a [1-p-k    p      k ]      p = min(1/2, (1+delta)/H)   unknown switching rate
    b [  p    1-p-k    k ]      k = 1/L                     exit of the cluster
    c [ v/2    v/2    1-v]      v = 2 m k/(1-2m)            so mu(a) = mu(b) = m

Rewards (1, 0, 0), gamma = 1 - 1/H. V(a) - V(b) is of order H with derivative of order H^2 in p: the statistical term
H^3/(mu_min eps^2). The hub takes 1/v ~ L/(2m) steps to reach the cluster: the term t_mix/mu_min. "Sharp Statistical
Rates for Asynchronous TD Learning with Markovian Data" publishes no figures of its example (only its abstract is
public): this chain is built to match the claim [inferred].
"""

from __future__ import annotations

import math

import numpy as np

from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number
from stretto.tabular.td.process import RewardProcess


def three_state(
    horizon: float,
    exit_steps: float,
    mass: float,
    delta: float = 0.0,
    skew: float = 0.0,
    exits: tuple[float, float] | None = None,
) -> RewardProcess:
    """The chain (a, b, c) with H = ``horizon`` > 1, L = ``exit_steps``, m = ``mass`` in (0, 1/3], started in c.
    ``skew`` w in [-1/2, 1/2]: P(c,a) = v (1/2 + w), P(c,b) = v (1/2 - w), which makes the chain non-reversible.
    ``exits``: (k_a, k_b) instead of 1/L from a and b; mu(a) and mu(b) are no longer m then. ``ConfigError`` for
    numbers out of range, or a row that would not be probabilities."""
    where = "three_state"
    horizon = number(where, "horizon", horizon, above=1)
    exit_steps = number(where, "exit_steps", exit_steps, 1)
    mass = number(where, "mass", mass, high=1 / 3, above=0)
    delta = number(where, "delta", delta, above=-1)
    skew = number(where, "skew", skew, -0.5, 0.5)
    switch, leave = min(0.5, (1 + delta) / horizon), 1 / exit_steps
    enter = 2 * mass * leave / (1 - 2 * mass)
    exits = exits if exits is None else tuple(array(where, "exits", exits, (2,)))
    leave_a, leave_b = (leave, leave) if exits is None else (
        number(where, "exits[0]", exits[0], above=0), number(where, "exits[1]", exits[1], above=0))  # fmt: skip
    if switch + max(leave_a, leave_b) > 1 or enter > 1:
        raise ConfigError(f"{where}: a state would be left with probability above 1 (switching {switch:.4g}, exits "
                          f"{leave_a:.4g} and {leave_b:.4g}, entry {enter:.4g}): take a larger exit_steps")  # fmt: skip
    transitions = np.array([
        [1 - switch - leave_a, switch, leave_a],
        [switch, 1 - switch - leave_b, leave_b],
        [enter * (0.5 + skew), enter * (0.5 - skew), 1 - enter],
    ])  # fmt: skip
    return RewardProcess(transitions, np.array([1.0, 0.0, 0.0]), 1 - 1 / horizon, start=2)


def minimax_pair(horizon: float, exit_steps: float, mass: float, updates: int) -> tuple[RewardProcess, RewardProcess]:
    """The chains with delta = -sqrt(H/(m T)) and +sqrt(H/(m T)), T = ``updates``: T transitions hardly tell them
    apart, while their values differ by order sqrt(H^3/(m T)). ``ConfigError`` where delta would reach 1."""
    updates = int(number("minimax_pair", "updates", updates, 1, whole=True))
    horizon = number("minimax_pair", "horizon", horizon, above=1)
    mass = number("minimax_pair", "mass", mass, high=1 / 3, above=0)
    delta = math.sqrt(horizon / (mass * updates))
    if delta >= 1:
        raise ConfigError(f"minimax_pair: updates = {updates} give delta = {delta:.3g}; take more than "
                          f"H/m = {horizon / mass:.4g}")  # fmt: skip
    low, high = (three_state(horizon, exit_steps, mass, sign * delta) for sign in (-1, 1))
    return low, high
