"""Which request sits in which row of an engine: the queue, admission, arrangement, removal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from stretto.rollout.decode import Decoder
from stretto.rollout.held import HeldVersions
from stretto.rollout.kv import KVStore
from stretto.rollout.rows import Job, Rows, arrange
from stretto.rollout.types import empty_completion
from stretto.trajectory import Completion

_FRESH, _PAUSED, _FREE = 1 << 43, 1 << 60, 1 << 61


class Scheduler:
    """Owns jobs, queue and rows. ``dirty``: rows were added, freed, paused or resumed since ``arrange``."""

    def __init__(self, held: HeldVersions, slots: int, max_tokens: int, seed: int, eos_ids: Sequence[int]) -> None:
        weights = held.newest
        self.held, self.seed, self.max_tokens = held, seed, max_tokens
        self.kv = KVStore(weights.kv_shapes, slots, max_tokens, weights.dtype)
        self.rows = Rows(slots, max_tokens, np.float64 if weights.dtype is torch.float64 else np.float32, weights.vocab)
        self.decoder = Decoder(self.rows, self.kv, held, seed, eos_ids)
        self.jobs: dict[int, Job] = {}
        self.queue: deque[Job] = deque()
        self.hold = False
        self.dirty = False
        self._fresh: list[Job] = []  # admitted, without a token so far: the next step samples their first one

    def enqueue(self, job: Job) -> None:
        """Queue a job; one that had a slot elsewhere comes first."""
        self.jobs[job.request.id] = job
        if job.started:
            self.queue.appendleft(job)
        else:
            self.queue.append(job)

    def find(self, ids: Iterable[int]) -> list[Job]:
        """The jobs that are here; other ids have finished."""
        return [self.jobs[i] for i in ids if i in self.jobs]

    def take(self, job: Job, finish: str) -> Completion:
        """Remove a job from the engine and return its completion."""
        if job.row >= 0:
            return self.finish([job], [finish])[0][1]
        del self.jobs[job.request.id]
        self.queue.remove(job)
        if job.partial is None:
            return empty_completion(self.rows.logp.dtype)
        part = job.partial
        return Completion(part.tokens, part.logp, part.entropy, part.versions, finish, part.records)

    def finish(self, jobs: Sequence[Job], finishes: Sequence[str]) -> list[tuple[int, Completion]]:
        """Remove jobs that have rows; their ids and completions."""
        ids = [job.request.id for job in jobs]
        completions = self.rows.completions(jobs, finishes)
        for id, job in zip(ids, jobs, strict=True):
            del self.jobs[id]
            self.decoder.forget(job)
            self.rows.clear(job.row)
            job.row = -1
        self.dirty = True
        return list(zip(ids, completions, strict=True))

    def take_fresh(self) -> list[int]:
        """Ids of the requests that got their first token in the step that just ran."""
        if not self._fresh:
            return []
        fresh, self._fresh = self._fresh, []
        broken = set(map(id, self.decoder.broken))
        return [job.request.id for job in fresh if id(job) not in broken]

    def collect(self) -> None:
        """Free versions that nobody needs."""
        if self.held.holds_older:
            self.held.collect({job.version for job in self.jobs.values() if job.version is not None})

    def admit(self) -> None:
        """Move queued requests into free rows, in order, and prefill them together."""
        free = [row for row, job in enumerate(self.rows.jobs) if job is None]
        if not free:
            return
        ready = [job for job in self.queue if not job.paused and (job.started or not self.hold)][: len(free)]
        if not ready:
            return
        taken = {id(job) for job in ready}
        self.queue = deque(job for job in self.queue if id(job) not in taken)
        for job in ready:
            if job.version is None:
                job.version = self.held.version
        self.rows.place(ready, free[: len(ready)], self.seed)
        self._restore([job for job in ready if job.cached is not None])
        self.decoder.prefill([job for job in ready if job.cached is None], first=True)
        self._fresh = [job for job in ready if job.partial is None or not len(job.partial.tokens)]
        for job in ready:
            job.cached = job.partial = None
        self.dirty = True

    def _restore(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert job.cached is not None
            keys, values = (torch.as_tensor(part) for part in job.cached)
            self.kv.write(job.row, self.held.newest.cached_keys(keys), values)

    def arrange(self) -> None:
        """Active rows first, by version and then by length (longest first), paused ones next, free ones last."""
        rows = self.rows
        base = {version: i << 44 for i, version in enumerate(self.held.versions())}
        keys = np.array([
            _FREE if job is None else _PAUSED if job.paused
            else base[job.version or 0] + (0 if job.first is None else _FRESH)
            for job in rows.jobs
        ])  # fmt: skip
        coarse = max(32, self.max_tokens // 8)
        keys += (keys < _PAUSED) * ((self.decoder.steps + self.max_tokens - rows.length) // coarse)
        sources, targets = arrange(keys)
        if len(targets):
            length = rows.length[sources]
            used = length > 0
            self.kv.copy_rows(sources[used], targets[used], int(length.max()))
            rows.move(sources, targets)
        self.decoder.plan([job for job in rows.jobs if job is not None and not job.paused])
        self.dirty = False

    def reprefill(self, jobs: Sequence[Job]) -> None:
        """Compute the cache of these jobs anew under their present version."""
        for job in jobs:
            self.decoder.forget(job)
            job.cached = None
        self.decoder.prefill([job for job in jobs if job.row >= 0])
