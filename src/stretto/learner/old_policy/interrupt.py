"""Rollouts stop at each weight update, and what they made is scored with the weights that made it. Exact."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.old_policy.weights import Copies
from stretto.learner.scores import Scorer


class Interrupt(OldPolicyRoute):
    """At each update the loop stops all engines, hands over everything sampled under the version that ends, finished or
    not, lets it be scored with the weights before the update, and only then publishes (arXiv 2605.12070). A pipeline
    bubble at each step; no weights to keep, whatever the lag bound.

    Rollouts go on while the learner computes its step, so the weights before the update are kept beside the updated
    ones until the interruption is over: one copy. Tokens of the current version in a batch are scored at the start of
    the step, with the live weights.
    """

    name = "interrupt"
    remembers = True  # the scores, which the loop keeps

    def __init__(self, scorer: Scorer, max_tokens: int) -> None:
        super().__init__(scorer, max_tokens)
        self._copies = Copies()
        self._most = 0

    def fill(self, batch: TokenBatch) -> Tensor:
        """[B,T]: what interruptions scored, and the current version's tokens."""
        known, missing = self._unrecorded(batch)
        return torch.where(missing, self._by_version(batch, missing, lambda v: self._now(batch, missing, v)), known)

    def _now(self, batch: TokenBatch, mask: Tensor, version: int) -> Tensor:
        (versions,) = batch.need("versions")
        if version != self._version:
            raise self._gone(version, [self._version])
        return self._pass(batch, mask & (versions == version))

    def before_update(self) -> None:
        """Keep the live weights until the interruption is over."""
        self._copies.drop_below(self._version)
        self._copies.keep(self._version, self._live)
        self._most = self._copies.nbytes

    def score(self, batch: TokenBatch) -> Tensor:
        """Segments of the version that ended with the last step."""

        def at(version: int) -> Tensor:
            (versions,) = batch.need("versions")
            if version not in self._copies:
                raise self._gone(version, self._copies.versions)
            with self._weights(self._copies[version]):
                return self._pass(batch, batch.mask & (versions == version))

        return self._by_version(batch, batch.mask, at)

    def release(self, before: int) -> None:
        """Their copies go."""
        self._copies.drop_below(before)

    @property
    def nbytes(self) -> int:
        """The copy, as long as it was there."""
        return self._most
