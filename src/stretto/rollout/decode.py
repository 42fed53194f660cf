"""Prefill and decode steps over the rows of an engine: which rows go together, and what a step writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.data.arrays import Array
from stretto.data.modes import Finish
from stretto.models.forward import Places, Span
from stretto.rollout.kv import KVStore
from stretto.rollout.noise import uniforms
from stretto.rollout.rows import RECORD_DTYPES, Rows, SequenceState
from stretto.rollout.sampling import RowSampling, Sampled, sample
from stretto.rollout.types import Request, SamplingParams
from stretto.rollout.weight_versions import WeightVersions

PREFILL_TOKENS = 1024
"""Padded tokens of one prefill call; more gains nothing on a CPU and costs memory."""

SPLIT_POSITIONS = 300
"""A separate attention call (some 25 us per layer) pays off when it skips so many row positions (0.1 us each)."""


@dataclass(slots=True)
class Segment:
    """Neighbouring rows ``start``..``stop`` of one version, and what their steps need (fixed until rows change).

    ``source`` [stop - start] is there for the first step of rows whose prefill has its logits: for each row, the one to
    take of those that prefills left, or -1. The ``decoded`` rows, with -1, come first.
    """

    version: int
    start: int
    stop: int
    index: NDArray[np.int64]
    sampling: RowSampling
    top: int
    sampled_logprobs: int
    support: bool
    noise_keys: NDArray[np.int64]
    stops: NDArray[np.int64] | None
    bias: Array
    source: NDArray[np.int64] | None
    bounds: list[tuple[int, int, bool]] = field(default_factory=list)

    @property
    def decoded(self) -> int:
        """Rows that the next step decodes."""
        return self.stop - self.start if self.source is None else int((self.source < 0).sum())


class Decoder:
    """Runs the model over rows that the engine has arranged: active ones first, equal versions together."""

    def __init__(self, rows: Rows, kv: KVStore, held: WeightVersions, seed: int, eos_ids: Sequence[int]) -> None:
        self.rows, self.kv, self.held, self.seed = rows, kv, held, seed
        self.steps = 0
        self.active = 0
        self.broken: list[SequenceState] = []
        self._segments: list[Segment] = []
        self._prefixes: dict[tuple[int, bytes], dict[int, SequenceState]] = {}
        self._prefilled = 0
        self._first: list[Tensor] = []
        self._eos = np.zeros(held.newest.vocab, np.bool_)
        self._eos[list(eos_ids)] = True

    # -- prefill ------------------------------------------------------------------------------------------

    def take_prefill_tokens(self) -> int:
        """Tokens prefilled since the last call (shared ones once)."""
        count, self._prefilled = self._prefilled, 0
        return count

    def prefill(self, seqs: Sequence[SequenceState], *, first: bool = False) -> None:
        """Fill the cache of these rows up to the last known token. Rows of one version with equal tokens share
        one forward pass, or the cache of a row that still has it: the key holds the version. ``first``: the next step
        follows at once, so a forward pass takes the last known token along and leaves the logits of that step."""
        fresh: dict[tuple[int, bytes], list[SequenceState]] = {}
        prefixes: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        copies: list[tuple[int, int, int]] = []
        lengths = self.rows.length[[seq.row for seq in seqs]] - 1
        for seq, length in zip(seqs, lengths.tolist(), strict=True):
            assert seq.version is not None
            if length + first < 1:
                continue
            known = self.rows.tokens[seq.row, : length + first].tobytes()
            whole, key = (seq.version, known), (seq.version, known[: length * self.rows.tokens.itemsize])
            alive = self._prefixes.get(key)
            if alive:
                copies.append((next(iter(alive.values())).row, seq.row, length))
                self._remember(key, seq)
            else:
                fresh.setdefault(whole, []).append(seq)
                prefixes[whole] = key
        self._copy(copies)
        by_version: dict[int, list[list[SequenceState]]] = {}
        for key, sharing in fresh.items():
            by_version.setdefault(key[0], []).append(sharing)
        for version, groups in by_version.items():
            self._prefill_version(version, groups, first)
        for whole, sharing in fresh.items():
            for seq in sharing:
                self._remember(prefixes[whole], seq)

    def _prefill_version(self, version: int, groups: list[list[SequenceState]], first: bool) -> None:
        length = self.rows.length
        groups = sorted(groups, key=lambda sharing: int(length[sharing[0].row]))
        while groups:
            batch = [groups.pop()]
            longest = int(length[batch[0][0].row]) - 1 + first
            while groups and (len(batch) + 1) * longest <= PREFILL_TOKENS:
                batch.append(groups.pop())
            lead = np.array([sharing[0].row for sharing in batch])
            tokens = torch.from_numpy(self.rows.tokens[lead, :longest])
            last = torch.from_numpy(length[lead] - 1) if first else None
            logits = self.held.forward(version).prefill(tokens, self.kv.layers, torch.from_numpy(lead), last)
            if logits is not None:
                self._keep(logits, batch)
            self._prefilled += int(length[lead].sum()) - len(lead)
            self._copy([(one[0].row, seq.row, longest) for one in batch for seq in one[1:]])

    def extend(self, seqs: Sequence[tuple[SequenceState, int]]) -> None:
        """Prefill rows that go on from so many tokens of a turn before, up to and with the last known one, as the next
        step follows at once."""
        by_version: dict[int, list[tuple[SequenceState, int]]] = {}
        for seq, start in seqs:
            assert seq.version is not None
            by_version.setdefault(seq.version, []).append((seq, start))
        for version, chunks in by_version.items():
            chunks.sort(key=lambda chunk: int(self.rows.length[chunk[0].row]) - chunk[1])
            while chunks:
                longest = int(self.rows.length[chunks[-1][0].row]) - chunks[-1][1]
                part = chunks[-max(1, PREFILL_TOKENS // longest) :]
                del chunks[-len(part) :]
                rows, starts = np.array([seq.row for seq, _ in part]), np.array([start for _, start in part])
                places = Places(torch.from_numpy(starts), torch.from_numpy(self.rows.length[rows] - starts))
                tokens = torch.from_numpy(self.rows.tokens[rows[:, None], places.at.numpy()])
                logits = self.held.forward(version).extend(tokens, self.kv.layers, torch.from_numpy(rows), places)
                self._keep(logits, [[seq] for seq, _ in part])
                self._prefilled += int(places.counts.sum()) - len(part)

    def _keep(self, logits: Tensor, batch: list[list[SequenceState]]) -> None:
        """Logits [len(batch), vocab] for the first step of these sequences."""
        for at, sharing in enumerate(batch, sum(map(len, self._first))):
            for seq in sharing:
                seq.first = at
        self._first.append(logits)

    def _copy(self, copies: list[tuple[int, int, int]]) -> None:
        """Cache from row to row: (source, target, length)."""
        if copies:
            sources, targets, lengths = np.array(copies).T
            self.kv.copy_rows(sources.copy(), targets.copy(), int(lengths.max()))

    def _remember(self, key: tuple[int, bytes], seq: SequenceState) -> None:
        seq.prefix = key
        self._prefixes.setdefault(key, {})[seq.request.id] = seq

    def forget(self, seq: SequenceState) -> None:
        """Nobody may share this sequence's cache any more."""
        if seq.prefix is not None:
            alive = self._prefixes[seq.prefix]
            del alive[seq.request.id]
            if not alive:
                del self._prefixes[seq.prefix]
            seq.prefix = None

    # -- decode -------------------------------------------------------------------------------------------

    def plan(self, active: Sequence[SequenceState]) -> None:
        """Prepare steps over ``active``, which stand in rows 0..len(active) with equal versions together."""
        self.active, self._segments = len(active), []
        start = 0
        for stop in range(1, len(active) + 1):
            if stop == len(active) or active[stop].version != active[start].version:
                self._segments.append(self._segment(active[start:stop], start, stop))
                start = stop

    def _segment(self, seqs: Sequence[SequenceState], start: int, stop: int) -> Segment:
        requests = [seq.request for seq in seqs]
        kinds, which = _kinds(requests)
        widest = max(len(kind.stop) for kind in kinds)
        stops = None
        if widest:
            stops = np.array([[*kind.stop, *[-1] * (widest - len(kind.stop))] for kind in kinds])[which]
        version = seqs[0].version
        assert version is not None
        forward = self.held.forward(version)
        dtype = torch.float64 if forward.dtype is torch.float64 else torch.float32
        length = self.rows.length[start:stop]
        bias = torch.zeros(len(seqs), self.rows.capacity, dtype=dtype).numpy()
        bias[np.arange(self.rows.capacity) >= length[:, None]] = -np.inf
        segment = Segment(
            version, start, stop, np.arange(start, stop),
            RowSampling.of(kinds, forward.vocab, dtype).take(which),
            max([r.top_logprobs for r in requests]), max([r.sampled_logprobs for r in requests]),
            any(r.distribution and r.sampling.filters for r in requests),
            np.array([r.noise_key for r in requests], np.int64), stops, bias, self._sources(seqs),
        )  # fmt: skip
        segment.bounds = _bounds(length[: segment.decoded])
        return segment

    def _sources(self, seqs: Sequence[SequenceState]) -> NDArray[np.int64] | None:
        """See ``Segment.source``; -1 for the rows that are decoded."""
        if seqs[-1].first is None:
            return None
        source = np.array([-1 if seq.first is None else seq.first for seq in seqs])
        for seq in seqs:
            seq.first = None
        return source

    def _spans(self, segment: Segment, length: NDArray[np.int64], dtype: torch.dtype) -> list[Span]:
        segment.bias[segment.index - segment.start, length - 1] = 0.0
        spans = []
        for start, stop, equal in segment.bounds:
            seen = int(length[start:stop].max())
            bias = None if equal else torch.from_numpy(segment.bias[start:stop, :seen])[:, None, None].to(dtype)
            spans.append(Span(start, stop, seen, bias))
        return spans

    def step(self) -> list[tuple[SequenceState, str]]:
        """One token for every active row; returns the sequences that are done, with their finish reason. Rows whose
        distribution isn't finite are in ``broken`` afterwards."""
        self.steps += 1
        self.broken = []
        done: list[tuple[SequenceState, str]] = []
        for segment in self._segments:
            done += self._step(segment)
        self._first = []
        return done

    def _step(self, segment: Segment) -> list[tuple[SequenceState, str]]:
        rows, index = self.rows, segment.index
        at = rows.length[segment.start : segment.stop].copy()
        logits = self._logits(segment, at)
        extra_noise = None
        if segment.sampled_logprobs:
            streams = np.arange(1, segment.sampled_logprobs + 1)
            extra_noise = uniforms(self.seed, segment.noise_keys[:, None], at[:, None], streams)
        flat = index * rows.capacity + at  # one flat index costs less than a pair of them, six times over
        out = sample(logits, segment.sampling, rows.noise.reshape(-1)[flat], segment.top, extra_noise,
                     segment.support)  # fmt: skip
        for array, values in ((rows.tokens, out.tokens), (rows.logprobs, out.logprobs), (rows.entropy, out.entropy),
                              (rows.versions, segment.version)):  # fmt: skip
            array.reshape(-1)[flat] = values
        self._record(segment, at, out)
        rows.length[segment.start : segment.stop] = at + 1
        stopped = self._eos[out.tokens]
        if segment.stops is not None:
            stopped |= (out.tokens[:, None] == segment.stops).any(1)
        good = np.isfinite(out.logprobs) & np.isfinite(out.entropy)
        ended = stopped | (at + 1 >= rows.limit[segment.start : segment.stop])
        if good.all() and not ended.any():
            return []
        seqs = rows.seqs[segment.start : segment.stop]
        if not good.all():
            self.broken += [seq for seq, ok in zip(seqs, good, strict=True) if seq and not ok]
        over, reasons = np.flatnonzero(ended & good).tolist(), stopped.tolist()
        return [(seq, Finish.STOP if reasons[i] else Finish.LENGTH) for i in over if (seq := seqs[i])]

    def _logits(self, segment: Segment, at: NDArray[np.int64]) -> Tensor:
        """Logits [rows, vocab] of the next token of each row, decoded or left by the prefill."""
        forward, n, parts = self.held.forward(segment.version), segment.decoded, []
        spans = self._spans(segment, at, forward.dtype)
        if n:
            last = at[:n] - 1
            tokens = torch.from_numpy(self.rows.tokens[segment.index[:n], last])
            parts = [forward.decode(tokens, torch.from_numpy(last), self.kv.layers, segment.start, spans)]
        if segment.source is not None:
            first = self._first[0] if len(self._first) == 1 else torch.cat(self._first)
            parts.append(first.index_select(0, torch.from_numpy(segment.source[n:])))
            segment.source, segment.bounds = None, _bounds(at)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _record(self, segment: Segment, at: NDArray[np.int64], out: Sampled) -> None:
        for name in ("top_ids", "top_logprobs", "sampled_ids", "sampled_logprobs", "support"):
            values = getattr(out, name)
            if values is not None:
                dtype = RECORD_DTYPES.get(name, self.rows.logprobs.dtype)
                record = self.rows.record(name, values.shape[1], dtype)
                record[segment.index, at, : values.shape[1]] = values


