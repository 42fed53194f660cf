"""The gradient of one optimizer step: passes over some rows, added up until the optimizer takes them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.data.totals import Totals
from stretto.kernel.errors import DataError, InvariantError
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.prepare import Preparation, Prepared
from stretto.learner.result import Losses
from stretto.learner.scores import Scorer
from stretto.learner.stepmetrics import note_entropy
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics


@dataclass
class Gradient:
    """What has been accumulated since the last optimizer step.

    ``whole``: its first part named no totals, so it is all of the step. ``critic_only``: no gradient reaches the
    policy. ``nonfinite``: what wasn't finite in one of the ``parts``. ``sums``: total, policy and critic loss.
    """

    totals: Totals
    whole: bool
    critic_only: bool
    parts: list[Prepared] = field(default_factory=list)
    groups: set[int] = field(default_factory=set)
    sums: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    metrics: Metrics = field(default_factory=Metrics)
    nonfinite: str | None = None

    def check_next(self, totals: Totals | None, critic_only: bool) -> None:
        """May further rows with these ``totals`` join? ``InvariantError`` says why not."""
        if self.whole or totals is None:
            raise InvariantError(
                "forward_backward came again before optim_step, but one of the calls named no totals, so it was all of "
                "the optimizer step: give the step's totals with each part, or call optim_step in between"
            )
        if totals != self.totals:
            raise InvariantError(
                f"forward_backward: the parts of an optimizer step share its denominators; earlier ones came with "
                f"{self.totals}, this one with {totals}"
            )
        if critic_only != self.critic_only:
            raise InvariantError("forward_backward: parts with and without critic_only in one optimizer step")

    def add(self, done: Pass) -> None:
        """Count a pass in."""
        if done.sums is not None:
            self.sums += done.sums
        self.metrics = self.metrics + done.metrics

    @property
    def losses(self) -> Losses:
        """Of all parts together."""
        return losses_of(self.sums if self.nonfinite is None else None)


@dataclass(frozen=True)
class Pass:
    """What a pass over some rows gave: ``sums`` of total, policy and critic loss, ``logp`` [B,T] and its gradient (None
    if only the critic had one), NaN where masked."""

    sums: Tensor | None
    metrics: Metrics
    logp: Tensor
    logp_grad: Tensor | None

    @classmethod
    def failed(cls, batch: TokenBatch, dtype: torch.dtype) -> Pass:
        """Of a pass whose numbers weren't finite."""
        return cls(None, Metrics(), torch.full(batch.mask.shape, math.nan, dtype=dtype), None)


def losses_of(sums: Tensor | None) -> Losses:
    """Total, policy and critic loss as numbers; NaN if they couldn't be computed."""
    return Losses(*((math.nan,) * 3 if sums is None else sums.tolist()))


class Passes:
    """Forward and backward passes in micro-batches of ``max_tokens`` padded tokens, which only bound memory."""

    def __init__(self, scorer: Scorer, objective: Objective, preparation: Preparation, max_tokens: int) -> None:
        self._scorer, self._objective, self._preparation = scorer, objective, preparation
        self._max_tokens = max_tokens

    def run(self, part: Prepared, totals: Totals, critic_alone: bool) -> Pass:
        """Add the gradient of these rows to what the parameters hold. ``NonFiniteError`` if the objective's inputs
        aren't finite: some of the rows may be in the gradient then."""
        batch, advantages, needs = part.batch.replace(totals=totals), part.advantages, self._objective.needs
        sums, metrics = torch.zeros(3, dtype=torch.float64), Metrics()
        logp = torch.full(batch.mask.shape, math.nan, dtype=self._scorer.dtype)
        logp_grad = None if critic_alone else torch.full_like(logp, math.nan)
        micros = batch.split(self._max_tokens)
        if len(micros) > 1:
            batch = self._preparation.statistics(batch)
        for rows, width in micros:
            whole = len(rows) == batch.rows and width == batch.mask.shape[1]
            micro = batch if whole else batch.select(rows, width)
            scores = self._scorer.scores(
                micro, values="values" in needs, policy_alone=not critic_alone, alternatives=needs
            )
            if scores.logp.requires_grad:
                scores.logp.retain_grad()
            micro = self._preparation.completed(micro, scores.logp)
            if scores.alternatives:
                micro = micro.replace(**scores.alternatives)
            a = advantages if whole else advantages[rows, :width]
            loss = self._objective(micro, scores.logp, scores.values, a)
            torch.autograd.backward(loss.critic if critic_alone else loss.total)
            logp[rows, :width] = torch.where(micro.mask, scores.logp.detach(), math.nan)
            if logp_grad is not None and scores.logp.grad is not None:
                logp_grad[rows, :width] = torch.where(micro.mask, scores.logp.grad, math.nan)
            more = loss.metrics
            note_entropy(more, scores.entropy)
            metrics = metrics + more
            sums += torch.stack([loss.total.detach(), loss.policy.detach(), loss.critic.detach()]).double()
        return Pass(sums, metrics, logp, logp_grad)


def check_part(
    objective: Objective, route: OldPolicyRoute | None, part: Prepared, gradient: Gradient, ready: bool
) -> None:
    """``DataError`` if these rows are a part of an optimizer step that can't be split so: what is taken over more rows
    than the part has would silently differ. ``ready``: the part was prepared as rows of the whole step.

    ``gradient`` learns which groups it has seen.
    """
    batch = part.batch
    if gradient.totals == batch.step_totals():
        return
    name = f"objective {objective.component_name!r}"
    if "statistics" in objective.needs:
        raise DataError(f"{name} takes statistics over all rows of a step: give them in one forward_backward")
    if ready:
        return
    if route is not None and route.adapts:
        raise DataError(
            f"learner.old_policy.route = {route.name!r} adapts to the staleness of a whole optimizer step: give its "
            "rows in one forward_backward, or fix learner.old_policy.ewma_beta"
        )
    if "advantages" in batch.records:
        return
    if objective.standardises_step:
        raise DataError(
            f"{name} standardises advantages over all tokens of an optimizer step: give them in one forward_backward, "
            "give ready ones (record.advantages), or set objective.std = false"
        )
    if batch.group is not None and objective.baseline in ("group", "leave-one-out"):
        groups = set(batch.group.tolist())
        if again := groups & gradient.groups:
            raise DataError(
                f"group {min(again)} lies in two parts of an optimizer step, but {name} takes its baseline over whole "
                "groups: keep them together, or give ready advantages (record.advantages)"
            )
        gradient.groups |= groups
