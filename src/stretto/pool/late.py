"""Rewards that arrive after their trajectory: who waits for one, and whose may go into the next step.

A trajectory that promised a late reward is kept from its completion on. If the reward is there when the trajectory
trains, it goes into the trajectory's own row (``in_time``). Otherwise the trajectory trains on its fast reward, stays
here, and comes back as a row of its own in the first step after its reward has matured (``returned``), once. What is
older than ``lifetime`` steps, never trained, or gets no reward is ``dropped``. Always

    promised = in_time + returned + dropped + pending.

Pure: no clock, no I/O. The runtime tells what happens and logs what comes back.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from stretto.data.columns import concatenate, held_bytes, look_at
from stretto.data.schema import Columns
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import InvariantError
from stretto.pool.group import Group

_NOISE_KEY = attrgetter("noise_key")
_VIEW_BYTES = sys.getsizeof(np.empty(1)[:0])
FRESH = -1
"""``trained_at`` of a trajectory that has not trained."""


@dataclass(slots=True)
class PendingReward:
    """A trajectory that waits for its late reward. ``noise_key``: what its client draws with; ``since``: when it was
    promised, seconds on the run's clock; ``trained_at``: version of the step that trained it (``FRESH``: none yet);
    ``reward``: what has matured, or None; ``columns``: its row, once it has trained and its group is gone."""

    trajectory: Trajectory
    noise_key: int
    since: float
    trained_at: int = FRESH
    reward: float | None = None
    columns: Columns | None = None
    nbytes: int = field(default=0, init=False, compare=False)
    """All that it keeps alive, but for its group's columns; counted by the queue."""

    def count(self) -> None:
        """Count ``nbytes``."""
        t = self.trajectory
        views = _VIEW_BYTES * (5 + (t.rewards is not None) + len(t.records))
        shell = sys.getsizeof(self) + sys.getsizeof(t) + sys.getsizeof(t.records) + views
        self.nbytes = shell + (0 if self.columns is None else held_bytes(self.columns))

    def trained(self, version: int, columns: Columns) -> None:
        """The step that started at ``version`` has trained it; ``columns`` are its row."""
        self.trained_at, self.columns = version, columns
        look_at(self.trajectory, columns, 0)
        self.count()


@dataclass(frozen=True, slots=True)
class StepRewards:
    """What goes into one step: ``in_time`` {id: late reward} of its fresh trajectories, and the promises of those that
    come back, by noise key."""

    in_time: dict[int, float]
    returned: list[PendingReward]

    def __bool__(self) -> bool:
        return bool(self.in_time or self.returned)


