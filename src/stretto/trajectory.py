"""What flows through the loop: completions, transcripts, trajectories, groups; and the staleness arithmetic.

Invariants, checked when a value is built:

* every per-token array of a trajectory has one length;
* every policy token has the version that sampled it, its behaviour log-probability and its entropy;
* versions never decrease inside a trajectory;
* masks come from roles (who wrote the token), never from token values.

Numbers are NumPy arrays: this module stays free of torch, so that the orchestrator starts fast.
``TokenBatch`` (torch) lives in ``stretto.batch`` and is re-exported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import DataError, InvariantError

if TYPE_CHECKING:
    from stretto.batch import TokenBatch as TokenBatch

Ints = NDArray[np.int32]
Floats = NDArray[np.floating[Any]]


class Ending(StrEnum):
    """How a submitted trajectory ends; each ends exactly once."""

    TRAINED = "trained"
    REJECTED = "rejected"
    FILTERED = "filtered"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Completion:
    """Tokens that an engine sampled for one request.

    ``tokens``, ``versions`` [n] int; ``logp`` [n] log-probability under the distribution really sampled from;
    ``entropy`` [n] nats, of that distribution; ``finish`` is ``stop``, ``length`` or ``aborted``;
    ``records`` holds optional per-token arrays ([n, K]), each an increment like ``tokens``.
    """

    tokens: Ints
    logp: Floats
    entropy: Floats
    versions: Ints
    finish: str
    records: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not (len(self.logp) == len(self.entropy) == len(self.versions) == n):
            raise InvariantError(
                f"completion: {n} tokens, {len(self.logp)} log-probabilities, "
                f"{len(self.entropy)} entropies, {len(self.versions)} versions"
            )
        for name, values in self.records.items():
            if len(values) != n:
                raise InvariantError(f"completion: record {name!r} has {len(values)} rows for {n} tokens")


def join(first: Completion, second: Completion) -> Completion:
    """The completion of a request that was aborted and went on later."""
    return Completion(
        np.concatenate([first.tokens, second.tokens]),
        np.concatenate([first.logp, second.logp]),
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

    Masked-out places of ``versions``, ``logp`` and ``entropy`` hold anything. ``reward`` None means absent:
    such a trajectory never trains. ``terminated`` and ``truncated`` stay apart (truncation bootstraps).
    ``rewards`` [T] optional: rewards per token for environments that have them; their sum is ``reward``.
    """

    id: int
    group: int
    tokens: Ints
    mask: NDArray[np.bool_]
    versions: Ints
    logp: Floats
    entropy: Floats
    reward: float | None
    terminated: bool = True
    truncated: bool = False
    turns: int = 1
    version_complete: int = 0
    rewards: Floats | None = None
    records: dict[str, NDArray[Any]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        for name in ("mask", "versions", "logp", "entropy", "rewards"):
            values = getattr(self, name)
            if values is not None and len(values) != n:
                raise InvariantError(f"trajectory {self.id}: {name} has {len(values)} entries for {n} tokens")
        sampled = self.versions[self.mask]
        if (sampled[1:] < sampled[:-1]).any():
            raise InvariantError(f"trajectory {self.id}: versions decrease: {sampled.tolist()}")

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return int(self.mask.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self.tokens, self.mask, self.versions, self.logp, self.entropy, *self.records.values()]
        return sum(a.nbytes for a in arrays)

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


@dataclass(slots=True)
class Group:
    """Trajectories of one prompt that share a baseline. ``version_dispatch``: oldest version that its tokens
    may have; the group must train at a step that starts at most ``lag_bound`` versions later."""

    id: int
    trajectories: list[Trajectory]
    version_dispatch: int
    version_complete: int
    columns: dict[str, NDArray[Any]] | None = field(default=None, repr=False, compare=False)
    """The same as columns (``stretto.pool.columns``), packed when the group entered the pool."""

    @property
    def nbytes(self) -> int:
        """Bytes of all trajectories."""
        return sum(t.nbytes for t in self.trajectories)


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
        self._ids = np.empty(64, np.int32)  # what is written is never written again, so slices of it may be handed out
        self._length = 0
        self.turns = 0

    def __len__(self) -> int:
        return self._length

    def observe(self, tokens: Sequence[int] | Ints) -> None:
        """Append tokens that were not sampled: they are never trained on."""
        ids = np.asarray(tokens, dtype=np.int32)
        if ids.ndim != 1:
            raise DataError(f"trajectory {self.trajectory}: tokens must be one list of ids, got {ids.shape}")
        self._append(ids, None)

    def sample(self, completion: Completion) -> None:
        """Append what the engine sampled."""
        self._append(completion.tokens, completion)
        self.turns += 1

    def _append(self, ids: Ints, completion: Completion | None) -> None:
        n = len(ids)
        end = self._length + n
        if end > len(self._ids):
            grown = np.empty(2 * end, np.int32)
            grown[: self._length] = self._ids[: self._length]
            self._ids = grown
        self._ids[self._length : end] = ids
        self._parts.append((n, completion))
        self._length = end

    def tokens(self) -> Ints:
        """All token ids so far [T]."""
        return self._ids[: self._length]

    def finish(
        self,
        reward: float | None,
        *,
        terminated: bool = True,
        truncated: bool = False,
        info: dict[str, Any] | None = None,
    ) -> Trajectory:
        """The finished trajectory."""
        tokens = self.tokens().copy()
        n = len(tokens)
        completions = [c for _, c in self._parts if c is not None]
        dtype = completions[0].logp.dtype if completions else np.dtype(np.float32)
        mask = np.zeros(n, np.bool_)
        versions = np.zeros(n, np.int32)
        logp = np.zeros(n, dtype)
        entropy = np.zeros(n, dtype)
        names = completions[0].records.keys() if completions else ()
        records = {
            name: np.zeros((n, *completions[0].records[name].shape[1:]), completions[0].records[name].dtype)
            for name in names
        }
        at = 0
        for sampled, run in groupby(self._parts, key=lambda part: part[1] is not None):
            counts, written = zip(*run, strict=True)
            end = at + sum(counts)
            if sampled:  # completions with nothing between them go in together
                mask[at:end] = True
                np.concatenate([c.versions for c in written], out=versions[at:end], casting="same_kind")
                np.concatenate([c.logp for c in written], out=logp[at:end], casting="same_kind")
                np.concatenate([c.entropy for c in written], out=entropy[at:end], casting="same_kind")
                for name in names:
                    parts = [c.records[name] for c in written]
                    np.concatenate(parts, out=records[name][at:end], casting="same_kind")
            at = end
        return Trajectory(
            self.trajectory, self.group, tokens, mask, versions, logp, entropy, reward,
            terminated=terminated, truncated=truncated, turns=self.turns, records=records, info=info or {},
        )  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "TokenBatch":
        from stretto.batch import TokenBatch

        return TokenBatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
