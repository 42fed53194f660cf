"""Asynchronous TD on one trajectory a seed: the compiled loop, seeds in parallel.

    V(s_t) += eta_t (r_t + gamma V(s_{t+1}) - V(s_t))

Only the visited state changes; the trajectory never restarts. Draw 0 of a seed picks the first state, draw t the state
after transition t (``stretto.tabular.counter``), so a run is a function of (process, steps, seed) alone: neither
checkpoints nor threads change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, distinct_seeds, number
from stretto.tabular.counter import key, uniform
from stretto.tabular.sampling import alias_sample, alias_table
from stretto.tabular.td.process import RewardProcess
from stretto.tabular.td.steps import Steps
from stretto.tabular.threads import start_threads

STREAM = 11
"""The stream of a seed's draws."""
_GROUP = 8  # seeds that one thread walks side by side: hides the latency of tables beyond the L1 cache


@dataclass(frozen=True)
class Run:
    """``checkpoints`` [C]: transitions made; ``values`` [seeds,C,S] after them; ``worst`` [seeds,C]: the largest
    sup-norm error at any time since the checkpoint before (both ends counted; from the start for the first)."""

    checkpoints: Ints
    values: Floats
    worst: Floats

    def errors(self, truth: Floats) -> Floats:
        """Largest error over states, max_s |V(s) - ``truth``(s)|, of each seed at each checkpoint [seeds,C]; ``truth``
        [S]."""
        true = array("Run.errors", "truth", truth, self.values.shape[-1:])
        return np.asarray(np.abs(self.values - true).max(-1))


