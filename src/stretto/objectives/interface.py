"""How objectives are called, and what those of them offer that ask for more than a batch: as types."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.loss import Loss


class LossFunction(Protocol):
    """The one signature of every objective. Gradient goes through ``logp`` and ``values`` [B,T] alone (and the batch's
    ``sampled_logp_current`` or ``top_logp_current``); ready ``advantages`` [B,T] or [B] replace the objective's own."""

    def __call__(
        self, batch: TokenBatch, logp: Tensor, values: Tensor | None = None, advantages: Tensor | None = None
    ) -> Loss:
        """The loss."""


@runtime_checkable
class ReadsTop(Protocol):
    """``needs`` says ``top``."""

    @property
    def top(self) -> int | None:
        """Likeliest tokens per position that the engine must record; None: all."""


@runtime_checkable
class AwaitsRewards(Protocol):
    """``needs`` says ``late``."""

    @property
    def lifetime(self) -> int:
        """Optimizer steps after which a late reward counts no more."""


class LossWithNeeds(LossFunction, Protocol):
    """A loss function that says, as an ``Objective`` does, what it needs beyond the batch of an engine."""

    @property
    def needs(self) -> frozenset[str]:
        """As ``Objective.needs``."""
