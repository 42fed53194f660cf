"""What a checkpoint says of groups and late rewards, made into what the loop goes on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load

from stretto.data.columns import unpack
from stretto.data.schema import TOKENS, Columns
from stretto.data.trajectory import Completion, Trajectory
from stretto.pool.group import Group
from stretto.pool.late import PendingReward


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """A group that was unfinished: members that were done, and what the open ones had sampled. ``prompt``: its
    fingerprint."""

    id: int
    version: int
    prompt: str
    pin: int | None
    """The one version that served it; its weights are gone now."""
    replaced: int
    created: int
    done: list[Trajectory]
    open: dict[int, list[Completion]]

    @property
    def ids(self) -> list[int]:
        """Of all its members, finished ones first."""
        return [*(t.id for t in self.done), *self.open]

    @property
    def tokens(self) -> int:
        """That finished members sampled."""
        return sum(t.policy_tokens for t in self.done)


def ready_groups(entries: list[dict[str, Any]], columns: Columns) -> list[Group]:
    """The ready groups, each with columns of its own."""
    groups, at = [], 0
    for entry in entries:
        rows = range(at, at + entry["size"])
        groups.append(Group(entry["id"], TOKENS.select(columns, rows), entry["version"], entry["complete"]))
        at += entry["size"]
    return groups


def late_rewards(path: Path, entries: list[dict[str, Any]], untrained: list[Trajectory]) -> list[PendingReward]:
    """Who waits for a late reward: those that trained have their rows in a file of their own, the others are members of
    groups (``untrained``)."""
    if not entries:
        return []
    trained = load((path / "late.safetensors").read_bytes())
    rows = {id: row for row, id in enumerate(trained["trajectory"].tolist())} if len(trained["length"]) else {}
    fresh = {t.id: t for t in untrained}
    found = []
    for e in entries:
        id = e["trajectory"]
        columns = TOKENS.select(trained, [rows[id]]) if id in rows else None
        (trajectory,) = [fresh[id]] if columns is None else unpack(columns)
        trajectory.late = True
        found.append(PendingReward(trajectory, e["since"], e["trained_at"], e["reward"], columns))
    return found


def running_group(entry: dict[str, Any], done: list[Trajectory], partial_completions: list[Completion]) -> SavedGroup:
    """An unfinished group; its members are taken off the front of these lists."""
    finished = [done.pop(0) for _ in range(entry["done"])]
    open_ = {m["trajectory"]: [partial_completions.pop(0) for _ in range(m["completions"])] for m in entry["open"]}
    return SavedGroup(entry["id"], entry["version"], entry["prompt"], entry["pin"], entry["replaced"],
                      entry["created"], finished, open_)  # fmt: skip