class DelayedRewards:
    """The promises of a run, by trajectory id. ``lifetime``: most optimizer steps between a trajectory's training and
    its return."""

    def __init__(self, lifetime: int) -> None:
        self.lifetime = lifetime
        self._pending: dict[int, PendingReward] = {}
        self._taken = StepRewards({}, [])
        self.promised = self.in_time = self.returned = self.dropped = 0
        self.nbytes = 0
        """All that those who wait keep alive, but for the columns of groups that wait in the pool."""

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, id: int) -> bool:
        return id in self._pending

    @property
    def counts(self) -> dict[str, int]:
        """The ledger: promised = in_time + returned + dropped + pending."""
        return {"promised": self.promised, "in_time": self.in_time, "returned": self.returned,
                "dropped": self.dropped, "pending": len(self._pending)}  # fmt: skip

    def restore(self, counts: Mapping[str, int]) -> None:
        """Continue this ledger; those that were pending are added next."""
        self.in_time, self.returned, self.dropped = counts["in_time"], counts["returned"], counts["dropped"]
        self.promised = self.in_time + self.returned + self.dropped

    def pending(self) -> list[PendingReward]:
        """All that are pending, by noise key: an order that doesn't hang on who was submitted first."""
        return sorted(self._pending.values(), key=_NOISE_KEY)

    def add(self, pending: PendingReward) -> None:
        """A trajectory waits for its late reward from now on. Raises ``InvariantError`` if it does already."""
        id = pending.trajectory.id
        if id in self._pending:
            raise InvariantError(f"trajectory {id} promises a second late reward")
        self._pending[id] = pending
        self.promised += 1
        pending.count()
        self.nbytes += pending.nbytes

    def mature(self, id: int, reward: float) -> bool:
        """The late reward of this trajectory is there. False if nobody waits for it (it was dropped): others are not
        touched. Raises ``InvariantError`` if it comes twice."""
        pending = self._pending.get(id)
        if pending is None:
            return False
        if pending.reward is not None:
            raise InvariantError(f"trajectory {id} gets its late reward twice")
        pending.reward = reward
        return True

    def drop(self, ids: Iterable[int]) -> list[int]:
        """These wait no longer; returns those that did."""
        gone = [id for id in ids if self._pop(id)]
        self.dropped += len(gone)
        return gone

    def expire(self, version: int) -> list[int]:
        """Drop what a step that starts at ``version`` would train more than ``lifetime`` steps late."""
        return self.drop([
            p.trajectory.id for p in self.pending()
            if p.trained_at != FRESH and version - p.trained_at > self.lifetime
        ])  # fmt: skip

    def take(self, fresh: Collection[int]) -> StepRewards:
        """What goes into a step that trains the trajectories ``fresh``. They count as pending until it has ended."""
        members = set(fresh)
        matured = [p for p in self.pending() if p.reward is not None]
        self._taken = StepRewards(
            {id: p.reward for p in matured if (id := p.trajectory.id) in members and p.reward is not None},
            [p for p in matured if p.trained_at != FRESH],
        )
        return self._taken

    def step_ended(self, fresh: Iterable[Group], version: int) -> None:
        """The step that started at ``version`` has trained ``fresh`` and what was taken."""
        taken, self._taken = self._taken, StepRewards({}, [])
        for id in [*taken.in_time, *(p.trajectory.id for p in taken.returned)]:
            self._pop(id)
        self.in_time += len(taken.in_time)
        self.returned += len(taken.returned)
        for group in fresh:
            for row, id in enumerate(group.ids):
                if (pending := self._pending.get(id)) is not None:
                    self.nbytes -= pending.nbytes
                    pending.trained(version, group.row(row))
                    self.nbytes += pending.nbytes

    def _pop(self, id: int) -> bool:
        """Take it out; was it there?"""
        pending = self._pending.pop(id, None)
        if pending is not None:
            self.nbytes -= pending.nbytes
        return pending is not None

    def step_failed(self, fresh: Iterable[int]) -> list[int]:
        """The step was skipped and its batch is lost: so is what was taken, and what its trajectories waited for."""
        taken, self._taken = self._taken, StepRewards({}, [])
        return self.drop([*fresh, *(p.trajectory.id for p in taken.returned)])


def with_late(fresh: Columns, taken: StepRewards) -> Columns:
    """The columns of a step: ``fresh`` rows, then a row for each trajectory that comes back. Adds per row
    ``reward_fast``, ``reward_slow`` (NaN: not there) and ``trained_at`` (``FRESH``: in this step)."""
    rows = len(fresh["length"])
    slow = np.array([taken.in_time.get(id, np.nan) for id in fresh["trajectory"].tolist()], np.float64)
    late = _row_columns(fresh["reward"], slow, np.full(rows, FRESH, np.int64))
    if not taken.returned:
        return {**fresh, **late}
    back: Sequence[PendingReward] = taken.returned
    old = concatenate([p.columns for p in back if p.columns is not None])
    again = _row_columns(
        old["reward"], np.array([p.reward for p in back], np.float64), np.array([p.trained_at for p in back], np.int64)
    )
    return concatenate([{**fresh, **late}, {**old, **again}])


def _row_columns(fast: np.ndarray, slow: np.ndarray, trained_at: np.ndarray) -> Columns:
    return {"reward_fast": fast.astype(np.float64), "reward_slow": slow, "trained_at": trained_at}
