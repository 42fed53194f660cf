"""Completed groups that wait to be trained.

Owned by the orchestrator. Which group leaves when is decided in ``control``; the pool only keeps them, in order of
completion, and counts their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.data.columns import concatenate
from stretto.data.schema import TOKENS, Columns, Schema
from stretto.kernel.errors import InvariantError
from stretto.pool.group import Group


class Pool:
    """Ready groups by id, in order of completion; all of one ``schema``."""

    def __init__(self, schema: Schema = TOKENS) -> None:
        self.schema = schema
        self._groups: dict[int, Group] = {}
        self.nbytes = 0
        """All that the waiting groups keep alive."""

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, id: int) -> bool:
        return id in self._groups

    def add(self, group: Group) -> None:
        """Put a group in; each id once."""
        if group.id in self._groups:
            raise InvariantError(f"group {group.id} was put into the pool twice")
        if group.schema is not self.schema and group.schema != self.schema:
            raise InvariantError(f"group {group.id} holds {group.schema.name}, this pool {self.schema.name}")
        self._groups[group.id] = group
        self.nbytes += group.nbytes

    def get(self, ids: Sequence[int]) -> list[Group]:
        """These groups, in this order. Raises ``InvariantError`` if one isn't there."""
        missing = [i for i in ids if i not in self._groups]
        if missing:
            raise InvariantError(f"groups {missing} are not in the pool")
        return [self._groups[i] for i in ids]

    def take(self, ids: Sequence[int]) -> list[Group]:
        """Take these groups out, in this order; the others stay as they are."""
        groups = self.get(ids)
        for group in groups:
            del self._groups[group.id]
            self.nbytes -= group.nbytes
        return groups

    def groups(self) -> list[Group]:
        """All waiting groups, in order of completion."""
        return list(self._groups.values())


def columns_of(groups: Sequence[Group]) -> Columns:
    """The columns of these groups one after another: a batch, or what a checkpoint saves."""
    return concatenate([group.columns for group in groups])
