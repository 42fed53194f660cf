"""The rows of an engine's batch: what each slot runs, as flat arrays, so that a step costs the same for any count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.rollout.types import Request
from stretto.trajectory import Completion


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the engine. ``row`` is its slot (-1: queued). ``version`` is the one that it decodes under;
    None while queued without a pin. ``partial`` and ``cached`` (keys, values) come from an import."""

    request: Request
    version: int | None
    row: int = -1
    paused: bool = False
    partial: Completion | None = None
    cached: tuple[Any, Any] | None = None
    prefix: tuple[int, bytes] | None = None

    @property
    def started(self) -> bool:
        """Runs, or holds tokens or a cache from another engine."""
        return self.row >= 0 or self.cached is not None or (self.partial is not None and len(self.partial.tokens) > 0)


class Rows:
    """Arrays [slots] and [slots, max_tokens]; absolute token positions index the second axis.

    ``length`` counts known tokens: the last one has been sampled but not yet fed to the model, so the KV cache
    of a row holds ``length - 1`` positions.
    """

    def __init__(self, slots: int, max_tokens: int, dtype: Any) -> None:
        shape = (slots, max_tokens)
        self.jobs: list[Job | None] = [None] * slots
        self.length = np.zeros(slots, np.int64)
        self.limit = np.zeros(slots, np.int64)
        self.tokens = np.zeros(shape, np.int64)
        self.logp = np.zeros(shape, dtype)
        self.entropy = np.zeros(shape, dtype)
        self.versions = np.zeros(shape, np.int32)
        self.noise = np.zeros(shape, np.float64)
        self.records: dict[str, NDArray[Any]] = {}

    @property
    def capacity(self) -> int:
        """Tokens that fit into a row."""
        return int(self.tokens.shape[1])

    def place(self, job: Job, row: int, noise: NDArray[np.float64], limit: int) -> None:
        """Put a job into a free row; ``noise`` [limit - len(tokens)] are the uniforms of its new positions."""
        start = len(job.request.tokens)
        self.tokens[row, :start] = job.request.tokens
        self.noise[row, start:limit] = noise
        self.length[row], self.limit[row] = start, limit
        self.jobs[row], job.row = job, row
        if job.partial is None:
            return
        part, end = job.partial, start + len(job.partial.tokens)
        self.length[row] = end
        for array, values in ((self.tokens, part.tokens), (self.logp, part.logp),
                              (self.entropy, part.entropy), (self.versions, part.versions)):  # fmt: skip
            array[row, start:end] = values
        for name, values in part.records.items():
            self.record(name, values.shape[1], values.dtype)[row, start:end, : values.shape[1]] = values

    def record(self, name: str, width: int, dtype: Any) -> NDArray[Any]:
        """The array [slots, max_tokens, >= width] of an optional record; grows with the widest request."""
        held = self.records.get(name)
        if held is None or held.shape[2] < width:
            wider = np.zeros((*self.tokens.shape, width), dtype)
            if held is not None:
                wider[..., : held.shape[2]] = held
            self.records[name] = held = wider
        return held

    def completion(self, job: Job, finish: str) -> Completion:
        """What the job has sampled so far (copies)."""
        request = job.request
        span = slice(len(request.tokens), int(self.length[job.row]))
        widths = {"head_ids": request.top_logp, "head_logp": request.top_logp,
                  "mc_ids": request.draws, "mc_logp": request.draws}  # fmt: skip
        records = {}
        for name, width in widths.items():
            if width:
                array = self.record(name, width, np.int32 if name.endswith("ids") else self.logp.dtype)
                records[name] = array[job.row, span, :width].copy()
        return Completion(
            self.tokens[job.row, span].astype(np.int32), self.logp[job.row, span].copy(),
            self.entropy[job.row, span].copy(), self.versions[job.row, span].copy(), finish, records,
        )  # fmt: skip

    def clear(self, row: int) -> None:
        """Free a row."""
        self.jobs[row] = None
        self.length[row] = 0

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows, either of which may be free."""
        pair, back = [one, other], [other, one]
        arrays = (self.length, self.limit, self.tokens, self.logp, self.entropy, self.versions, self.noise)
        for array in (*arrays, *self.records.values()):
            array[pair] = array[back]
        self.jobs[one], self.jobs[other] = self.jobs[other], self.jobs[one]
        for row in pair:
            job = self.jobs[row]
            if job is not None:
                job.row = row


def arrange(keys: list[int]) -> list[tuple[int, int]]:
    """Swaps that sort ``keys`` into runs in ascending order, moving few rows (equal keys may change places)."""
    keys, wanted, swaps = list(keys), sorted(keys), []
    for at, key in enumerate(wanted):
        if keys[at] == key:
            continue
        later = [i for i in range(at + 1, len(keys)) if keys[i] == key and wanted[i] != key]
        best = next((i for i in later if wanted[i] == keys[at]), later[-1])
        keys[at], keys[best] = keys[best], keys[at]
        swaps.append((at, best))
    return swaps
