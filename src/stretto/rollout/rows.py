"""The rows of an engine's batch: what each slot runs, as flat arrays, so that a step costs the same for any count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stretto.data.arrays import Array
from stretto.data.modes import Finish
from stretto.data.trajectory import Completion
from stretto.rollout.noise import uniforms
from stretto.rollout.types import Request


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request inside the engine. ``row`` is its slot (-1: queued). ``version`` is the one that it decodes under;
    None while queued without a pin. ``partial`` and ``cached`` (keys, values) come from an import. ``first``: its
    prefill has the logits of the first step too, as this row of the decoder's."""

    request: Request
    version: int | None
    row: int = -1
    paused: bool = False
    partial: Completion | None = None
    cached: tuple[Array, Array] | None = None
    prefix: tuple[int, bytes] | None = None
    first: int | None = None
    mixed: bool = False
    """Does its cache come from other weights than those of ``version``, in part?"""

    @property
    def started(self) -> bool:
        """Runs, or holds tokens or a cache from another engine."""
        return self.row >= 0 or self.cached is not None or (self.partial is not None and len(self.partial.tokens) > 0)


RECORD_DTYPES: dict[str, DTypeLike] = {"top_ids": np.int32, "sampled_ids": np.int32, "support": np.uint8}
"""Of the records that aren't log-probabilities."""


class Rows:
    """Arrays [max_num_seqs] and [max_num_seqs, max_model_len]; absolute token positions index the second axis.

    ``length`` counts known tokens: the last one has been sampled but not yet fed to the model, so the KV cache
    of a row holds ``length - 1`` positions.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, dtype: DTypeLike, vocab: int) -> None:
        self.support_width = -(-vocab // 8)
        shape = (max_num_seqs, max_model_len)
        self.seqs: list[SequenceState | None] = [None] * max_num_seqs
        self.length = np.zeros(max_num_seqs, np.int64)
        self.limit = np.zeros(max_num_seqs, np.int64)
        self.tokens = np.zeros(shape, np.int64)
        self.logprobs = np.zeros(shape, dtype)
        self.entropy = np.zeros(shape, dtype)
        self.versions = np.zeros(shape, np.int32)
        self.noise = np.zeros(shape, np.float64)
        self.records: dict[str, Array] = {}

    @property
    def capacity(self) -> int:
        """Tokens that fit into a row."""
        return int(self.tokens.shape[1])

    def place(self, seqs: Sequence[SequenceState], free: Sequence[int], seed: int) -> None:
        """Put sequences into free rows, and the uniforms of their new positions beside them."""
        rows = np.array(free)
        starts = np.array([len(seq.request.tokens) for seq in seqs])
        limits = np.minimum(starts + [seq.request.sampling.max_new_tokens for seq in seqs], self.capacity)
        at = _flat(rows, np.zeros_like(starts), starts)
        self.tokens[at] = np.concatenate([seq.request.tokens for seq in seqs])
        at = _flat(rows, starts, limits)
        keys = np.array([seq.request.noise_key for seq in seqs])
        self.noise[at] = uniforms(seed, np.repeat(keys, limits - starts), at[1])
        self.length[rows], self.limit[rows] = starts, limits
        for seq, row in zip(seqs, free, strict=True):
            self.seqs[row], seq.row = seq, row
            if seq.partial is not None:
                self._put_back(seq, seq.partial)

    def _put_back(self, seq: SequenceState, part: Completion) -> None:
        """What the sequence had sampled elsewhere."""
        row, start = seq.row, len(seq.request.tokens)
        end = start + len(part.tokens)
        self.length[row] = end
        for array, values in ((self.tokens, part.tokens), (self.logprobs, part.logprobs),
                              (self.entropy, part.entropy), (self.versions, part.versions)):  # fmt: skip
            array[row, start:end] = values
        for name, values in part.records.items():
            self.record(name, values.shape[1], values.dtype)[row, start:end, : values.shape[1]] = values

    def record(self, name: str, width: int, dtype: DTypeLike) -> Array:
        """The array [max_num_seqs, max_model_len, >= width] of an optional record; grows with the widest request."""
        held = self.records.get(name)
        if held is None or held.shape[2] < width:
            wider = np.zeros((*self.tokens.shape, width), dtype)
            if held is not None:
                wider[..., : held.shape[2]] = held
            self.records[name] = held = wider
        return held

    def completions(self, seqs: Sequence[SequenceState], finishes: Sequence[Finish]) -> list[Completion]:
        """What these sequences have sampled so far: copies, which share their memory with each other."""
        rows = np.array([seq.row for seq in seqs])
        starts, ends = np.array([len(seq.request.tokens) for seq in seqs]), self.length[rows]
        at = _flat(rows, starts, ends)
        tokens, logprobs = self.tokens[at].astype(np.int32), self.logprobs[at]
        entropy, versions = self.entropy[at], self.versions[at]
        out, first = [], 0
        for seq, finish, last in zip(seqs, finishes, (ends - starts).cumsum().tolist(), strict=True):
            span, first = slice(first, last), last
            request = seq.request
            records = (
                self._records(seq) if request.top_logprobs or request.sampled_logprobs or request.distribution else {}
            )
            out.append(Completion(tokens[span], logprobs[span], entropy[span], versions[span], finish, records))
        return out

    def _records(self, seq: SequenceState) -> dict[str, Array]:
        request = seq.request
        span = slice(len(request.tokens), int(self.length[seq.row]))
        widths = {"top_ids": request.top_logprobs, "top_logprobs": request.top_logprobs,
                  "sampled_ids": request.sampled_logprobs, "sampled_logprobs": request.sampled_logprobs}  # fmt: skip
        if request.distribution and request.sampling.filters:
            widths["support"] = self.support_width
        records = {}
        for name, width in widths.items():
            if width:
                array = self.record(name, width, RECORD_DTYPES.get(name, self.logprobs.dtype))
                records[name] = array[seq.row, span, :width].copy()
        if request.distribution:  # a greedy token is recorded as one of the untempered distribution
            temperature = request.sampling.temperature or 1.0
            records["temperature"] = np.full((span.stop - span.start, 1), temperature, self.logprobs.dtype)
        return records

    def clear(self, row: int) -> None:
        """Free a row."""
        self.seqs[row] = None
        self.length[row] = 0

    def move(self, sources: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Permute rows: what ``sources[i]`` holds goes to row ``targets[i]``. Some may be free."""
        arrays = (self.length, self.limit, self.tokens, self.logprobs, self.entropy, self.versions, self.noise)
        for array in (*arrays, *self.records.values()):
            array[targets] = array[sources]
        seqs = [self.seqs[row] for row in sources.tolist()]
        for seq, row in zip(seqs, targets.tolist(), strict=True):
            self.seqs[row] = seq
            if seq is not None:
                seq.row = row


def _flat(
    rows: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and positions of the spans ``starts[i]``..``ends[i]`` of ``rows[i]``, one after the other."""
    counts = ends - starts
    after = counts.cumsum()
    return np.repeat(rows, counts), np.repeat(starts - (after - counts), counts) + np.arange(after[-1])


def arrange(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources and targets of the moves that sort ``keys`` into runs in ascending order; a row that already stands in
    its run stays (equal keys may change places)."""
    wanted = np.sort(keys)
    targets = np.flatnonzero(keys != wanted)
    return targets[np.argsort(keys[targets], kind="stable")], targets