def _kinds(requests: Sequence[Request]) -> tuple[list[SamplingParams], NDArray[np.int64]]:
    """The distinct sampling settings, and which one each request has."""
    which: dict[int, int] = {}  # by identity: most requests share one object, and hashing its fields is slow
    kinds: list[SamplingParams] = []
    for request in requests:
        if id(request.sampling) not in which:
            which[id(request.sampling)] = len(kinds)
            kinds.append(request.sampling)
    return kinds, np.array([which[id(request.sampling)] for request in requests])


def _bounds(length: NDArray[np.int64]) -> list[tuple[int, int, bool]]:
    """Cut rows into runs of similar length that attend in one call each: (start, stop, all equal).

    Rows advance together, so the differences stay as they are until the rows change.
    """
    n = len(length)
    after = np.maximum.accumulate(length[::-1])[::-1]  # the longest from this row on
    bounds: list[tuple[int, int, bool]] = []
    start = 0
    while start < n:
        longest = np.maximum.accumulate(length[start:])
        skipped = (longest[:-1] - after[start + 1 :]) * np.arange(n - start - 1, 0, -1)
        cuts = np.flatnonzero((skipped >= SPLIT_POSITIONS) & (length[start + 1 :] < longest[:-1]))
        stop = start + 1 + int(cuts[0]) if len(cuts) else n
        bounds.append((start, stop, bool((length[start:stop] == length[start]).all())))
        start = stop
    return bounds
