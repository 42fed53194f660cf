"""Which request sits in which row of an engine: the queue, admission, arrangement, removal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.rollout.decode import Decoder
from stretto.rollout.held import HeldVersions
from stretto.rollout.kv import KVStore
from stretto.rollout.noise import uniforms
from stretto.rollout.rows import Job, Rows, arrange
from stretto.rollout.types import empty_completion
from stretto.trajectory import Completion

_PAUSED, _FREE = 1 << 60, 1 << 61


class Scheduler:
    """Owns jobs, queue and rows. ``dirty``: rows were added, freed, paused or resumed since ``arrange``."""

    def __init__(self, held: HeldVersions, slots: int, max_tokens: int, seed: int, eos_ids: Sequence[int]) -> None:
        weights = held.newest
        self.held, self.seed, self.max_tokens = held, seed, max_tokens
        self.kv = KVStore(weights.kv_shapes, slots, max_tokens, weights.dtype)
        self.rows = Rows(slots, max_tokens, np.float64 if weights.dtype is torch.float64 else np.float32)
        self.decoder = Decoder(self.rows, self.kv, held, seed, eos_ids)
        self.jobs: dict[int, Job] = {}
        self.queue: deque[Job] = deque()
        self.hold = False
        self.dirty = False
        self._fresh: list[Job] = []  # admitted, without a token so far: the next step samples their first one

    def enqueue(self, job: Job) -> None:
        """Queue a job; one that had a slot elsewhere comes first."""
        if job.request.version is not None:
            self.held.pin(job.request.trajectory, job.request.version)
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
        del self.jobs[job.request.id]
        self.decoder.forget(job)
        if job.row < 0:
            self.queue.remove(job)
            if job.partial is None:
                return empty_completion(self.rows.logp.dtype)
            part = job.partial
            return Completion(part.tokens, part.logp, part.entropy, part.versions, finish, part.records)
        completion = self.rows.completion(job, finish)
        self.rows.clear(job.row)
        job.row = -1
        self.dirty = True
        return completion

    def take_fresh(self) -> list[int]:
        """Ids of the requests that got their first token in the step that just ran."""
        if not self._fresh:
            return []
        fresh, self._fresh = self._fresh, []
        return [job.request.id for job in fresh if job not in self.decoder.broken]

    def collect(self) -> None:
        """Free versions that neither a request nor a trajectory needs."""
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
        starts = [len(job.request.tokens) for job in ready]
        limits = [
            min(start + job.request.sampling.max_new_tokens, self.max_tokens)
            for job, start in zip(ready, starts, strict=True)
        ]
        noise = self._noise(ready, starts, limits)
        for job, row, limit, part in zip(ready, free, limits, noise, strict=False):
            if job.version is None:
                job.version = self.held.version
            self.rows.place(job, row, part, limit)
        self._restore([job for job in ready if job.cached is not None])
        self.decoder.prefill([job for job in ready if job.cached is None])
        self._fresh = [job for job in ready if job.partial is None or not len(job.partial.tokens)]
        for job in ready:
            job.cached = job.partial = None
        self.dirty = True

    def _noise(self, jobs: list[Job], starts: list[int], limits: list[int]) -> list[NDArray[np.float64]]:
        """The uniforms of each job's new positions, hashed for all jobs at once."""
        counts = np.subtract(limits, starts)
        ends = counts.cumsum()
        first = np.repeat(np.subtract(starts, ends - counts), counts)
        trajectories = np.repeat(np.array([job.request.trajectory for job in jobs]), counts)
        return np.split(uniforms(self.seed, trajectories, first + np.arange(ends[-1])), ends[:-1])

    def _restore(self, jobs: list[Job]) -> None:
        for job in jobs:
            assert job.cached is not None
            keys, values = (torch.as_tensor(part) for part in job.cached)
            self.kv.write(job.row, self.held.newest.cached_keys(keys), values)

    def arrange(self) -> None:
        """Active rows first, by version and then by length (longest first), paused ones next, free ones last."""
        rows, kv_length = self.rows, np.maximum(self.rows.length - 1, 0)
        order = {version: i for i, version in enumerate(self.held.versions())}
        coarse = max(32, self.max_tokens // 8)

        def key(job: Job | None) -> int:
            if job is None:
                return _FREE
            if job.paused:
                return _PAUSED
            age = (self.decoder.steps + self.max_tokens - int(rows.length[job.row])) // coarse
            return (order[job.version or 0] << 44) + age

        for one, other in arrange([key(job) for job in rows.jobs]):
            self.kv.swap(one, other, int(kv_length[one]), int(kv_length[other]))
            kv_length[[one, other]] = kv_length[[other, one]]
            rows.swap(one, other)
        self.decoder.plan([job for job in rows.jobs if job is not None and not job.paused])
        self.dirty = False

    def reprefill(self, jobs: Sequence[Job]) -> None:
        """Compute the cache of these jobs anew under their present version."""
        for job in jobs:
            self.decoder.forget(job)
            job.cached = None
        self.decoder.prefill([job for job in jobs if job.row >= 0])
