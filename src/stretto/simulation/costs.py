"""Durations of simulated hardware [inferred].

A decode step of n active rows takes A + b n; prefill is a serial job that stops decoding; a learner step takes a base
plus a time per token. Draws are functions of (seed, counters) alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

from stretto.config.simulation import LENGTHS, Distribution, Simulation
from stretto.data.counter import mix, mix_on, mix_once
from stretto.rollout.types import ExportedRequest, Report

_NORMAL = NormalDist()
_SHARE = 2.0**-53


def _share(bits: int) -> float:
    """64 mixed bits as a number in (0, 1)."""
    return ((bits >> 11) + 0.5) * _SHARE


def sample(distribution: Distribution, u: float) -> float:
    """The value of a distribution at probability u in (0, 1), clipped to [low, high]."""
    return sampler(distribution)(u)


def sampler(distribution: Distribution) -> Callable[[float], float]:
    """``sample`` of this distribution, with what doesn't depend on u computed once."""
    mean, sigma, low, high = distribution.mean, distribution.sigma, distribution.low, distribution.high
    exp, log1p, normal = math.exp, math.log1p, _NORMAL.inv_cdf
    if distribution.kind == "uniform":
        return lambda u: low + u * (high - low)
    if distribution.kind == "constant" or (distribution.kind == "lognormal" and mean <= 0):
        value = min(max(mean if distribution.kind == "constant" else 0.0, low), high)
        return lambda u: value
    if distribution.kind == "exponential":
        return lambda u: low if (x := -mean * log1p(-u)) < low else high if x > high else x
    mu = math.log(mean) - sigma**2 / 2
    return lambda u: low if (x := exp(mu + sigma * normal(u))) < low else high if x > high else x


class CostModel:
    """Durations in seconds, by the settings ``simulation.*``."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self.simulation = simulation
        self.streams = tuple(mix(seed, stream) for stream in (101, 102, 103, 104, 105, 106))
        """Mixed seeds of latencies, lengths, rewards, failures, late rewards, forgetting."""
        self.env_sampler, self.length_sampler = sampler(simulation.env), sampler(simulation.lengths or LENGTHS)
        self._late_sampler = sampler(simulation.late)
        self.constant_env_s = self.env_sampler(0.5) if simulation.env.kind == "constant" else None

    def advance_s(self, report: Report) -> float:
        """What one ``advance`` of an engine takes."""
        c = self.simulation
        return (
            report.decode_steps * c.decode_base_s
            + report.decode_tokens * c.decode_row_s
            + report.prefill_tokens * c.prefill_token_s
        )

    def migrate_s(self, state: ExportedRequest) -> float:
        """The cache of a running request on its way to another engine."""
        return (len(state.request.tokens) + len(state.partial.tokens)) * self.simulation.migrate_token_s

    def step_s(self, tokens: int) -> float:
        """A learner step over ``tokens`` tokens, prompts included."""
        return self.optim_step_s + self.forward_backward_s(tokens)

    def forward_backward_s(self, tokens: int) -> float:
        """The gradient of ``tokens`` tokens."""
        return tokens * self.simulation.step_token_s

    @property
    def optim_step_s(self) -> float:
        """What a step takes beside its tokens."""
        return self.simulation.step_base_s

    def forward_s(self, tokens: int) -> float:
        """A forward pass alone over ``tokens`` tokens: a third of a step's arithmetic."""
        return tokens * self.simulation.step_token_s / 3

    @property
    def publish_s(self) -> float:
        """Transfer and load of one version on one engine."""
        return self.simulation.publish_s

    def of_trajectory(self, noise_key: int) -> TrajectoryTimes:
        """What is sampled for this trajectory."""
        return TrajectoryTimes(self, noise_key)

    def env_s(self, noise_key: int, turn: int) -> float:
        """Environment latency after a turn."""
        return TrajectoryTimes(self, noise_key).env_s(turn)

    def length(self, noise_key: int, turn: int) -> int:
        """Response tokens (simulate)."""
        return TrajectoryTimes(self, noise_key).length(turn)

    def reward(self, noise_key: int) -> float:
        """Reward 0 or 1 (simulate)."""
        u = _share(mix_on(self.streams[2], noise_key, 0))
        return float(u < self.simulation.reward_probability)

    def late_s(self, noise_key: int) -> float:
        """How long after its trajectory a late reward comes."""
        return self._late_sampler(_share(mix_on(self.streams[4], noise_key, 0)))

    def forgetting(self, trajectory: int, span: int) -> float:
        """How far a policy has moved away from the prefix of a trajectory that spans so many versions (simulate)."""
        if self.simulation.forgetting == "span":
            return float(span)
        return _share(mix_on(self.streams[5], trajectory))

    def fails(self, noise_key: int) -> bool:
        """Does this rollout fail?"""
        p = self.simulation.failure_probability
        return p > 0 and _share(mix_on(self.streams[3], noise_key, 0)) < p


class TrajectoryTimes:
    """Lengths and latencies of one trajectory: functions of (seed, noise key, turn)."""

    __slots__ = ("_constant_env_s", "_env", "_env_sampler", "_length", "_length_sampler")

    def __init__(self, costs: CostModel, noise_key: int) -> None:
        self._env_sampler, self._length_sampler = costs.env_sampler, costs.length_sampler
        self._constant_env_s = costs.constant_env_s
        self._env, self._length = mix_on(costs.streams[0], noise_key), mix_on(costs.streams[1], noise_key)

    def env_s(self, turn: int) -> float:
        """Environment latency after a turn."""
        if self._constant_env_s is not None:
            return self._constant_env_s
        return self._env_sampler(((mix_once(self._env, turn) >> 11) + 0.5) * _SHARE)

    def length(self, turn: int) -> int:
        """Response tokens of a turn."""
        return round(self._length_sampler(((mix_once(self._length, turn) >> 11) + 0.5) * _SHARE)) or 1
