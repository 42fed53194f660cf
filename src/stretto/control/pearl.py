"""PEARL's decisions (arXiv 2609.35158): how many workers prefill and decode, and when borrowing a training GPU pays.

A *topology* gives every rollout worker one role. Colocated workers do both, and their prefill stops their decoding;
apart, the two overlap, but KV travels between them, and a decode worker idles while its trajectories prefill. The
predictor (eq. 1-3) says how long a rollout takes with either; ``decide`` takes the best and stays with what is there
unless the gain is worth the change. ``control.pearl_plan`` says how to get there. Pure functions of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stretto.kernel.errors import ConfigError, InvariantError


@dataclass(frozen=True)
class RolloutProfile:
    """What a rollout does and costs, as measured or fitted; sizes are those of the slowest trajectory.

    Raises:
        ConfigError: a size or a duration below 0, no bandwidth, or no room for KV.
    """

    turns: float
    """S."""
    turn_tokens: float
    """r: tokens generated in a turn."""
    turn_prompt_tokens: float
    """dL: new prompt tokens in a turn."""
    decode_base_s: float
    """A: one step of n rows takes A + b n."""
    decode_row_s: float
    """b."""
    prefill_token_s: float
    """t_p."""
    turn_overhead_s: float
    """T_over: what a turn adds on colocated workers, where prefill and decoding get in each other's way."""
    environment_s: float
    """T_env: of all turns together."""
    bubble_ratio: float
    """theta, by ``bubble_ratio``."""
    kv_token_bytes: float
    """K."""
    bandwidth_bytes_per_s: float
    """BW, from the prefill pool to the decode pool."""
    sequence_kv_bytes: float = 0.0
    """K_seq: KV that a trajectory holds while it decodes."""
    worker_kv_bytes: float = math.inf
    """H_max: room for KV on a decode worker."""
    prefill_deadline_s: float = math.inf
    """A rollout's prefill must fit into this time, or its pool can't keep up [inferred: the paper gives no number]."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ConfigError(f"RolloutProfile: {name} = {value} must be at least 0")
        if self.bandwidth_bytes_per_s == 0 or self.worker_kv_bytes == 0:
            raise ConfigError("RolloutProfile: bandwidth_bytes_per_s and worker_kv_bytes must be above 0")


PRESETS: dict[str, RolloutProfile] = {
    "pearl-8b": RolloutProfile(37.2, 197, 967, 0.0200, 2.93e-4, 2.17e-4, 1.29, 43.1, 0.462, 1.47e5, 1.03e10),
    "pearl-30b": RolloutProfile(33.9, 262, 3924, 0.0130, 3.84e-4, 5.9e-5, 1.78, 105.0, 0.507, 9.8e4, 6.6e9),
}
"""Two models of the paper [inferred: one of many sets that fit its published facts, not the authors' values]. Workers
of 2 GPUs for the 8B model."""


@dataclass(frozen=True)
class ReconfigurationLatencies:
    """How long a worker takes to come and go, in seconds: ``preparation_s`` in the background, ``finalisation_s`` (the
    latest weights; admission waits), ``activation_s`` of a prepared worker, ``return_s`` of its GPUs."""

    preparation_s: float
    finalisation_s: float
    activation_s: float
    return_s: float


LATENCIES: dict[str, ReconfigurationLatencies] = {
    "pearl-8b": ReconfigurationLatencies(56.29, 11.05, 6.26, 3.18),
    "pearl-30b": ReconfigurationLatencies(67.06, 17.89, 6.09, 4.38),
}
"""As the paper reports them."""


@dataclass(frozen=True, order=True)
class Topology:
    """How many rollout workers have each role: all are ``colocated``, or none is and both others are there.

    Raises:
        InvariantError: a count below 0.
    """

    colocated: int = 0
    prefill: int = 0
    decode: int = 0

    def __post_init__(self) -> None:
        if min(self.colocated, self.prefill, self.decode) < 0:
            raise InvariantError(f"a topology of {self.colocated}, {self.prefill} and {self.decode} workers: counts "
                                 "are at least 0")  # fmt: skip

    @property
    def workers(self) -> int:
        """All of them."""
        return self.colocated + self.prefill + self.decode

    @property
    def whole(self) -> bool:
        """Can it roll out at all: one mode, and no role without a worker?"""
        if self.colocated:
            return not self.prefill and not self.decode
        return self.prefill >= 1 and self.decode >= 1

    def __str__(self) -> str:
        return f"{self.colocated}C" if self.colocated else f"{self.prefill}P{self.decode}D"


def bubble_ratio(decoding: float) -> float:
    """theta = (1 - f) / f, where f in (0, 1] is the mean share of trajectories that decode. ``ConfigError`` if not."""
    if not 0 < decoding <= 1:
        raise ConfigError(f"bubble_ratio: decoding = {decoding} must be above 0 and at most 1")
    return (1 - decoding) / decoding


def prefill_s(profile: RolloutProfile, batch: float, workers: int) -> float:
    """T_pre: the seconds that ``workers`` which only prefill take for ``batch`` trajectories, KV transfer included."""
    tokens = batch * profile.turn_prompt_tokens
    transfer_s = tokens * profile.kv_token_bytes / profile.bandwidth_bytes_per_s
    return profile.turns * (tokens / workers * profile.prefill_token_s + transfer_s)


def decode_s(profile: RolloutProfile, batch: float, workers: int) -> float:
    """T_dec: the seconds that ``workers`` which only decode take; a share of the trajectories is elsewhere."""
    stretch = 1 + profile.bubble_ratio
    rows = batch / (workers * stretch)
    return profile.turns * profile.turn_tokens * (profile.decode_base_s + profile.decode_row_s * rows) * stretch


def makespan_s(profile: RolloutProfile, batch: float, topology: Topology) -> float:
    """Predicted seconds of a rollout of ``batch`` trajectories: T_coloc (eq. 1), or the longer of T_pre and T_dec and
    the environments. ``InvariantError`` if the topology isn't ``whole``."""
    if not topology.whole:
        raise InvariantError(f"no rollout with {topology}: every worker is colocated, or both other roles have one")
    if topology.colocated:
        rows = batch / topology.colocated
        prefill = rows * profile.turn_prompt_tokens * profile.prefill_token_s
        decode = profile.turn_tokens * (profile.decode_base_s + profile.decode_row_s * rows)
        return profile.turns * (prefill + decode + profile.turn_overhead_s) + profile.environment_s
    pools = prefill_s(profile, batch, topology.prefill), decode_s(profile, batch, topology.decode)
    return max(pools) + profile.environment_s


def feasible(profile: RolloutProfile, batch: float, topology: Topology) -> bool:
    """May it be used? Apart, prefill must keep up and the decode workers hold the batch's KV; workers that are all
    colocated always may, for something must [inferred]."""
    if not topology.whole or topology.colocated:
        return topology.whole
    tokens_s = batch * profile.turns * profile.turn_prompt_tokens * profile.prefill_token_s
    keeps_up = tokens_s <= topology.prefill * profile.prefill_deadline_s
    return keeps_up and batch * profile.sequence_kv_bytes <= topology.decode * profile.worker_kv_bytes


def topologies(workers: int) -> Iterator[Topology]:
    """All that are ``whole``: colocated, then N_P = 1 .. N - 1."""
    if workers >= 1:
        yield Topology(colocated=workers)
    for prefill in range(1, workers):
        yield Topology(prefill=prefill, decode=workers - prefill)


@dataclass(frozen=True)
class Hysteresis:
    """By which share the predicted makespan must fall before a worker changes role, to another ``mode`` or to another
    ``ratio`` of the same mode [inferred: the paper says that the first is larger, not how large].

    Raises:
        ConfigError: unless 0 <= ratio <= mode < 1.
    """

    mode: float = 0.05
    ratio: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= self.mode < 1:
            raise ConfigError(f"Hysteresis: mode = {self.mode}, ratio = {self.ratio} must be 0 <= ratio <= mode < 1")


@dataclass(frozen=True)
class Decision:
    """``topology`` and its predicted makespan. ``why``: ``keep`` (no worker that stays changes role), ``ratio``,
    ``mode``, or ``forced`` (keeping all roles isn't feasible)."""

    topology: Topology
    makespan_s: float
    why: Literal["keep", "ratio", "mode", "forced"]


def decide(
    profile: RolloutProfile, batch: float, workers: int, held: Topology, hysteresis: Hysteresis | None = None
) -> Decision:
    """The topology of ``workers`` workers where those that stay have the roles ``held`` (none yet: ``Topology()``).

    The best that gives none of them another role is the one to beat: to be lower isn't enough, it must be by the
    threshold, which a switch that is forced doesn't ask for. The same arguments with ``held`` the answer give the same
    topology. ``InvariantError`` without a worker.
    """
    if workers < 1:
        raise InvariantError(f"a rollout with {workers} workers: at least one is needed")
    allowed = hysteresis or Hysteresis()
    spans = {t: makespan_s(profile, batch, t) for t in topologies(workers) if feasible(profile, batch, t)}
    kept = min((t for t in spans if _keeps_roles(held, t)), key=lambda t: (spans[t], t), default=None)
    if kept is None:
        best = min(spans, key=lambda t: (spans[t], t))
        return Decision(best, spans[best], "forced")

    def worth(topology: Topology) -> bool:
        threshold = allowed.ratio if _same_mode(kept, topology) else allowed.mode
        return spans[topology] < spans[kept] * (1 - threshold)

    best = min((t for t in spans if worth(t)), key=lambda t: (spans[t], t), default=kept)
    why: Literal["keep", "ratio", "mode"] = "mode" if not _same_mode(kept, best) else "ratio"
    return Decision(best, spans[best], "keep" if best == kept else why)


def _same_mode(one: Topology, other: Topology) -> bool:
    return bool(one.colocated) == bool(other.colocated)


def _keeps_roles(held: Topology, to: Topology) -> bool:
    """Can workers come or go so that ``held`` becomes ``to``, and nobody who stays changes role?"""
    pairs = ((held.colocated, to.colocated), (held.prefill, to.prefill), (held.decode, to.decode))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def worth_borrowing(unfinished: float, dedicated_s: float, full_s: float, toggle_s: float) -> bool:
    """Eq. 7: does lending idle training GPUs save more than it costs? ``unfinished``: R / B, the share of trajectories
    that is left; ``dedicated_s``, ``full_s``: predicted makespan without and with these GPUs; ``toggle_s``: activation
    and return."""
    return unfinished * (dedicated_s - full_s) > toggle_s


@dataclass(frozen=True)
class ToggleCost:
    """T_toggle, the moving average of activation and return. ``smoothing``: weight of what was measured last
    [inferred].

    Raises:
        ConfigError: ``smoothing`` outside (0, 1].
    """

    seconds: float
    smoothing: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.smoothing <= 1:
            raise ConfigError(f"ToggleCost: smoothing = {self.smoothing} must be above 0 and at most 1")

    def observe(self, activation_s: float, return_s: float) -> ToggleCost:
        """The average after one more borrowing."""
        off = activation_s + return_s - self.seconds
        return ToggleCost(self.seconds + self.smoothing * off, self.smoothing)
