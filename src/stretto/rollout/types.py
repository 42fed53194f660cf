"""What goes into an engine and what comes out: requests, sampling parameters, reports, exported state.

An engine is a passive state machine (``Engine``). It owns no thread and no clock: ``advance(n)`` does at most
n decode steps and returns what happened; between two calls its owner may add, pause, move or abort requests
and swap weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import DTypeLike

from stretto.data.arrays import Array
from stretto.data.modes import Finish, InFlight
from stretto.data.trajectory import Completion, Ints

if TYPE_CHECKING:
    from torch import Tensor

"""What happens to running requests when new weights arrive; see ``docs/loop.md``."""

LEAST_TEMPERATURE = 1e-3
"""Below it sampling is greedy in all but name, and the inverse may overflow."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. The recorded log-probability is that of the distribution after all of these.

    ``temperature`` 0 is greedy (log-probability 0 by definition of a point mass is *not* recorded: the
    untempered one is). ``top_k`` 0 and ``top_p`` 1 are off. ``stop`` ids end a completion and belong to it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64
    stop: tuple[int, ...] = ()

    @property
    def filters(self) -> bool:
        """Does the sampler leave tokens out?"""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)


@dataclass(slots=True, eq=False)  # not frozen: that would triple the time that making one takes
class Request:
    """One completion to make; nobody changes it.

    ``id`` is unique in the run. ``tokens`` is everything that ``trajectory`` holds so far: ``noise_key`` and the
    absolute token position address the sampling noise. ``group``: requests of one group with equal tokens share their
    prefill. ``version`` pins the request to that version (None: whatever is loaded).
    ``top_logprobs`` K records the K likeliest ids and log-probabilities at each position (``top_ids``,
    ``top_logprobs``); ``sampled_logprobs`` M records M independent samples (``sampled_ids``, ``sampled_logprobs``).
    ``distribution`` records what a learner needs to score the distribution that was sampled from
    (``records.UNRECORDED``): ``temperature`` and, under top-k or top-p, ``support``.
    ``keep``: the trajectory may go on with another request, so its cache is worth keeping.
    """

    id: int
    trajectory: int
    group: int
    tokens: Ints
    sampling: SamplingParams
    version: int | None = None
    top_logprobs: int = 0
    sampled_logprobs: int = 0
    distribution: bool = False
    keep: bool = False
    noise_key: int = field(kw_only=True)


@dataclass(slots=True)
class Report:
    """What one ``advance`` did. Times are for metrics; nothing is decided by them."""

    finished: list[tuple[int, Completion]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    """Ids of the requests whose first token was sampled; those that also finished are in both."""
    decode_steps: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_tokens: int | None = None
    """That the KV cache holds afterwards, where the engine tells."""

    @property
    def occupancy(self) -> Occupancy:
        """What is left to do."""
        return Occupancy(self.waiting, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full an engine is; None: it doesn't say. ``waiting``: requests without a slot; ``kv_tokens``: that its KV
    cache holds; ``preempted``: requests that it stopped so far to make room."""

    waiting: int | None = None
    kv_tokens: int | None = None
    preempted: int | None = None


@dataclass(slots=True)
class ExportedRequest:
    """A running request with its KV, ready to go on in another engine that holds the same version.

    ``keys``, ``values``: [layers, kv_heads, length, head_dim]; ``partial``: what was sampled so far.
    """

    request: Request
    partial: Completion
    version: int
    keys: Array | None
    values: Array | None


class Engine(Protocol):
    """The passive engine. ``rollout/engine.py`` is the real one, ``simulation/engine.py`` the simulated one."""

    @property
    def version(self) -> int | None: ...

    @property
    def running(self) -> int: ...

    @property
    def has_work(self) -> bool:
        """Would ``advance`` do anything?"""
        ...

    def add(self, requests: Sequence[Request]) -> None: ...

    def advance(self, n: int) -> Report: ...

    def abort(self, ids: Sequence[int]) -> list[tuple[int, Completion]]:
        """Stop these requests; their partial completions come back with finish ``aborted``."""
        ...

    def pause(self, ids: Sequence[int] | None = None) -> None:
        """Keep these requests (None: all) without advancing them; their KV stays."""
        ...

    def resume(self, ids: Sequence[int] | None = None) -> None: ...

    def hold_admission(self, hold: bool) -> None:
        """While held, requests that haven't started stay queued."""
        ...

    def snapshot(self) -> dict[int, Completion]:
        """What each request has sampled so far; the requests go on."""
        ...

    def export(self, id: int) -> ExportedRequest: ...

    def import_(self, state: ExportedRequest) -> None: ...

    def load(self, version: int, weights: Mapping[str, Tensor], in_flight: InFlight) -> list[tuple[int, Completion]]:
        """Swap to ``version`` between two steps; returns what the swap aborted (mode ``abort``)."""
        ...

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions any more."""
        ...


def empty_completion(dtype: DTypeLike = np.float32) -> Completion:
    """A completion of no tokens, as an aborted request that had not started."""
    return Completion(
        np.zeros(0, np.int32), np.zeros(0, dtype), np.zeros(0, dtype), np.zeros(0, np.int32), Finish.ABORTED
    )
