"""A policy interpolated between behaviour and current, in place of the old one."""

from __future__ import annotations

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.scores import Scorer
from stretto.objectives.ratio import proxy_logp, proxy_share


class Proxy(OldPolicyRoute):
    """logp_old = logp_behavior + alpha (logp - logp_behavior), no pass at all (arXiv 2605.12070). ``alpha`` None: by
    the token's staleness, as A-3PO (arXiv 2512.06547). Interpolation only moves clip bounds, and the first factor never
    shows the engine's mismatch: wrong even without staleness."""

    name = "proxy"

    def __init__(self, scorer: Scorer, max_tokens: int, alpha: float | None) -> None:
        super().__init__(scorer, max_tokens)
        self._alpha = alpha

    def fill(self, batch: TokenBatch) -> None:
        """It depends on the current policy."""
        return None

    def complete(self, batch: TokenBatch, logp: Tensor) -> TokenBatch:
        """Interpolate, unless the batch came with ``logp_old``."""
        if batch.logp_old is not None:
            return batch
        behavior, versions = batch.need("logp_behavior", "versions")
        alpha = proxy_share(versions, self._version) if self._alpha is None else self._alpha
        return batch.replace(logp_old=proxy_logp(logp, behavior, alpha))