def td(
    process: RewardProcess,
    steps: Steps,
    seeds: ArrayLike,
    checkpoints: ArrayLike,
    values: ArrayLike = 0.0,
    truth: ArrayLike | None = None,
) -> Run:
    """TD from ``values`` (V_0: a number, or [S]) for the last checkpoint's number of transitions, for each of
    ``seeds``. ``checkpoints``: increasing numbers of transitions >= 1. ``truth`` [S]: what ``Run.worst`` measures
    errors from; None: V*, which takes a solve of S equations. ``ConfigError`` for others."""
    _check_process("td", process)
    marks = _marks("td", checkpoints)
    runs = distinct_seeds("td", seeds)
    first = _first_values("td", values, process.states)
    width = min(_GROUP, -(-len(runs) // start_threads()))  # no thread idles for a group's sake
    true = process.values() if truth is None else array("td", "truth", truth, (process.states,))
    out, worst = np.empty((len(runs), len(marks), len(first))), np.empty((len(runs), len(marks)))
    _run(_tables(process), first, true, _code(steps), runs, marks, width, out, worst)
    return Run(marks, out, worst)


def first_passage(
    process: RewardProcess, steps: Steps, seeds: ArrayLike, eps: float, every: int, limit: int, values: ArrayLike = 0.0
) -> Ints:
    """Transitions [seeds] until the sup-norm error is <= ``eps``, checked each ``every`` transitions; -1 where it isn't
    by ``limit``. ``ConfigError`` for numbers out of range."""
    where = "first_passage"
    _check_process(where, process)
    eps = number(where, "eps", eps, above=0)
    every = int(number(where, "every", every, 1, whole=True))
    limit = int(number(where, "limit", limit, every, 2.0**62, whole=True))
    runs = distinct_seeds(where, seeds)
    first = _first_values(where, values, process.states)
    start_threads()
    return np.asarray(_pass(_tables(process), first, process.values(), _code(steps), runs, eps, every, limit))


@njit(cache=True)
def _begin(seeds, start, start_bits, first):  # type: ignore[no-untyped-def]
    """Keys, first states and values of a group of seeds."""
    keys, states = np.empty(len(seeds), np.uint64), np.empty(len(seeds), np.int64)
    v = np.empty((len(seeds), len(first)))
    for j in range(len(seeds)):
        keys[j] = key(seeds[j], STREAM)
        states[j] = alias_sample(start, start_bits, 0, uniform(keys[j], 0))
        v[j] = first
    return keys, states, v


@njit(cache=True)
def _walk(v, states, keys, begin, end, columns, bits, rewards, gamma, step, truth, worst):  # type: ignore[no-untyped-def]
    """Transitions begin + 1 .. end of a group of seeds, in place. A transition waits for the look-up of its state; the
    group's members wait side by side."""
    top, h, t0 = step
    last = rewards.shape[1] - 1
    for t in range(begin + 1, end + 1):
        eta = min(top, h / (t + t0))
        for j in range(len(states)):
            s = states[j]
            after = alias_sample(columns, bits, s, uniform(keys[j], t))
            new = v[j, s] + eta * (rewards[s, min(after, last)] + gamma[s] * v[j, after] - v[j, s])
            v[j, s] = new
            worst[j] = max(worst[j], abs(new - truth[s]))
            states[j] = after


@njit(cache=True)
def _distance(v, truth):  # type: ignore[no-untyped-def]
    most = 0.0
    for s in range(len(v)):
        most = max(most, abs(v[s] - truth[s]))
    return most


@njit(cache=True)
def _group(out, worst, tables, first, truth, step, seeds, marks):  # type: ignore[no-untyped-def]
    """A group of seeds through all checkpoints."""
    columns, bits, rewards, gamma, start, start_bits = tables
    keys, states, v = _begin(seeds, start, start_bits, first)
    t, since = 0, np.zeros(len(seeds))
    for c in range(len(marks)):
        for j in range(len(seeds)):
            since[j] = _distance(v[j], truth)
        _walk(v, states, keys, t, marks[c], columns, bits, rewards, gamma, step, truth, since)
        t = marks[c]
        for j in range(len(seeds)):
            worst[j, c] = since[j]
            out[j, c] = v[j]


@njit(cache=True)
def _time(tables, first, truth, step, seeds, eps, every, limit):  # type: ignore[no-untyped-def]
    """First passage of one seed."""
    columns, bits, rewards, gamma, start, start_bits = tables
    keys, states, v = _begin(seeds, start, start_bits, first)
    since = np.zeros(1)
    for t in range(every, limit + 1, every):
        _walk(v, states, keys, t - every, t, columns, bits, rewards, gamma, step, truth, since)
        if _distance(v[0], truth) <= eps:
            return t
    return -1


@njit(cache=True, parallel=True)
def _run(tables, first, truth, step, seeds, marks, width, out, worst):  # type: ignore[no-untyped-def]
    """In place: a loop that returned two arrays would crash on Ctrl-C (Numba puts NULL into the tuple)."""
    for g in prange((len(seeds) + width - 1) // width):
        a, b = g * width, min((g + 1) * width, len(seeds))
        _group(out[a:b], worst[a:b], tables, first, truth, step, seeds[a:b], marks)


@njit(cache=True, parallel=True)
def _pass(tables, first, truth, step, seeds, eps, every, limit):  # type: ignore[no-untyped-def]
    out = np.empty(len(seeds), np.int64)
    for i in prange(len(seeds)):
        out[i] = _time(tables, first, truth, step, seeds[i : i + 1], eps, every, limit)
    return out


def _tables(process: RewardProcess) -> tuple[Floats, int, Floats, Floats, Floats, int]:
    return (*alias_table(process.transitions), process.rewards, process.gamma, *alias_table(process.start[None]))


def _check_process(where: str, process: RewardProcess) -> None:
    if not isinstance(process, RewardProcess):
        raise ConfigError(
            f"{where}: process is a {type(process).__name__}; give it a RewardProcess, "
            "such as RewardProcess.of(mdp, policy) of an MDP"
        )


def _code(steps: Steps) -> tuple[float, float, float]:
    if not isinstance(steps, Steps):
        raise ConfigError(f"td: steps = {steps!r} must be Steps, as constant(0.1) or decreasing(80)")
    return float(steps.top), float(steps.h), float(steps.t0)


def _marks(where: str, checkpoints: ArrayLike) -> Ints:
    try:
        marks = np.atleast_1d(np.asarray(checkpoints))
    except ValueError:
        marks = np.empty(0)
    whole = np.issubdtype(marks.dtype, np.integer) and marks.ndim == 1 and marks.size > 0
    if not (whole and marks[0] >= 1 and (marks[1:] > marks[:-1]).all() and marks[-1] < 2**63):
        raise ConfigError(f"{where}: checkpoints = {checkpoints!r} must be whole numbers >= 1 that increase")
    return np.ascontiguousarray(marks, np.int64)


def _first_values(where: str, values: ArrayLike, states: int) -> Floats:
    first = array(where, "values", values)
    return np.full(states, first.item()) if np.ndim(values) == 0 else array(where, "values", first, (states,))
