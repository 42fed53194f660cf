"""Which of the rows that are ready go into a batch: pure functions of what is ready.

A sampler says apart which rows are served and which count as consumed, as TransferQueue's do (AsyncFlow, arXiv
2507.01663): one that draws with replacement serves rows without consuming them. The store remembers what it answered
to a rank, so that every sampler is rank-aware (``RowIndex.request``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stretto.data.arrays import Ints
from stretto.kernel.errors import InvariantError
from stretto.pool.balance import largest_differencing


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """Rows that a task may have now, in order of arrival: ``index`` [n], ``group`` [n], and their ``metadata`` by name,
    each [n]."""

    index: Ints
    group: Ints
    metadata: Mapping[str, Ints]


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """``shares``: indices for each rank that the sampler decides for, in the order of ranks (a single one: for the rank
    that asked). ``consumed``: indices that the task never gets again."""

    shares: tuple[Ints, ...]
    consumed: Ints


class Sampler(Protocol):
    """Chooses rows of a batch."""

    @property
    def ranks(self) -> int:
        """For how many data-parallel ranks one decision counts; 1: for the one that asks."""
        ...

    def sample(self, ready: Ready, count: int) -> Sampled | None:
        """``count`` rows for a rank out of those that are ready, or None while there are too few."""
        ...


@dataclass(frozen=True)
class Sequential:
    """The rows that came first."""

    ranks: int = 1

    def sample(self, ready: Ready, count: int) -> Sampled | None:
        """The first ``count``."""
        if len(ready.index) < count:
            return None
        first = ready.index[:count]
        return Sampled((first,), first)


@dataclass(frozen=True)
class GroupComplete:
    """Whole groups of ``size`` rows: all rows of a prompt or none."""

    size: int
    ranks: int = 1

    def sample(self, ready: Ready, count: int) -> Sampled | None:
        """The first ``count / size`` groups that are complete, each in order of arrival. Raises ``InvariantError``
        unless ``count`` is a multiple of ``size``."""
        groups = whole_groups(ready, self.size, count)
        if groups is None:
            return None
        chosen = ready.index[groups.ravel()]
        return Sampled((chosen,), chosen)


@dataclass(frozen=True)
class LengthBalanced:
    """Whole groups of ``size`` rows, divided among ``ranks`` so that each gets equally many groups and nearly equal
    sums of the metadata ``by``: the largest-differencing method on the groups' sums."""

    size: int
    ranks: int
    by: str = "tokens"

    def sample(self, ready: Ready, count: int) -> Sampled | None:
        """``count`` rows for each rank. Raises ``InvariantError`` unless ``count`` is a multiple of ``size``, or if the
        rows have no such metadata."""
        if self.by not in ready.metadata:
            raise InvariantError(f"rows have no metadata {self.by!r} to be balanced by; annotate({self.by}=...) them")
        groups = whole_groups(ready, self.size, count * self.ranks)
        if groups is None:
            return None
        weights = ready.metadata[self.by][groups].sum(1).tolist()
        parts = largest_differencing(weights, self.ranks, equal_counts=True)
        shares = tuple(ready.index[groups[part].ravel()] for part in parts)
        return Sampled(shares, np.concatenate(shares))


def whole_groups(ready: Ready, size: int, count: int) -> Ints | None:
    """Positions [count / size, size] in ``ready`` of the first groups that are complete, or None if they are too few.
    Raises ``InvariantError`` if ``count`` isn't a multiple of ``size`` or a group has more than ``size`` rows."""
    if size < 1 or count % size:
        raise InvariantError(f"{count} rows can't be whole groups of {size}: ask for a multiple of {size}")
    _, first, inverse, members = np.unique(ready.group, return_index=True, return_inverse=True, return_counts=True)
    if len(members) and members.max() > size:
        group = int(ready.group[first[int(members.argmax())]])
        raise InvariantError(f"group {group} has {members.max()} rows, and groups of {size} were asked for")
    whole = np.flatnonzero(members == size)
    whole = whole[np.argsort(first[whole])][: count // size]
    if len(whole) * size < count:
        return None
    by_group = np.argsort(inverse, kind="stable")
    begins = np.cumsum(members) - members
    return np.asarray(by_group[begins[whole][:, None] + np.arange(size)])
