"""Checkpoints of a running loop, and taking it up again from one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.errors import CheckpointError
from stretto.kernel.trajectory_events import Ending
from stretto.runtime.context import RunContext
from stretto.runtime.dispatcher import Dispatcher
from stretto.runtime.inputs import prompt_of
from stretto.runtime.manifest import Restored, Snapshot, save_checkpoint
from stretto.runtime.saved import SavedGroup


async def checkpoint(ctx: RunContext, dispatcher: Dispatcher) -> None:
    """Save learner, partial rollouts, pool and data frontier, between two steps."""
    keep_partial = ctx.config.save_partial

    async def completions() -> dict[int, Completion]:
        return await ctx.engines.snapshot() if keep_partial else {}

    def snapshot(parts: dict[int, Completion]) -> Snapshot:
        if ctx.late is not None:
            ctx.late.settle()
        ctx.log.emit("Checkpoint", step=ctx.view.version, version=ctx.view.version)
        return Snapshot(
            version=ctx.view.version,
            next_task=dispatcher.next_task,
            next_trajectory=dispatcher.groups.next_trajectory,
            clock_s=ctx.log.run_time(asyncio.get_running_loop().time()),
            offsets={**ctx.log.seal(), **ctx.offsets()},
            ready=dispatcher.pool.groups(),
            running=list(dispatcher.groups.running.values()),
            partial_completions=parts,
            keep_partial=keep_partial,
            old_logprobs=None if ctx.old_logprobs is None else ctx.old_logprobs.pack(),
            late=ctx.late.queue.pending() if ctx.late is not None else [],
            late_counts=ctx.late.queue.counts if ctx.late is not None else {},
            inputs=ctx.inputs,
        )

    await save_checkpoint(ctx.out / "checkpoints", ctx.learner.save, completions, snapshot, ctx.config)


def restore_groups(ctx: RunContext, dispatcher: Dispatcher, restored: Restored) -> None:
    """Put the ready groups back into the pool and let the unfinished ones go on."""
    if restored.late_counts:
        assert ctx.late is not None, "a resumed run keeps its objective"
        ctx.late.restore(restored.late, restored.late_counts)
    if ctx.old_logprobs is not None and restored.old_logprobs is not None:
        ctx.old_logprobs.restore(restored.old_logprobs, _kept(restored))
    for group in restored.ready:
        dispatcher.pool.add(group)
    excess = _excess(ctx, restored)
    for group in dispatcher.pool.take([g.id for g in restored.ready if g.id in excess]):
        dispatcher.end_group(group.id, group.ids, group.policy_steps, Ending.CANCELLED, "max_steps was lowered")
    for saved in restored.running:
        if saved.id in excess:
            dispatcher.end_group(saved.id, saved.ids, saved.tokens, Ending.CANCELLED, "max_steps was lowered")
            continue
        task = ctx.env.task(saved.id)
        if saved.prompt != prompt_of(task):
            _other_prompt(ctx, saved)
            dispatcher.end_group(saved.id, saved.ids, saved.tokens, Ending.CANCELLED, "its prompt is another one now")
            continue
        name = ctx.rules.router.route(ctx.view, ctx.view.versions)
        assert name is not None, "all engines have a version after the first publish"
        engine = ctx.engines[name]
        assert engine.version is not None
        # a pinned trajectory can't go on under another version: it starts over, promised one that is there
        pin = None
        if saved.pin is not None or ctx.config.control.in_flight == InFlight.PIN:
            pin = dispatcher.pin_on(engine)
        left = saved if saved.pin is None else saved.from_scratch()
        fresh = not left.done and not any(m.completions for m in left.open)
        dispatcher.groups.restart(task, engine, engine.version if fresh else saved.version, pin, left)


def _other_prompt(ctx: RunContext, saved: SavedGroup) -> None:
    """Nobody may finish half of an answer under another prompt."""
    if not ctx.config.accept_changed:
        raise CheckpointError(
            f"task {saved.id} of environment {ctx.config.env.name!r} has another prompt than when its unfinished "
            "answers were saved: put data, tokenizer and the environment's code back as they were, start a new run, or "
            "set accept_changed='[\"prompts\"]' to cancel such groups"
        )


def _excess(ctx: RunContext, restored: Restored) -> set[int]:
    """Groups that can't train any more because the resumed run has a lower ``max_steps``: the newest ones."""
    groups = [(g.version_dispatch, g.id) for g in restored.ready] + [(g.version, g.id) for g in restored.running]
    trainable = ctx.config.prompts_per_step * max(0, ctx.max_steps - restored.version)
    return {group for _, group in sorted(groups)[trainable:]}


def _kept(restored: Restored) -> Iterator[int]:
    """Trajectories that have tokens after the resume; the others start over."""
    for group in restored.ready:
        yield from group.ids
    for saved in restored.running:
        yield from (m.trajectory for m in saved.members if m.result is not None or m.completions)
