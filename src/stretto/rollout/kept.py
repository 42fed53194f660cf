"""What an engine keeps of a trajectory between two of its turns, so that the next one prefills only what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    tokens: int
    version: int
    pinned: bool
    state: T


class KeptTurns(Generic[T]):
    """A ``state`` for each trajectory, of at most ``limit`` tokens in all: those that were kept longest ago go first.

    What was computed with weights that no longer serve is of no use: it is dropped when others are loaded, unless its
    trajectory is ``pinned`` to them. So a turn samples what it would have sampled without this.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._tokens = limit, 0
        self._kept: OrderedDict[int, _Entry[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def fits(self, tokens: int) -> bool:
        """Would ``put`` keep so many?"""
        return tokens <= self._limit

    def put(self, trajectory: int, tokens: int, version: int, pinned: bool, state: T) -> None:
        """Keep this for the next turn of a trajectory."""
        if (before := self._kept.pop(trajectory, None)) is not None:
            self._tokens -= before.tokens
        if tokens > self._limit:
            return
        self._kept[trajectory] = _Entry(tokens, version, pinned, state)
        self._tokens += tokens
        while self._tokens > self._limit:
            self._tokens -= self._kept.popitem(last=False)[1].tokens

    def take(self, trajectory: int, version: int) -> tuple[int, T] | None:
        """(tokens, state) that were kept of this trajectory under ``version``; they are kept no longer."""
        entry = self._kept.pop(trajectory, None)
        if entry is None:
            return None
        self._tokens -= entry.tokens
        return (entry.tokens, entry.state) if entry.version == version else None

    def loaded(self) -> None:
        """Other weights serve from now on."""
        self._drop([trajectory for trajectory, entry in self._kept.items() if not entry.pinned])

    def freed(self, versions: Collection[int]) -> None:
        """Nobody will ask for these versions any more."""
        self._drop([trajectory for trajectory, entry in self._kept.items() if entry.version in versions])

    def _drop(self, trajectories: list[int]) -> None:
        for trajectory in trajectories:
            self._tokens -= self._kept.pop(trajectory).tokens
