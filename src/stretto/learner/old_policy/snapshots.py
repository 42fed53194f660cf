"""A ring of the last versions' weights. Exact."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.old_policy.weights import Copies
from stretto.learner.scores import Scorer


class Snapshots(OldPolicyRoute):
    """Keeps the weights of the last ``lag_bound`` versions beside the live ones; at each step one pass per distinct
    version of the batch, scattered per token (arXiv 2605.12070).

    Memory ``lag_bound`` x trainable parameters; passes = distinct versions; the step waits for them.
    """

    name = "snapshots"
    remembers = True

    def __init__(self, scorer: Scorer, max_tokens: int, lag_bound: int) -> None:
        super().__init__(scorer, max_tokens)
        self._lag_bound = lag_bound
        self._copies = Copies()

    def fill(self, batch: TokenBatch) -> Tensor:
        """[B,T], each token at its own version."""
        return self._by_version(batch, batch.mask, lambda version: self._at(batch, version))

    def score(self, batch: TokenBatch) -> Tensor:
        """Tokens of versions in the ring, and of the current one."""
        return self.fill(batch)

    def _at(self, batch: TokenBatch, version: int) -> Tensor:
        (versions,) = batch.need("versions")
        mask = batch.mask & (versions == version)
        if version == self._version:
            return self._pass(batch, mask)
        if version not in self._copies:
            raise self._gone(version, [*self._copies.versions, self._version])
        with self._weights(self._copies[version]):
            return self._pass(batch, mask)

    def before_update(self) -> None:
        """Keep the live weights, in the place of those that no later step can ask for."""
        self._copies.drop_below(self._version + 1 - self._lag_bound)
        if self._lag_bound:
            self._copies.keep(self._version, self._live)

    @property
    def nbytes(self) -> int:
        """Of the ring."""
        return self._copies.nbytes

    def tensors(self) -> dict[str, Tensor]:
        """The ring."""
        return self._copies.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The ring."""
        self._copies.restore(tensors, self._live)
