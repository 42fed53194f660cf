"""What flows through the loop: completions, transcripts, trajectories, groups; and the staleness arithmetic.

Invariants, checked when a value is built:

* every per-token array of a trajectory has one length;
* every policy token has the version that sampled it, its behaviour log-probability and, if recorded, its entropy;
* versions never decrease inside a trajectory;
* masks come from roles (who wrote the token), never from token values.

Numbers are NumPy arrays: this module stays free of torch, so that the orchestrator starts fast.
``TokenBatch`` (torch) lives in ``stretto.data.batch`` and is re-exported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.data.arrays import Array
from stretto.data.modes import Finish
from stretto.data.records import padded_records
from stretto.kernel.errors import DataError, InvariantError

if TYPE_CHECKING:
    from stretto.data.batch import TokenBatch as TokenBatch

Ints = NDArray[np.int32]
Floats = NDArray[np.floating]


@dataclass(slots=True)
class Completion:
    """Tokens that an engine sampled for one request.

    ``tokens``, ``versions`` [n] int; ``logprobs`` [n] log-probability under the distribution really sampled from;
    ``entropy`` [n] nats, of that distribution, NaN where the engine records none; ``finish`` says why it
    ends; ``records`` holds optional per-token arrays ([n, K]), each an increment like ``tokens``.
    """

    tokens: Ints
    logprobs: Floats
    entropy: Floats
    versions: Ints
    finish: Finish
    records: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not (len(self.logprobs) == len(self.entropy) == len(self.versions) == n):
            raise InvariantError(
                f"completion: {n} tokens, {len(self.logprobs)} log-probabilities, "
                f"{len(self.entropy)} entropies, {len(self.versions)} versions"
            )
        for name, values in self.records.items() if self.records else ():
            if len(values) != n:
                raise InvariantError(f"completion: record {name!r} has {len(values)} rows for {n} tokens")


def join(first: Completion, second: Completion) -> Completion:
    """The completion of a request that was aborted and went on later."""
    return Completion(
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.logprobs, second.logprobs]),
        np.concatenate([first.entropy, second.entropy]),
        np.concatenate([first.versions, second.versions]),
        second.finish,
        {
            name: np.concatenate([first.records[name], values])
            for name, values in second.records.items()
            if name in first.records
        }
        or dict(second.records),
    )


@dataclass(slots=True)
class Trajectory:
    """One episode. Arrays are [T]; ``mask`` is True exactly on tokens that the policy sampled.

    Masked-out places of ``versions``, ``logprobs`` and ``entropy`` hold anything. ``reward`` None means absent:
    such a trajectory never trains. ``terminated`` and ``truncated`` stay apart (truncation bootstraps).
    ``rewards`` [T] optional: rewards per token for environments that have them; their sum is ``reward``.
    """

    id: int
    group: int
    tokens: Ints
    mask: NDArray[np.bool_]
    versions: Ints
    logprobs: Floats
    entropy: Floats
    reward: float | None
    terminated: bool = True
    truncated: bool = False
    turns: int = 1
    version_complete: int = 0
    rewards: Floats | None = None
    records: dict[str, Array] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    late: bool = False
    """``reward`` is what is known now; the environment's ``late_reward`` will tell another one."""

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not (len(self.mask) == len(self.versions) == len(self.logprobs) == len(self.entropy) == n) or (
            self.rewards is not None and len(self.rewards) != n
        ):
            self._lengths_differ(n)
        sampled = self.versions[self.mask]
        if np.count_nonzero(sampled[1:] < sampled[:-1]):
            raise InvariantError(f"trajectory {self.id}: versions decrease: {sampled.tolist()}")

    def _lengths_differ(self, n: int) -> None:
        for name in ("mask", "versions", "logprobs", "entropy", "rewards"):
            values = getattr(self, name)
            if values is not None and len(values) != n:
                raise InvariantError(f"trajectory {self.id}: {name} has {len(values)} entries for {n} tokens")

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return int(np.count_nonzero(self.mask))

    def train_only(self, part: slice) -> None:
        """Leave all of the policy's tokens but this part of them out of the loss."""
        if part != slice(None):
            at = self.mask.nonzero()[0][part]
            self.mask = np.zeros_like(self.mask)
            self.mask[at] = True

    def staleness(self, version: int) -> Staleness:
        """Staleness if a step that starts at ``version`` trained this trajectory."""
        return staleness(self.versions[self.mask], self.version_complete, version)


@dataclass(frozen=True, slots=True)
class Staleness:
    """Token-summed staleness in versions: total = generation + waiting, exactly, in integers."""

    total: int
    generation: int
    waiting: int
    max: int
    tokens: int


def staleness(versions: Ints, version_complete: int, version: int) -> Staleness:
    """Split of staleness at ``version`` (PACE, arXiv 2609.36830): generation + waiting = total, in integers.

    ``versions`` [n] of the policy tokens; ``version_complete`` is the published version when the trajectory's
    group completed.
    """
    n = len(versions)
    sampled = int(versions.sum(dtype=np.int64)) if n else 0
    total = n * version - sampled
    generation = n * version_complete - sampled
    return Staleness(
        total=total,
        generation=generation,
        waiting=n * (version - version_complete),
        max=version - int(versions.min()) if n else 0,
        tokens=n,
    )


