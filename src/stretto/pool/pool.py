"""Completed groups that wait to be trained.

Owned by the orchestrator. Which group leaves when is decided in ``control``; the pool only keeps them, in order of
completion, and counts their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.errors import InvariantError
from stretto.pool.columns import pack
from stretto.trajectory import Group


class Pool:
    """Ready groups by id, in order of completion."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group) -> None:
        """Put a group in; each id once."""
        if group.id in self._groups:
            raise InvariantError(f"group {group.id} was put into the pool twice")
        group.columns = pack(group.trajectories)  # now, while no step waits for it
        self._groups[group.id] = group
        self.nbytes += group.nbytes

    def take(self, ids: Sequence[int]) -> list[Group]:
        """Take these groups out, in this order; the others stay as they are."""
        missing = [i for i in ids if i not in self._groups]
        if missing:
            raise InvariantError(f"groups {missing} are not in the pool")
        groups = [self._groups.pop(i) for i in ids]
        self.nbytes -= sum(g.nbytes for g in groups)
        return groups

    def groups(self) -> list[Group]:
        """All waiting groups, in order of completion."""
        return list(self._groups.values())
