"""Durations of modelled hardware (systems spec 12, [inferred]).

A decode step of n active rows takes A + b n; prefill is a serial job that stops decoding; a learner step takes a base
plus a time per token. Draws are functions of (seed, counters) alone.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from stretto.config.sections import Cluster, Law
from stretto.envs.counter import mix, mix_on
from stretto.rollout.types import Report

_NORMAL = NormalDist()


def _share(bits: int) -> float:
    """64 mixed bits as a number in (0, 1)."""
    return ((bits >> 11) + 0.5) * 2.0**-53


def draw(law: Law, u: float) -> float:
    """The value of a law at probability u in (0, 1), clipped to [low, high]."""
    if law.kind == "constant":
        value = law.mean
    elif law.kind == "uniform":
        return law.low + u * (law.high - law.low)
    elif law.kind == "exponential":
        value = -law.mean * math.log1p(-u)
    else:
        mu = math.log(law.mean) - law.sigma**2 / 2 if law.mean > 0 else -math.inf
        value = math.exp(mu + law.sigma * _NORMAL.inv_cdf(u)) if law.mean > 0 else 0.0
    return min(max(value, law.low), law.high)


class Costs:
    """Durations in seconds, by the settings ``cluster.*``."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.streams = tuple(mix(seed, stream) for stream in (101, 102, 103, 104))
        """Mixed seeds of latencies, lengths, rewards, failures."""

    def advance_s(self, report: Report) -> float:
        """What one ``advance`` of an engine takes."""
        c = self.cluster
        return (
            report.decode_steps * c.decode_base_s
            + report.decode_tokens * c.decode_row_s
            + report.prefill_tokens * c.prefill_token_s
        )

    def step_s(self, tokens: int) -> float:
        """A learner step over ``tokens`` tokens, prompts included."""
        return self.cluster.step_base_s + tokens * self.cluster.step_token_s

    @property
    def publish_s(self) -> float:
        """Transfer and load of one version on one engine."""
        return self.cluster.publish_s

    def draws(self, trajectory: int) -> Draws:
        """What is drawn for this trajectory."""
        return Draws(self, trajectory)

    def env_s(self, trajectory: int, turn: int) -> float:
        """Environment latency after a turn."""
        return Draws(self, trajectory).env_s(turn)

    def length(self, trajectory: int, turn: int) -> int:
        """Response tokens (simulate)."""
        return Draws(self, trajectory).length(turn)

    def reward(self, trajectory: int) -> float:
        """Reward 0 or 1 (simulate)."""
        u = _share(mix_on(self.streams[2], trajectory, 0))
        return float(u < self.cluster.reward_probability)

    def fails(self, trajectory: int) -> bool:
        """Does this rollout fail?"""
        p = self.cluster.failure_probability
        return p > 0 and _share(mix_on(self.streams[3], trajectory, 0)) < p


class Draws:
    """Lengths and latencies of one trajectory: functions of (seed, trajectory, turn)."""

    __slots__ = ("_env", "_env_law", "_length", "_length_law")

    def __init__(self, costs: Costs, trajectory: int) -> None:
        self._env_law, self._length_law = costs.cluster.env, costs.cluster.lengths
        self._env, self._length = mix_on(costs.streams[0], trajectory), mix_on(costs.streams[1], trajectory)

    def env_s(self, turn: int) -> float:
        """Environment latency after a turn."""
        law = self._env_law
        return law.mean if law.kind == "constant" else draw(law, _share(mix_on(self._env, turn)))

    def length(self, turn: int) -> int:
        """Response tokens of a turn."""
        return max(1, round(draw(self._length_law, _share(mix_on(self._length, turn)))))
