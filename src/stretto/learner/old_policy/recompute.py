"""The policy at the start of the step, in place of the old one: what people use."""

from __future__ import annotations

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute


class Recompute(OldPolicyRoute):
    """``logp_old`` is the log-probability at the start of the step. Not the old policy's: the first factor of a
    decoupled ratio then contains staleness as well, so that its cap and the clip interact (arXiv 2605.12070).

    One pass; none of its own if the step is one optimizer step, whose forward pass is that of the policy at the start.
    """

    name = "recompute"

    def fill(self, batch: TokenBatch) -> Tensor | None:
        """[B,T]; ``logp_proximal`` if the batch has it already; None: ``complete`` will know."""
        if batch.logp_proximal is not None:
            return batch.logp_proximal
        return self._pass(batch, batch.mask) if self._optimizer_steps > 1 else None

    def complete(self, batch: TokenBatch, logp: Tensor) -> TokenBatch:
        """The current policy is that of the start."""
        return batch if batch.logp_old is not None else batch.replace(logp_old=logp)
