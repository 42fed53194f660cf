"""A replica that follows with delay and scores each segment when its version ends. Exact."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.old_policy.weights import Copies
from stretto.learner.scores import Scorer


class OldModel(OldPolicyRoute):
    """A replica of the model; the learner leaves it one copy of its weights per version. When the last engine has left
    a version, the loop hands over all that was sampled under it and the replica scores it; then the copy goes (arXiv
    2605.12070). Rollouts don't stop, and a step waits only for what isn't scored yet.

    Tokens whose version hasn't ended when their trajectory trains are scored at the start of the step: a complete
    trajectory has no further ones.

    Memory: the replica and one copy per version that some engine serves or that isn't scored yet (two or three with
    prompt publishing), whatever the lag bound. Here the replica lives in the learner's process: its passes take the
    learner's time on the wall clock (on the virtual one they run beside it), and going back to a version is a copy in
    memory, where a machine of its own would score in the order in which it receives the versions.
    """

    name = "old_model"
    remembers = True

    def __init__(self, scorer: Scorer, max_tokens: int, replica: Scorer) -> None:
        """``replica``: a scorer of the same model, its own copy."""
        super().__init__(scorer, max_tokens)
        self._replica, self._own = replica, replica.policy_parameters()
        self._at: int | None = None
        self._copies = Copies()

    def begin(self, version: int, optimizer_steps: int) -> None:
        """Leave the replica a copy of the live weights."""
        super().begin(version, optimizer_steps)
        self._copies.keep(version, self._live)

    def fill(self, batch: TokenBatch) -> Tensor:
        """[B,T]: what was scored already, the rest by the replica."""
        known, missing = self._unrecorded(batch)
        return torch.where(missing, self._scored(batch, missing), known)

    def score(self, batch: TokenBatch) -> Tensor:
        """Segments of versions that have ended."""
        return self._scored(batch, batch.mask)

    def release(self, before: int) -> None:
        """Their copies go."""
        self._copies.drop_below(before)

    def _scored(self, batch: TokenBatch, mask: Tensor) -> Tensor:
        return self._by_version(batch, mask, lambda version: self._by_replica(batch, mask, version))

    def _by_replica(self, batch: TokenBatch, mask: Tensor, version: int) -> Tensor:
        (versions,) = batch.need("versions")
        if version not in self._copies:
            raise self._gone(version, self._copies.versions)
        if self._at != version:
            with torch.no_grad():
                for name, p in self._own.items():
                    p.copy_(self._copies[version][name])
            self._at = version
        return self._pass(batch, mask & (versions == version), self._replica)

    @property
    def nbytes(self) -> int:
        """Of the replica and the copies."""
        return self._copies.nbytes + sum(int(p.nbytes) for p in self._replica.model.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """The copies."""
        return self._copies.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The copies; the replica loads one when it needs it."""
        self._copies.restore(tensors, self._live)
        self._at = None
