"""Is a published table what the environment plays? Played out, and compared: outcomes, their shares, first states."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import SupportsInt, TypeVar

import gymnasium
import numpy as np

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.gym_spaces import DiscreteEnv

Key = TypeVar("Key", bound=Hashable)
Outcome = tuple[int, bool, float]
"""Next state, whether the episode ended, reward."""
Table = list[list[dict[Outcome, float]]]
"""Probability of each outcome by state and action, all counted from 0."""
RESETS = 400
_SIGMAS = 8.0
"""Shares further from the table than so many deviations are another law: chance never gets there."""


def play(where: str, env: DiscreteEnv, first: tuple[int, int], table: Table, law: Floats | None, steps: int) -> Floats:
    """Plays a copy of ``env`` (wrappers included, seed 0) for ``steps`` steps, each time the action that was tried
    least, and gives the law of the first state: ``law`` [S], or if None the one that resets show (a point, or uniform).
    ``first``: the numbers of the first observation and the first action.

    ``ConfigError`` if the environment does what ``table`` says it doesn't, or as often as it doesn't say.
    """
    env = _copied(where, env)
    random = np.random.default_rng(0)
    tries = np.zeros((len(table), len(table[0])))
    seen: dict[tuple[int, int], Counter[Outcome]] = {}
    starts: Counter[int] = Counter()

    def reset(seed: int | None = None) -> int:
        state = _state(where, env.reset(seed=seed)[0], first[0], len(table))
        starts[state] += 1
        return state

    for index in range(RESETS):
        reset(0 if index == 0 else None)
    state = reset()
    for _ in range(steps):
        action = int(np.argmin(tries[state] + 0.5 * random.random(tries.shape[1])))
        tries[state, action] += 1
        observation, reward, ended, truncated, _ = env.step(first[1] + action)
        after = _state(where, observation, first[0], len(table))
        outcome = _known(table[state][action], after, bool(ended), float(reward))
        if outcome is None:
            raise ConfigError(
                f"{where}: its table P isn't what it plays: from state {first[0] + state}, action {first[1] + action} "
                f"led to {first[0] + after} with reward {float(reward):g}{' and the end' if ended else ''}, which P "
                "doesn't hold. An option (as Taxi's fickle_passenger) or a wrapper that changes steps, rewards or "
                "observations makes another process: leave it out, build an MDP from arrays, or learn from its steps"
            )
        seen.setdefault((state, action), Counter())[outcome] += 1
        state = reset() if ended or truncated else after
    _agree(where, "outcomes of its steps are not as frequent as its table P says",
           [(table[s][a], count) for (s, a), count in seen.items()])  # fmt: skip
    if law is None:
        law = np.zeros(len(table))
        law[list(starts)] = 1.0
        if len(starts) > 1:
            law[:] = 1 / len(table)
    hint = "its episodes don't begin as its initial_state_distrib says; give the law of the first state as start"
    _agree(where, hint, [(dict(enumerate(law)), starts)])
    return law


def _copied(where: str, env: DiscreteEnv) -> DiscreteEnv:
    try:
        return copy.deepcopy(env)
    except Exception:  # a window, a file, a process: whatever it holds can't be copied
        if env.spec is None:
            raise ConfigError(f"{where}: it can't be copied to be played; give check=0 to trust its table") from None
        return gymnasium.make(env.spec)


def _state(where: str, observation: SupportsInt, first: int, count: int) -> int:
    try:
        state = int(observation) - first
    except (TypeError, ValueError):
        state = -1
    if not 0 <= state < count:
        raise ConfigError(f"{where}: it observed {observation!r}, which is not in its Discrete space")
    return state


def _known(outcomes: Mapping[Outcome, float], after: int, ended: bool, reward: float) -> Outcome | None:
    for outcome, chance in outcomes.items():
        near = abs(outcome[2] - reward) <= 1e-6 * max(1.0, abs(reward))
        if chance > 0 and outcome[:2] == (after, ended) and near:
            return outcome
    return None


def _agree(where: str, what: str, drawn: list[tuple[Mapping[Key, float], Counter[Key]]]) -> None:
    """``ConfigError`` unless Pearson's statistic over all laws lies where chance leaves it (its exact variance)."""
    excess = variance = 0.0
    for law, counts in drawn:
        n, chances = counts.total(), [p for p in law.values() if p > 0]
        k = len(chances)
        if any(law[x] <= 0 for x in counts):
            raise ConfigError(f"{where}: {what}")
        excess += sum((counts[x] - n * p) ** 2 / (n * p) for x, p in law.items() if p > 0) - (k - 1)
        variance += 2 * (k - 1) + (sum(1 / p for p in chances) - k * k - 2 * k + 2) / n
    if excess > _SIGMAS * max(variance, 1e-12) ** 0.5:
        raise ConfigError(f"{where}: {what}")
