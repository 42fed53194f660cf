"""Checkpoints: one directory each, made whole by an atomic rename; the manifest lists every part with its checksum.

A checkpoint is taken between two learner steps, while rollouts go on. The learner saves itself; then engines tell
their partial rollouts; then, in one instant of the loop, the rest is noted: pool, running groups, data frontier, byte
offsets of the logs. Safetensors and JSON only: loading runs no code.

What a resumed run repeats exactly: weights, optimizer, version and step labels, the set of prompts, the tokens that
unfinished rollouts had. What it doesn't: timing. A rollout that was in flight is prefilled again, so the weight swap
that it meets next may hit it at another token, and groups may complete in another order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from stretto.config.schema import RunConfig
from stretto.data.columns import concatenate, pack, pack_completions, unpack, unpack_completions
from stretto.data.modes import Finish
from stretto.data.schema import Columns
from stretto.data.trajectory import Completion
from stretto.kernel.errors import CheckpointError, StrettoError
from stretto.kernel.logfile import GZIP, PLAIN
from stretto.pool.group import Group
from stretto.pool.late import PendingReward
from stretto.pool.pool import columns_of
from stretto.runtime.inputs import Inputs, prompt_of
from stretto.runtime.members import RunningGroup, snapshot_member
from stretto.runtime.saved import SavedGroup, late_rewards, ready_groups, running_group

FORMAT = 4
"""2: late rewards. 3: today's names of records and settings. 4: trajectories are numbered through the run."""
_FINISH = (Finish.STOP, Finish.LENGTH, Finish.ABORTED)
_NAME = re.compile(r"step-(\d+)(?:\.(\d+))?$")
_OLD = "old_logprobs.safetensors"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The orchestrator's state in one instant."""

    version: int
    next_task: int
    next_trajectory: int
    clock_s: float
    offsets: dict[str, int]
    ready: list[Group]
    running: list[RunningGroup]
    partial_completions: dict[int, Completion]
    keep_partial: bool
    late: list[PendingReward] = field(default_factory=list)
    late_counts: dict[str, int] = field(default_factory=dict)
    old_logprobs: Columns | None = None
    inputs: Inputs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """A loaded checkpoint."""

    version: int
    next_task: int
    next_trajectory: int
    clock_s: float
    offsets: dict[str, int]
    learner_dir: Path
    ready: list[Group]
    running: list[SavedGroup]
    old_logprobs: Columns | None
    """What an old-policy route had scored (``stretto.pool.old_logprobs``)."""
    late: list[PendingReward]
    """Trajectories that wait for their late reward; those that haven't trained are members of the groups above."""
    late_counts: dict[str, int]
    """What became of all the others; empty if the objective takes no late rewards."""
    inputs: Inputs
    """Fingerprints of what the run depended on; empty if an older Stretto saved it."""

    @property
    def log_bytes(self) -> int | None:
        """Length of the event log when the checkpoint was made, compressed if it is."""
        return next((self.offsets[name] for name in (GZIP, PLAIN) if name in self.offsets), None)


async def save_checkpoint(
    directory: Path,
    save_learner: Callable[[Path], Awaitable[None]],
    partial_completions: Callable[[], Awaitable[dict[int, Completion]]],
    snapshot: Callable[[dict[int, Completion]], Snapshot],
    config: RunConfig,
) -> None:
    """Write one checkpoint and delete those beyond ``keep_checkpoints``. A failure leaves the earlier ones alone."""
    directory.mkdir(parents=True, exist_ok=True)
    for left_over in directory.glob(".tmp-*"):
        shutil.rmtree(left_over)
    temporary = directory / f".tmp-{os.getpid()}"
    try:
        (temporary / "learner").mkdir(parents=True)
        await save_learner(temporary / "learner")
        parts = await partial_completions()
        state = snapshot(parts)  # no await until it is complete: one instant of the loop
        arrays, manifest = _describe(state)
        write = partial(_write, directory, temporary, arrays, manifest)
        if isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
            await asyncio.to_thread(write)  # wall clock: checksums and fsync must not block the loop
        else:
            write()
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        last = latest(directory)
        hint = f"the last complete checkpoint is {last}" if last is not None else "there is no earlier checkpoint"
        raise StrettoError(f"can't write a checkpoint to {directory}: {error.strerror or error}; {hint}") from error
    for old in _complete(directory)[: -config.keep_checkpoints]:
        shutil.rmtree(old)


def _describe(state: Snapshot) -> tuple[dict[str, Columns], dict[str, Any]]:
    done, saved_members, running = [], [], []
    for group in state.running:
        members = []
        for member in sorted(group.members, key=lambda m: not m.over):  # finished ones first
            completions: list[Completion] = []
            if member.result is not None:
                done.append(member.result)
            elif member.over:
                continue
            elif state.keep_partial:
                completions = snapshot_member(member, state.partial_completions)
            members.append({"trajectory": member.trajectory, "noise_key": member.client.noise_key,
                            "done": member.over, "completions": len(completions)})  # fmt: skip
            saved_members += [(member.trajectory, c) for c in completions]
        running.append(
            {"id": group.id, "version": group.version, "replaced": group.replaced, "created": group.created,
             "members": members, "prompt": prompt_of(group.task), "pin": group.pin}
        )  # fmt: skip
    manifest = {
        "format": FORMAT,
        "version": state.version,
        "next_task": state.next_task,
        "next_trajectory": state.next_trajectory,
        "clock_s": state.clock_s,
        "offsets": state.offsets,
        "ready": [
            {"id": g.id, "version": g.version_dispatch, "complete": g.version_complete, "size": len(g)}
            for g in state.ready
        ],
        "running": running,
        "late": [
            {"trajectory": p.trajectory.id, "noise_key": p.noise_key, "since": p.since, "trained_at": p.trained_at,
             "reward": p.reward}
            for p in state.late
        ],
        "late_counts": state.late_counts,
        "inputs": state.inputs,
    }  # fmt: skip
    partial = pack_completions(saved_members)
    if saved_members:
        partial["finish"] = np.array([_FINISH.index(c.finish) for _, c in saved_members], np.int8)
    arrays = {
        "ready.safetensors": columns_of(state.ready),
        "done.safetensors": pack(done),
        "partial.safetensors": partial,
        **({} if state.old_logprobs is None else {_OLD: state.old_logprobs}),
        "late.safetensors": concatenate([p.columns for p in state.late if p.columns is not None]),
    }
    return arrays, manifest


