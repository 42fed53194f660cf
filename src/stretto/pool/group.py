"""A complete group as the pool holds it: columns, packed once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from stretto.data.columns import held_bytes, look_at, pack, row_of
from stretto.data.schema import TOKENS, Columns, Schema
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import InvariantError


@dataclass(slots=True, eq=False)
class Group:
    """Trajectories of one prompt that share a baseline, as columns of ``schema``. ``version_dispatch``: oldest version
    that its steps may have; the group must train at a step that starts at most ``lag_bound`` versions later.
    ``version_complete``: published when it completed. ``nbytes``: all that it keeps alive."""

    id: int
    columns: Columns = field(repr=False)
    version_dispatch: int
    version_complete: int
    schema: Schema = field(default=TOKENS, repr=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sys.getsizeof(self) + held_bytes(self.columns)

    @classmethod
    def of(cls, id: int, trajectories: Sequence[Trajectory], version_dispatch: int, version_complete: int) -> Self:
        """Pack these, which are complete now. Whoever waits for a late reward of one goes on with a view of its row."""
        for trajectory in trajectories:
            trajectory.version_complete = version_complete
        group = cls(id, pack(trajectories), version_dispatch, version_complete)
        for row, trajectory in enumerate(trajectories):
            if trajectory.late:
                look_at(trajectory, group.columns, row)
        return group

    def __len__(self) -> int:
        return len(self.columns["length"])

    @property
    def ids(self) -> list[int]:
        """Of its trajectories, in order."""
        return [] if not len(self) else self.columns["trajectory"].tolist()

    @property
    def policy_steps(self) -> int:
        """Steps that the policy took (tokens that it sampled), of all trajectories."""
        return 0 if not len(self) else int(np.count_nonzero(self.columns["mask"]))

    def row(self, row: int) -> Columns:
        """The columns of one trajectory, in arrays of their own."""
        return self.schema.select(self.columns, [row])

    def trajectory(self, row: int) -> Trajectory:
        """One trajectory of tokens; its arrays are views."""
        if self.schema is not TOKENS:
            raise InvariantError(f"group {self.id} holds {self.schema.name}, no tokens")
        return row_of(self.columns, row, int(self.columns["length"][: row + 1].sum()))

    def trajectories(self) -> list[Trajectory]:
        """All of them, as views."""
        return [self.trajectory(row) for row in range(len(self))]
