"""What a checkpoint says of groups and late rewards, made into what the loop goes on with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import load

from stretto.data.columns import unpack
from stretto.data.schema import TOKENS, Columns
from stretto.data.trajectory import Completion, Trajectory
from stretto.pool.group import Group
from stretto.pool.late import PendingReward


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A trajectory of a group that was unfinished: its ``result``, or None and what it had sampled. ``noise_key``: what
    it draws with."""

    trajectory: int
    noise_key: int
    result: Trajectory | None
    completions: list[Completion]


@dataclass(frozen=True, slots=True)
class SavedGroup:
    """A group that was unfinished. ``prompt``: its fingerprint."""

    id: int
    version: int
    prompt: str
    pin: int | None
    """The one version that served it; its weights are gone now."""
    replaced: int
    created: int
    members: list[SavedMember]
    """Finished ones first."""

    @property
    def ids(self) -> list[int]:
        """Of all its members, finished ones first."""
        return [m.trajectory for m in self.members]

    @property
    def open(self) -> list[SavedMember]:
        """Those that were not done."""
        return [m for m in self.members if m.result is None]

    @property
    def done(self) -> list[Trajectory]:
        """What the others had come to."""
        return [m.result for m in self.members if m.result is not None]

    @property
    def tokens(self) -> int:
        """That finished members sampled."""
        return sum(t.policy_tokens for t in self.done)

    def from_scratch(self) -> SavedGroup:
        """The same, its open members without what they had sampled."""
        return replace(self, members=[m if m.result is not None else replace(m, completions=[]) for m in self.members])


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
        found.append(PendingReward(trajectory, e["noise_key"], e["since"], e["trained_at"], e["reward"], columns))
    return found


def running_group(entry: dict[str, Any], done: list[Trajectory], partial_completions: list[Completion]) -> SavedGroup:
    """An unfinished group; its members are taken off the front of these lists."""
    members = [
        SavedMember(m["trajectory"], m["noise_key"], done.pop(0) if m["done"] else None,
                    [partial_completions.pop(0) for _ in range(m["completions"])])
        for m in entry["members"]
    ]  # fmt: skip
    return SavedGroup(entry["id"], entry["version"], entry["prompt"], entry["pin"], entry["replaced"],
                      entry["created"], members)  # fmt: skip
