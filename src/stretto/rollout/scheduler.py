"""Which request sits in which row of an engine: the queue, admission, arrangement, removal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from stretto.data.modes import Finish
from stretto.data.trajectory import Completion
from stretto.rollout.decode import Decoder
from stretto.rollout.kept import KeptTurns
from stretto.rollout.kv import KVStore
from stretto.rollout.rows import Rows, SequenceState, arrange
from stretto.rollout.types import empty_completion
from stretto.rollout.weight_versions import WeightVersions

_FRESH, _PAUSED, _FREE = 1 << 43, 1 << 60, 1 << 61


class Scheduler:
    """Owns sequences, queue and rows. ``dirty``: rows were added, freed, paused or resumed since ``arrange``."""

    def __init__(
        self, held: WeightVersions, max_num_seqs: int, max_model_len: int, seed: int, eos_ids: Sequence[int],
        kept_tokens: int,
    ) -> None:  # fmt: skip
        weights = held.newest
        self.held, self.seed, self.max_model_len = held, seed, max_model_len
        self.kv = KVStore(weights.kv_shapes, max_num_seqs, max_model_len, weights.dtype)
        self.rows = Rows(
            max_num_seqs, max_model_len, np.float64 if weights.dtype is torch.float64 else np.float32, weights.vocab
        )
        self.decoder = Decoder(self.rows, self.kv, held, seed, eos_ids)
        self.seqs: dict[int, SequenceState] = {}
        self.queue: deque[SequenceState] = deque()
        self.hold = False
        self.dirty = False
        self.kept: KeptTurns[tuple[NDArray[np.int64], list[torch.Tensor]]] = KeptTurns(kept_tokens)
        """Tokens and cache of trajectories between two turns."""
        self._fresh: list[SequenceState] = []  # admitted, without a token so far: the next step samples their first one

    def enqueue(self, seq: SequenceState) -> None:
        """Queue a sequence; one that had a slot elsewhere comes first."""
        self.seqs[seq.request.id] = seq
        if seq.started:
            self.queue.appendleft(seq)
        else:
            self.queue.append(seq)

    def find(self, ids: Iterable[int]) -> list[SequenceState]:
        """The sequences that are here; other ids have finished."""
        return [self.seqs[i] for i in ids if i in self.seqs]

    def take(self, seq: SequenceState, finish: Finish) -> Completion:
        """Remove a sequence from the engine and return its completion."""
        if seq.row >= 0:
            return self.finish([seq], [finish])[0][1]
        del self.seqs[seq.request.id]
        self.queue.remove(seq)
        if seq.partial is None:
            return empty_completion(self.rows.logprobs.dtype)
        part = seq.partial
        return Completion(part.tokens, part.logprobs, part.entropy, part.versions, finish, part.records)

    def finish(self, seqs: Sequence[SequenceState], finishes: Sequence[Finish]) -> list[tuple[int, Completion]]:
        """Remove sequences that have rows; their ids and completions."""
        ids = [seq.request.id for seq in seqs]
        completions = self.rows.completions(seqs, finishes)
        for id, seq, finish in zip(ids, seqs, finishes, strict=True):
            del self.seqs[id]
            if seq.request.keep and not seq.mixed and finish != Finish.ABORTED:
                self._keep(seq)
            self.decoder.forget(seq)
            self.rows.clear(seq.row)
            seq.row = -1
        self.dirty = True
        return list(zip(ids, completions, strict=True))

    def _keep(self, seq: SequenceState) -> None:
        """Its trajectory may have another turn."""
        length = int(self.rows.length[seq.row]) - 1
        if self.kept.fits(length):
            assert seq.version is not None
            state = self.rows.tokens[seq.row, :length].copy(), self.kv.copy_out(seq.row, length)
            self.kept.put(seq.request.trajectory, length, seq.version, seq.request.version is not None, state)

    def _go_on(self, seq: SequenceState) -> int:
        """Take up the cache of the turn before, as far as the tokens are the same; how many these are."""
        assert seq.version is not None
        found = self.kept.take(seq.request.trajectory, seq.version)
        if found is None:
            return 0
        tokens, kept = found[1]
        most = min(len(tokens), int(self.rows.length[seq.row]) - 1)
        apart = np.flatnonzero(tokens[:most] != self.rows.tokens[seq.row, :most])
        same = int(apart[0]) if len(apart) else most
        self.kv.copy_in(seq.row, kept, same)
        return same

    def take_fresh(self) -> list[int]:
        """Ids of the requests that got their first token in the step that just ran."""
        if not self._fresh:
            return []
        fresh, self._fresh = self._fresh, []
        broken = set(map(id, self.decoder.broken))
        return [seq.request.id for seq in fresh if id(seq) not in broken]

    def collect(self) -> None:
        """Free versions that nobody needs."""
        if self.held.holds_older:
            self.held.collect({seq.version for seq in self.seqs.values() if seq.version is not None})

    def admit(self) -> None:
        """Move queued requests into free rows, in order, and prefill them together."""
        free = [row for row, seq in enumerate(self.rows.seqs) if seq is None]
        if not free:
            return
        ready = [seq for seq in self.queue if not seq.paused and (seq.started or not self.hold)][: len(free)]
        if not ready:
            return
        taken = {id(seq) for seq in ready}
        self.queue = deque(seq for seq in self.queue if id(seq) not in taken)
        for seq in ready:
            if seq.version is None:
                seq.version = self.held.version
        self.rows.place(ready, free[: len(ready)], self.seed)
        self._restore([seq for seq in ready if seq.cached is not None])
        new = [seq for seq in ready if seq.cached is None]
        known = [self._go_on(seq) if len(self.kept) else 0 for seq in new]
        self.decoder.prefill([seq for seq, n in zip(new, known, strict=True) if not n], first=True)
        self.decoder.extend([(seq, n) for seq, n in zip(new, known, strict=True) if n])
        self._fresh = [seq for seq in ready if seq.partial is None or not len(seq.partial.tokens)]
        for seq in ready:
            seq.cached = seq.partial = None
        self.dirty = True

    def _restore(self, seqs: list[SequenceState]) -> None:
        for seq in seqs:
            assert seq.cached is not None
            keys, values = (torch.as_tensor(part) for part in seq.cached)
            self.kv.write(seq.row, self.held.newest.cached_keys(keys), values)

    def arrange(self) -> None:
        """Active rows first, by version and then by length (longest first), paused ones next, free ones last."""
        rows = self.rows
        base = {version: i << 44 for i, version in enumerate(self.held.versions())}
        keys = np.array([
            _FREE if seq is None else _PAUSED if seq.paused
            else base[seq.version or 0] + (0 if seq.first is None else _FRESH)
            for seq in rows.seqs
        ])  # fmt: skip
        coarse = max(32, self.max_model_len // 8)
        keys += (keys < _PAUSED) * ((self.decoder.steps + self.max_model_len - rows.length) // coarse)
        sources, targets = arrange(keys)
        if len(targets):
            length = rows.length[sources]
            used = length > 0
            self.kv.copy_rows(sources[used], targets[used], int(length.max()))
            rows.move(sources, targets)
        self.decoder.plan([seq for seq in rows.seqs if seq is not None and not seq.paused])
        self.dirty = False

    def reprefill(self, seqs: Sequence[SequenceState]) -> None:
        """Compute the cache of these sequences anew under their present version."""
        for seq in seqs:
            self.decoder.forget(seq)
            seq.cached = None
        self.decoder.prefill([seq for seq in seqs if seq.row >= 0])
