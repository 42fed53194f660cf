"""The step on a whole batch, made of the learner's verbs: mini-batches of whole groups, epochs, further updates of the
critic, and the metrics of all of it. Then the learner is one version further, or nothing has happened."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from stretto.data.batch import TokenBatch
from stretto.data.schema import Columns
from stretto.kernel.metrics import joined
from stretto.learner.diagnostics import Diagnostics
from stretto.learner.minibatches import minibatch_rows
from stretto.learner.prepare import Prepared
from stretto.learner.result import OptimResult, StepResult
from stretto.learner.stepmetrics import batch_metrics, update_metrics
from stretto.objectives.metrics import Metrics

if TYPE_CHECKING:
    from stretto.learner.learner import Learner

log = logging.getLogger("stretto")


def train(learner: Learner, columns: Columns) -> StepResult:
    """``train_batch`` on packed trajectories; ``ratio`` is flat [sum(length)], as they are."""
    batch, turns = learner.read(columns)
    result = train_batch(learner, batch)
    if result.ratio is None or batch.length is None:
        return result
    ratio = result.ratio[batch.inside.numpy()]
    return replace(result, ratio=ratio if turns is None else turns.gathered(ratio))


def train_batch(learner: Learner, batch: TokenBatch) -> StepResult:
    """``epochs`` x ``minibatches`` optimizer steps of whole groups each, which make one version together. Everything
    that depends on the policy at the start of the step is prepared before the first."""
    config, critic_alone = learner.config, learner.critic_alone
    minibatches = [
        rows
        for epoch in range(config.epochs)
        for rows in minibatch_rows(batch, config.minibatches, learner.seed, learner.version, epoch)
    ]
    prepared = learner.prepare(batch, len(minibatches))
    first = Diagnostics(prepared.batch, prepared.advantages)
    done: list[OptimResult[Metrics]] = []
    for number, rows in enumerate(minibatches):
        part = prepared.part(rows)
        passed = learner.forward_backward(part)
        if number == 0:
            first.note(rows, passed)
        step, failed = _optimizer_steps(learner, part, last=number + 1 == len(minibatches))
        if failed is not None:
            return StepResult(learner.version, True, reason=failed)
        done.append(step)
    objective = sum((step.metrics for step in done), Metrics())
    update = update_metrics(done, prepared.lost, critic=learner.scorer.critic is not None)
    metrics = joined(update, objective.report(), batch_metrics(prepared.batch, len(minibatches) - 1), first.report())
    warning = None
    if not critic_alone:
        warning = learner.collapse.see(metrics.get("entropy", math.nan), metrics["grad_norm"])
    if warning is not None:
        log.warning("version %d: %s", learner.version, warning)
    old = learner.old
    if old is None:
        return StepResult(learner.version, False, metrics, warning, first.ratio())
    metrics = joined(metrics, old.counters())
    return StepResult(learner.version, False, metrics, warning, first.ratio(), old.fill_s, old.fill_tokens)


def _optimizer_steps(learner: Learner, part: Prepared, last: bool) -> tuple[OptimResult[Metrics], str | None]:
    """The optimizer step that uses the gradient of ``part``, then the further ones of the critic towards the same
    targets; the first one's result, and why the whole version was taken back, if it was."""
    critic = learner.config.critic
    further = critic.updates - 1 if critic.kind != "none" else 0
    step = learner.optim_step(completes=last and not further)
    if step.skipped:
        return step, step.reason
    for left in reversed(range(further)):
        learner.forward_backward(part, critic_only=True)
        own = learner.optim_step(completes=last and not left)
        if own.skipped:
            return step, own.reason
    return step, None
