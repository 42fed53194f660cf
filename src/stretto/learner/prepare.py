"""What is known before the first gradient of a version: values, the policy at its start, advantages, targets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.scores import Scorer
from stretto.objectives.base import Objective

log = logging.getLogger("stretto")


@dataclass(frozen=True)
class Prepared:
    """A batch with all that its objective needs, ``advantages`` [B,T], and how many tokens left training because
    their recorded log-probability wasn't finite."""

    batch: TokenBatch
    advantages: Tensor
    lost: int

    def part(self, rows: Tensor) -> Prepared:
        """Some rows [n] of it; all of them: itself."""
        if len(rows) == self.batch.rows:
            return self
        return Prepared(self.batch.select(rows), self.advantages[rows], 0)


class Preparation:
    """Makes a batch ready for an objective, with forward passes in micro-batches of ``max_tokens`` padded tokens.
    ``old`` fills ``logp_old`` where the batch lacks it."""

    def __init__(
        self, scorer: Scorer, objective: Objective, max_tokens: int, old: OldPolicyRoute | None = None
    ) -> None:
        self._scorer, self._objective, self._max_tokens, self._old = scorer, objective, max_tokens, old

    def prepare(self, batch: TokenBatch, optimizer_steps: int) -> Prepared:
        """Before ``optimizer_steps`` on the batch. With one of them the forward pass that trains is that of the policy
        at the start, so the proximal log-probabilities need no pass of their own unless advantages depend on them.

        What the batch brings is taken as it is: ``logp_proximal``, ``logp_old``, and ``records["advantages"]``, which
        take the place of the objective's own estimator."""
        needs = self._objective.needs
        batch, lost = intake(batch)
        if "values" in needs:
            batch = self._recorded(batch)
        start = batch.logp_proximal
        anchored = "start" in needs or ("proximal" in needs and optimizer_steps > 1)
        if start is None and (anchored or "gate" in needs):
            start = self.logp(batch)
        if anchored:
            batch = batch.replace(logp_proximal=start)
        if self._old is not None:
            self._old.begin(batch.version, optimizer_steps)
            batch = batch if batch.logp_old is not None else self._old.filled(batch)
            self._old.before_update()
        ready = batch.records.get("advantages")
        advantages = self._objective.advantages(batch, start) if ready is None else ready.where(batch.mask, 0.0)
        if "values" in needs:
            batch = batch.replace(targets=self._objective.targets(batch, start))
        return Prepared(batch, advantages, lost)

    def statistics(self, part: TokenBatch) -> TokenBatch:
        """The batch of one optimizer step with the statistics that its objective takes over all of it."""
        if "statistics" not in self._objective.needs:
            return part
        with torch.no_grad():
            logp = self.logp(part)
            return part.replace(statistics=self._objective.statistics(self.completed(part, logp), logp))

    def completed(self, micro: TokenBatch, logp: Tensor) -> TokenBatch:
        """The (micro-)batch with what depends on the current log-probabilities [B,T], detached here."""
        if micro.logp_proximal is None and "proximal" in self._objective.needs:
            # one optimizer step a batch: the weights are still those that the step started from
            micro = micro.replace(logp_proximal=logp.detach())
        return micro if self._old is None else self._old.complete(micro, logp.detach())

    def logp(self, batch: TokenBatch) -> Tensor:
        """Log-probabilities [B,T] of the policy as it is."""

        def score(micro: TokenBatch) -> Tensor:
            return self._scorer.scores(micro, values=False).logp

        return self._scored(batch, score)

    def _recorded(self, batch: TokenBatch) -> TokenBatch:
        """Values, and the bootstrap of truncated rows, as the critic is."""

        def value(micro: TokenBatch) -> Tensor:
            values = self._scorer.scores(micro, values=True).values
            assert values is not None
            return values

        batch = batch.replace(values=self._scored(batch, value))
        if batch.truncated is None or not bool(batch.truncated.any()):
            return batch
        after = torch.zeros(batch.rows, dtype=self._scorer.dtype)
        with torch.no_grad():
            for rows, width in batch.split(self._max_tokens):
                after[rows] = self._scorer.bootstrap(batch.select(rows, width))
        return batch.replace(bootstrap=after)

    def _scored(self, batch: TokenBatch, score: Callable[[TokenBatch], Tensor]) -> Tensor:
        out = torch.zeros(batch.mask.shape, dtype=self._scorer.dtype)
        with torch.no_grad():
            for rows, width in batch.split(self._max_tokens):
                out[rows, :width] = score(batch.select(rows, width))
        return out


def intake(batch: TokenBatch) -> tuple[TokenBatch, int]:
    """Policy tokens whose recorded log-probability isn't finite leave training; how many did."""
    if batch.logp_behavior is None:
        return batch, 0
    bad = batch.mask & ~batch.logp_behavior.isfinite()
    lost = int(bad.sum())
    if not lost:
        return batch, 0
    row = int(bad.any(1).nonzero()[0])
    which = row if batch.trajectory is None else int(batch.trajectory[row])
    log.warning("%d tokens with a non-finite behaviour log-probability left training; first: trajectory %d",
                lost, which)  # fmt: skip
    return batch.replace(mask=batch.mask & ~bad), lost
