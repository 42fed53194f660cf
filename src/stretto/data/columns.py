"""Trajectories of tokens as columns (``pool.schema``): one flat array per field plus lengths, the form in which they
wait, move and are saved.

Pickling thousands of small arrays costs more than the arrays; a handful of flat ones costs nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.data.arrays import Array
from stretto.data.modes import Finish
from stretto.data.records import UNRECORDED, padded_records
from stretto.data.schema import RECORD, Columns
from stretto.data.trajectory import Completion, Trajectory
from stretto.kernel.errors import InvariantError

_FINISH = {reason.value: reason for reason in Finish}
"""Making a member of an enum takes ten times as long as looking it up."""


def pack(trajectories: Sequence[Trajectory]) -> Columns:
    """Columns of these trajectories, in order."""
    if not trajectories:
        return {"length": np.zeros(0, np.int64)}
    lengths = [len(t.tokens) for t in trajectories]
    mask = np.concatenate([t.mask for t in trajectories])
    columns: Columns = {
        "length": np.array(lengths, np.int64),
        "trajectory": np.array([t.id for t in trajectories], np.int64),
        "tokens": np.concatenate([t.tokens for t in trajectories]),
        "mask": mask,
        "versions": np.concatenate([t.versions for t in trajectories]),
        "logp_behavior": np.concatenate([t.logprobs for t in trajectories]),
        "entropy": np.concatenate([t.entropy for t in trajectories]),
        "rewards": _rewards(trajectories, lengths, mask),
        "reward": np.array([np.nan if t.reward is None else t.reward for t in trajectories], np.float64),
        "terminated": np.array([t.terminated for t in trajectories], np.bool_),
        "truncated": np.array([t.truncated for t in trajectories], np.bool_),
        "turns": np.array([t.turns for t in trajectories], np.int32),
        "version_complete": np.array([t.version_complete for t in trajectories], np.int32),
        "group": np.array([t.group for t in trajectories], np.int64),
    }
    for name, parts in padded_records([(len(t.tokens), t.records) for t in trajectories]).items():
        columns[f"{RECORD}{name}"] = np.concatenate(parts)
    return columns


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Columns of several packs, in order; all must have the same fields (but for ``records.UNRECORDED``)."""
    if not parts:
        return pack([])
    names = set().union(*parts)
    optional = {f"{RECORD}{name}" for name in UNRECORDED} & names
    if optional and any(not optional <= part.keys() for part in parts):
        given = [(int(p["length"].sum()), {n[len(RECORD) :]: p[n] for n in optional & p.keys()}) for p in parts]
        filled = padded_records(given)
        parts = [{**p, **{f"{RECORD}{n}": v[i] for n, v in filled.items()}} for i, p in enumerate(parts)]
    if any(set(part) != names for part in parts):
        raise InvariantError(f"columns differ: {sorted(set().union(*parts) ^ names)} are not in all parts")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _rewards(
    trajectories: Sequence[Trajectory], lengths: Sequence[int], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Reward per token, flat; without per-token rewards all of a trajectory's sits on its last policy token."""
    rewards = np.zeros(len(mask), np.float64)
    policy, start = mask.tobytes(), 0
    for trajectory, length in zip(trajectories, lengths, strict=True):
        end = start + length
        if trajectory.rewards is not None:
            rewards[start:end] = trajectory.rewards
        elif trajectory.reward is not None:
            last = policy.rfind(1, start, end)
            if last >= 0:
                rewards[last] = trajectory.reward
        start = end
    return rewards


def row_of(columns: Columns, row: int, end: int) -> Trajectory:
    """The trajectory in this row, whose last step is before ``end``; its arrays are views (``info`` is not kept)."""
    s = slice(end - int(columns["length"][row]), end)
    reward = float(columns["reward"][row])
    return Trajectory(
        id=int(columns["trajectory"][row]),
        group=int(columns["group"][row]),
        tokens=columns["tokens"][s],
        mask=columns["mask"][s],
        versions=columns["versions"][s],
        logprobs=columns["logp_behavior"][s],
        entropy=columns["entropy"][s],
        reward=None if np.isnan(reward) else reward,
        terminated=bool(columns["terminated"][row]),
        truncated=bool(columns["truncated"][row]),
        turns=int(columns["turns"][row]),
        version_complete=int(columns["version_complete"][row]),
        rewards=columns["rewards"][s],
        records={name[len(RECORD) :]: columns[name][s] for name in columns if name.startswith(RECORD)},
    )


def unpack(columns: Columns) -> list[Trajectory]:
    """All trajectories, as views (``row_of``)."""
    ends = np.cumsum(columns["length"]).tolist()
    return [row_of(columns, row, end) for row, end in enumerate(ends)]


def look_at(trajectory: Trajectory, columns: Columns, row: int) -> None:
    """Let this trajectory, whoever holds it, look at its row in ``columns`` instead of keeping arrays of its own (or
    its ``info``)."""
    view = row_of(columns, row, int(columns["length"][: row + 1].sum()))
    for name in ("tokens", "mask", "versions", "logprobs", "entropy"):
        setattr(trajectory, name, getattr(view, name))
    if trajectory.rewards is not None:
        trajectory.rewards = view.rewards
    trajectory.records = {name: view.records[name] for name in trajectory.records}
    trajectory.info = {}


def held_bytes(columns: Mapping[str, Array]) -> int:
    """Bytes that these arrays keep alive: their own objects, and each buffer once, whole, however little of it they
    look at."""
    total, seen = sys.getsizeof(columns), set()
    for array in columns.values():
        total += sys.getsizeof(array)
        owner: object = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if owner is not array and id(owner) not in seen:
            seen.add(id(owner))
            total += sys.getsizeof(owner)
    return total


def pack_completions(finished: Sequence[tuple[int, Completion]]) -> Columns:
    """Finished requests as columns: ``id`` [n], ``length`` [n], ``finish`` [n], flat per-token columns."""
    if not finished:
        return {"id": np.zeros(0, np.int64)}
    columns: Columns = {
        "id": np.fromiter((i for i, _ in finished), np.int64, len(finished)),
        "length": np.fromiter((len(c.tokens) for _, c in finished), np.int64, len(finished)),
        "finish": np.array([c.finish for _, c in finished]),
        "tokens": np.concatenate([c.tokens for _, c in finished]),
        "logprobs": np.concatenate([c.logprobs for _, c in finished]),
        "entropy": np.concatenate([c.entropy for _, c in finished]),
        "versions": np.concatenate([c.versions for _, c in finished]),
    }
    names = set().union(*(c.records.keys() for _, c in finished))
    for name in sorted(names):
        columns[f"{RECORD}{name}"] = np.concatenate([c.records[name] for _, c in finished if name in c.records])
        columns[f"has.{name}"] = np.array([name in c.records for _, c in finished])
    return columns


def unpack_completions(columns: Columns) -> list[tuple[int, Completion]]:
    """Inverse of ``pack_completions``."""
    ids = columns["id"].tolist()
    if not ids:
        return []
    lengths, finish = columns["length"].tolist(), columns["finish"].tolist()
    names = [name[len(RECORD) :] for name in columns if name.startswith(RECORD)]
    offsets = dict.fromkeys(names, 0)
    out, at = [], 0
    for row, (request, length) in enumerate(zip(ids, lengths, strict=True)):
        s = slice(at, at + length)
        at += length
        records = {}
        for name in names:
            if columns[f"has.{name}"][row]:
                o = offsets[name]
                records[name] = columns[f"{RECORD}{name}"][o : o + length]
                offsets[name] = o + length
        out.append(
            (request, Completion(columns["tokens"][s], columns["logprobs"][s], columns["entropy"][s],
                                 columns["versions"][s], _FINISH[finish[row]], records))
        )  # fmt: skip
    return out
