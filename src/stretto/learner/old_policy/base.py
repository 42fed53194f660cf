"""What all routes share: when they are called, the forward pass of one version, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import InvariantError, WeightsError
from stretto.kernel.metrics import Metric, Section, declare
from stretto.learner.old_policy.weights import holding
from stretto.learner.scores import Scorer

OWN = declare(
    __name__,
    Metric(Section.LEARNER, "old_policy/{memory_bytes,passes,forward_tokens}", "bytes, passes, tokens",
           "what recomputing the old policy costs", "small", "`objective` without an old policy"),
)  # fmt: skip
RECORD = "logp_old"
"""The record [B,T] of what was scored during the rollout; NaN where nothing was."""


class OldPolicyRoute:
    """Base of the routes. The learner calls, for a step that starts at ``version``: ``begin``, ``fill``,
    ``before_update``, ``complete`` per micro-batch, ``updated`` after each optimizer step, then ``after_step`` or
    (skipped) ``undo``; whoever hands out segments calls ``score`` and ``release`` between steps.

    Tokens of one version are read in one pass over the rows that hold them, each row up to its last token of that
    version: what comes later can't matter, and a segment scored when its version ended is the same computation. With
    ``micro_batch_tokens`` = 1 each row is read alone, and exact routes agree bit for bit.
    """

    name = ""
    remembers = False
    """Has it a state of its own that a checkpoint must hold?"""
    adapts = False
    """Does it adapt to each batch that it fills?"""

    def __init__(self, scorer: Scorer, max_tokens: int) -> None:
        self._scorer, self._max_tokens = scorer, max_tokens
        self._live = scorer.policy_parameters()
        self._version = 0
        self._optimizer_steps = 1
        self._passes = self._tokens = 0
        self.fill_s = 0.0
        """Wall seconds that the last ``fill`` took; ``fill_tokens``: the tokens that it read."""
        self.fill_tokens = 0

    def begin(self, version: int, optimizer_steps: int) -> None:
        """A step of so many optimizer steps starts; the live weights are those of ``version``."""
        if version != self._version:
            raise InvariantError(f"a batch of version {version} for a learner at version {self._version}")
        self._optimizer_steps = optimizer_steps

    def filled(self, batch: TokenBatch) -> TokenBatch:
        """The batch with ``logp_old``, if this route knows it before the step; and what that cost."""
        start, tokens = time.perf_counter(), self._tokens
        old = self.fill(batch)
        self.fill_s, self.fill_tokens = time.perf_counter() - start, self._tokens - tokens
        return batch if old is None else batch.replace(logp_old=old)

    def fill(self, batch: TokenBatch) -> Tensor | None:
        """``logp_old`` [B,T], 0 where masked; None: only ``complete`` can tell. ``WeightsError`` if a version's weights
        are gone: nothing takes their place."""
        raise NotImplementedError

    def complete(self, batch: TokenBatch, logp: Tensor) -> TokenBatch:
        """The (micro-)batch with what depends on the current log-probabilities [B,T], detached."""
        return batch

    def before_update(self) -> None:
        """The batch is filled; the live weights change next."""

    def updated(self) -> None:
        """An optimizer step was made."""

    def after_step(self, version: int) -> None:
        """The live weights are those of ``version`` now."""
        self._version = version

    def undo(self) -> None:
        """The step was skipped and its optimizer steps were undone."""

    def score(self, batch: TokenBatch) -> Tensor:
        """Log-probabilities [B,T] of the policy tokens of segments, each at its version."""
        raise InvariantError(f"learner.old_policy.route = {self.name!r} keeps no weights to score segments with")

    def release(self, before: int) -> None:
        """Versions below ``before`` have ended: no further token of theirs will come."""

    @property
    def nbytes(self) -> int:
        """Bytes that this route holds beside the learner's weights."""
        return 0

    def counters(self) -> dict[str, float]:
        """Cost since the last call: ``memory_bytes`` held, ``passes`` (one per version and batch), ``forward_tokens``
        read by them, prompts included."""
        out = OWN.checked({
            "old_policy/memory_bytes": float(self.nbytes),
            "old_policy/passes": float(self._passes),
            "old_policy/forward_tokens": float(self._tokens),
        })  # fmt: skip
        self._passes = self._tokens = 0
        return out

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from ``tensors``; ``KeyError`` or ``ValueError`` if they are of another model."""

    # for the routes

    def _pass(self, batch: TokenBatch, mask: Tensor, scorer: Scorer | None = None) -> Tensor:
        """Log-probabilities [B,T] of the tokens in ``mask`` under the weights that are in place, 0 elsewhere."""
        (tokens,) = batch.need("tokens")
        out = torch.zeros(mask.shape, dtype=self._scorer.dtype)
        rows = mask.any(1).nonzero().squeeze(1)
        if not len(rows):
            return out
        end = mask.shape[1] - mask[rows].flip(1).int().argmax(1)
        part = TokenBatch(tokens=tokens[rows], mask=mask[rows], length=end)
        with torch.no_grad():
            for some, width in part.split(self._max_tokens):
                logp = (scorer or self._scorer).scores(part.select(some, width), values=False).logp
                out[rows[some], :width] = logp
        self._passes += 1
        self._tokens += int(end.sum())
        return out

    def _by_version(self, batch: TokenBatch, mask: Tensor, at: Callable[[int], Tensor]) -> Tensor:
        """Log-probabilities [B,T] of the tokens in ``mask``: ``at(version)`` scores those of one version."""
        (versions,) = batch.need("versions")
        out = torch.zeros(mask.shape, dtype=self._scorer.dtype)
        for version in torch.unique(versions[mask]).tolist():
            out = torch.where(mask & (versions == version), at(version), out)
        return out

    def _unrecorded(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """What was scored during the rollout [B,T], and the mask of policy tokens that weren't."""
        record = batch.records.get(RECORD)
        if record is None:
            return torch.zeros(batch.mask.shape, dtype=self._scorer.dtype), batch.mask
        missing = batch.mask & record.isnan()
        return torch.where(batch.mask & ~missing, record, 0.0).to(self._scorer.dtype), missing

    @contextmanager
    def _weights(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        with holding(self._live, weights):
            yield

    def _gone(self, version: int, here: list[int]) -> WeightsError:
        return WeightsError(
            f"learner.old_policy.route = {self.name!r}: at version {self._version} a token of version {version} is to "
            f"be scored, but the weights of that version are gone (here: {here})"
        )