def _write(directory: Path, temporary: Path, arrays: dict[str, Columns], manifest: dict[str, Any]) -> None:
    for name, columns in arrays.items():
        (temporary / name).write_bytes(save({key: np.ascontiguousarray(v) for key, v in columns.items()}))
    files = sorted(p for p in temporary.rglob("*") if p.is_file())
    manifest["files"] = {str(p.relative_to(temporary)): _fingerprint(p) for p in files}
    target = temporary / "manifest.json"
    target.write_text(json.dumps(manifest, indent=1))
    for path in [*files, target, temporary]:
        _sync(path)
    name = f"step-{manifest['version']:06d}"
    earlier = sorted((p for p in directory.glob(f"{name}*") if _NAME.search(p.name)), key=_order)
    # the same step saved again (at the end of a run, after an interruption): a name of its own, so that at any
    # instant a complete checkpoint is there
    final = directory / (name if not earlier else f"{name}.{_order(earlier[-1])[1] + 1}")
    temporary.rename(final)
    _sync(directory)
    for old in earlier:
        shutil.rmtree(old)


def _order(path: Path) -> tuple[int, int]:
    found = _NAME.search(path.name)
    assert found is not None
    return int(found.group(1)), int(found.group(2) or 0)


def _fingerprint(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return {"bytes": path.stat().st_size, "xxh3": digest.hexdigest()}


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _complete(directory: Path) -> list[Path]:
    found = [p for p in directory.glob("step-*") if _NAME.search(p.name) and (p / "manifest.json").exists()]
    return sorted(found, key=_order)


def latest(directory: Path) -> Path | None:
    """The newest complete checkpoint of a run's ``checkpoints`` directory."""
    complete = _complete(directory)
    return complete[-1] if complete else None


def unfinished(path: Path) -> int:
    """Trajectories of the groups that were not trained when this checkpoint was made: a resumed run goes on with
    them."""
    manifest = json.loads((path / "manifest.json").read_text())
    members = [len(g["members"]) for g in manifest["running"]]
    return sum(members) + sum(int(g["size"]) for g in manifest["ready"])


def load_checkpoint(path: Path) -> Restored:
    """Read and verify a checkpoint; ``CheckpointError`` names the file that is missing, cut or changed."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {manifest['format']}, and this Stretto reads format {FORMAT}: go on with the "
                "Stretto that wrote it, or start a new run"
            )
        for name, expected in manifest["files"].items():
            if not (path / name).exists():
                raise CheckpointError(f"{path / name} is missing. {_other(path)}")
            if _fingerprint(path / name) != expected:
                raise CheckpointError(f"{path / name} is not what was saved (size or checksum differ). {_other(path)}")
        ready = load((path / "ready.safetensors").read_bytes())
        done = unpack(load((path / "done.safetensors").read_bytes()))
        partial_columns = dict(load((path / "partial.safetensors").read_bytes()))
        if "finish" in partial_columns:
            partial_columns["finish"] = np.array([_FINISH[i] for i in partial_columns["finish"]])
        partial_completions = [c for _, c in unpack_completions(partial_columns)]
        groups = ready_groups(manifest["ready"], ready)
        running = [running_group(entry, done, partial_completions) for entry in manifest["running"]]
        return Restored(
            version=manifest["version"],
            next_task=manifest["next_task"],
            next_trajectory=manifest["next_trajectory"],
            clock_s=manifest["clock_s"],
            offsets=manifest["offsets"],
            learner_dir=path / "learner",
            old_logprobs=dict(load((path / _OLD).read_bytes())) if _OLD in manifest["files"] else None,
            ready=groups,
            running=running,
            late=late_rewards(path, manifest["late"], [t for g in groups for t in g.trajectories()]
                       + [t for g in running for t in g.done]),
            late_counts=manifest["late_counts"],
            inputs=manifest["inputs"],
        )  # fmt: skip
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} can't be read: {type(error).__name__}: {error}. {_other(path)}") from error


def check_logs(run: Path, restored: Restored) -> None:
    """Raise ``CheckpointError`` if a log of the run is shorter than it was when the checkpoint was made."""
    for name, offset in restored.offsets.items():
        size = (run / name).stat().st_size if (run / name).exists() else 0
        if size < offset:
            raise CheckpointError(
                f"{run / name} has {size} bytes; the checkpoint {restored.learner_dir.parent} was made at {offset}: it "
                "was cut or replaced. Put it back, or start a new run"
            )


def set_aside_newer(checkpoint: Path) -> None:
    """Rename the checkpoints after this one: a run that goes on from here leaves their future. Nothing is deleted."""
    for newer in _complete(checkpoint.parent):
        if _NAME.search(checkpoint.name) and _order(newer) > _order(checkpoint):
            k = 0
            while (aside := newer.with_name(f"{newer.name}.lost-{k}")).exists():
                k += 1
            newer.rename(aside)


def _other(path: Path) -> str:
    others = [str(p) for p in _complete(path.parent) if p != path]
    return f"Resume from another one: {others[-1]}" if others else "There is no other checkpoint in this run"
