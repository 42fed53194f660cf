"""Checkpoints of a running loop, and taking it up again from one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from stretto.errors import CheckpointError
from stretto.runtime.feeder import Feeder
from stretto.runtime.inputs import prompt_of
from stretto.runtime.manifest import Restored, SavedGroup, Snapshot, save_checkpoint
from stretto.runtime.parts import Parts


async def checkpoint(p: Parts, feeder: Feeder) -> None:
    """Save learner, partial rollouts, pool and data frontier, between two steps."""
    keep_partial = p.config.save_partial

    async def partials() -> dict[int, Any]:
        if not keep_partial:
            return {}
        found = await asyncio.gather(*(engine.partials() for engine in p.engines))
        return {request: completion for part in found for request, completion in part.items()}

    def snapshot(parts: dict[int, Any]) -> Snapshot:
        if p.late is not None:
            p.late.settle()
        p.log.emit("Checkpoint", step=p.view.version, version=p.view.version)
        return Snapshot(
            version=p.view.version,
            next_task=feeder.next_task,
            clock_s=p.log.run_time(asyncio.get_running_loop().time()),
            offsets={**p.log.seal(), **p.offsets()},
            ready=feeder.pool.groups(),
            running=list(feeder.groups.running.values()),
            partials=parts,
            keep_partial=keep_partial,
            scored=None if p.scored is None else p.scored.pack(),
            late=p.late.queue.promises() if p.late is not None else [],
            late_counts=p.late.queue.counts if p.late is not None else {},
            inputs=p.inputs,
        )

    await save_checkpoint(p.out / "checkpoints", p.learner.save, partials, snapshot, p.config)


def restore_groups(p: Parts, feeder: Feeder, restored: Restored) -> None:
    """Put the ready groups back into the pool and let the unfinished ones go on."""
    engines = {engine.name: engine for engine in p.engines}
    if restored.late_counts:
        assert p.late is not None, "a resumed run keeps its objective"
        p.late.restore(restored.late, restored.late_counts)
    if p.scored is not None and restored.scored is not None:
        p.scored.restore(restored.scored, _kept(restored))
    for group in restored.ready:
        feeder.pool.add(group)
    excess = _excess(p, restored)
    for group in feeder.pool.take([g.id for g in restored.ready if g.id in excess]):
        feeder.end_group(group.id, group.trajectories, "cancelled", "max_steps was lowered")
    for saved in restored.running:
        if saved.id in excess:
            feeder.end_group(saved.id, saved.done, "cancelled", "max_steps was lowered", list(saved.open))
            continue
        task = p.env.task(saved.id)
        if saved.prompt is not None and saved.prompt != prompt_of(task):
            _other_prompt(p, saved)
            feeder.end_group(saved.id, saved.done, "cancelled", "its prompt is another one now", list(saved.open))
            continue
        name = p.rules.router.route(p.view, p.view.versions)
        assert name is not None, "all engines have a version after the first publish"
        engine = engines[name]
        assert engine.version is not None
        # a pinned trajectory can't go on under another version: it starts over, promised one that is there
        pin = None
        if saved.pin is not None or p.config.control.in_flight == "pin":
            pin = feeder.pin_on(engine)
        open_ = {i: [] if saved.pin is not None else completions for i, completions in saved.open.items()}
        fresh = not saved.done and not any(open_.values())
        feeder.groups.restart(
            task, engine, engine.version if fresh else saved.version, pin, saved.done,
            open_, saved.replaced, saved.created,
        )  # fmt: skip


def _other_prompt(p: Parts, saved: SavedGroup) -> None:
    """Nobody may finish half of an answer under another prompt."""
    if not p.config.accept_changed:
        raise CheckpointError(
            f"task {saved.id} of environment {p.config.env.name!r} has another prompt than when its unfinished answers "
            "were saved: put data, tokenizer and the environment's code back as they were, start a new run, or set "
            "accept_changed='[\"prompts\"]' to cancel such groups"
        )


def _excess(p: Parts, restored: Restored) -> set[int]:
    """Groups that can't train any more because the resumed run has a lower ``max_steps``: the newest ones."""
    groups = [(g.version_dispatch, g.id) for g in restored.ready] + [(g.version, g.id) for g in restored.running]
    trainable = p.config.prompts_per_step * max(0, p.max_steps - restored.version)
    return {group for _, group in sorted(groups)[trainable:]}


def _kept(restored: Restored) -> Iterator[int]:
    """Trajectories that have tokens after the resume; the others start over."""
    for group in restored.ready:
        yield from (t.id for t in group.trajectories)
    for saved in restored.running:
        yield from (t.id for t in saved.done)
        yield from (i for i, completions in saved.open.items() if completions)