_NO_IDS: Ints = np.empty(0, np.int32)


class Transcript:
    """Append-only record of one episode; the only way to build a trajectory from engine output.

    ``observe`` adds tokens that the policy did not write (prompt, tool results), ``sample`` adds a completion.
    Each append keeps all columns equally long, so a mismatch fails where it happens.
    """

    __slots__ = ("_ids", "_length", "_parts", "group", "trajectory", "turns")

    def __init__(self, trajectory: int, group: int) -> None:
        self.trajectory = trajectory
        self.group = group
        self._parts: list[tuple[int, Completion | None]] = []
        self._ids = _NO_IDS  # what is written is never written again, so slices of it may be handed out
        self._length = 0
        self.turns = 0

    def __len__(self) -> int:
        return self._length

    def observe(self, tokens: Sequence[int] | Ints) -> None:
        """Append tokens that were not sampled: they are never trained on. A read-only array that comes first is kept
        as it is, so that the members of a group share their prompt."""
        ids = np.asarray(tokens, dtype=np.int32)
        if ids.ndim != 1:
            raise DataError(f"trajectory {self.trajectory}: tokens must be one list of ids, got {ids.shape}")
        if not self._length and (ids is tokens or ids.base is not None) and ids.flags.writeable:
            ids = ids.copy()
        self._append(ids, None)

    def sample(self, completion: Completion) -> None:
        """Append what the engine sampled."""
        self._append(completion.tokens, completion)
        self.turns += 1

    def _append(self, ids: Ints, completion: Completion | None) -> None:
        at, n = self._length, len(ids)
        if not at and completion is None:
            self._ids = ids
        else:
            if at + n > len(self._ids):
                grown = np.empty(2 * (at + n), np.int32)
                grown[:at] = self._ids[:at]
                self._ids = grown
            self._ids[at : at + n] = ids
        self._parts.append((n, completion))
        self._length = at + n

    def tokens(self) -> Ints:
        """All token ids so far [T]."""
        return self._ids if len(self._ids) == self._length else self._ids[: self._length]

    def finish(
        self,
        reward: float | None,
        *,
        terminated: bool = True,
        truncated: bool = False,
        info: dict[str, Any] | None = None,
        late: bool = False,
    ) -> Trajectory:
        """The finished trajectory."""
        n = self._length
        runs = self._sampled_runs()
        first = runs[0][2][0] if runs else None
        dtype = first.logprobs.dtype if first is not None else np.float32
        mask, versions = np.zeros(n, np.bool_), np.zeros(n, np.int32)
        logprobs, entropy = np.zeros(n, dtype), np.zeros(n, dtype)
        for start, end, written in runs:
            part = slice(start, end)
            mask[part] = True
            if len(written) == 1:  # copying costs a third of joining
                (c,) = written
                np.copyto(versions[part], c.versions)
                np.copyto(logprobs[part], c.logprobs)
                np.copyto(entropy[part], c.entropy)
            else:
                _join([c.versions for c in written], versions[part])
                _join([c.logprobs for c in written], logprobs[part])
                _join([c.entropy for c in written], entropy[part])
        records: dict[str, Array] = {}
        sampled = [(len(c.tokens), c.records) for _, _, written in runs for c in written]
        for name, parts in padded_records(sampled).items():
            records[name] = np.zeros((n, *parts[0].shape[1:]), parts[0].dtype)
            records[name][mask] = np.concatenate(parts)
        return Trajectory(
            self.trajectory, self.group, self._ids[:n].copy(), mask, versions, logprobs, entropy, reward, terminated,
            truncated, self.turns, 0, None, records, info if info is not None else {}, late,
        )  # fmt: skip

    def so_far(self, running: Sequence[Completion]) -> Trajectory:
        """The trajectory if it ended here, after ``running``, which it hasn't taken in; without a reward."""
        ahead = Transcript(self.trajectory, self.group)
        ahead._parts, ahead._ids, ahead._length = list(self._parts), self.tokens(), self._length
        for completion in running:
            ahead.sample(completion)
        return ahead.finish(None)

    def _sampled_runs(self) -> list[tuple[int, int, list[Completion]]]:
        """[(start, end, completions)] of what was sampled; completions with nothing between them go in together."""
        runs: list[tuple[int, int, list[Completion]]] = []
        start = at = 0
        written: list[Completion] = []
        for n, completion in self._parts:
            if completion is not None:
                if not written:
                    start = at
                written.append(completion)
            elif written:
                runs.append((start, at, written))
                written = []
            at += n
        if written:
            runs.append((start, at, written))
        return runs


def _join(parts: list[Array], column: Array) -> None:
    """Write these arrays into ``column`` one after the other."""
    np.concatenate(parts, out=column, casting="same_kind")


def __getattr__(name: str) -> type[TokenBatch]:
    if name == "TokenBatch":
        from stretto.data.batch import TokenBatch

        return TokenBatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
