"""An exponentially weighted average of the policies, in place of the old one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare, joined
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.scores import Scorer
from stretto.objectives.ewma import Ewma, beta_of_lag

OWN = declare(
    __name__,
    Metric(Section.LEARNER, "old_policy/ewma_beta", "", "weight that the average keeps in a step", "as configured"),
)


class Average(OldPolicyRoute):
    """``logp_old`` under the average of the weights after each optimizer step (PPO-EWMA, arXiv 2110.00641). One pass,
    one copy of the trainable parameters. An approximation: exact at lag 0 alone.

    ``beta`` None: beta / (1 - beta) = mean token staleness of the latest batch, in optimizer steps [inferred: the
    repair of arXiv 2605.12070 is unpublished in this point].
    """

    name = "ewma"
    remembers = True

    def __init__(self, scorer: Scorer, max_tokens: int, beta: float | None) -> None:
        super().__init__(scorer, max_tokens)
        self._matched = self.adapts = beta is None
        self._ewma = Ewma(0.0 if beta is None else beta, self._live.values())
        self._kept: tuple[list[Tensor], float] | None = None

    def fill(self, batch: TokenBatch) -> Tensor:
        """[B,T] under the average."""
        if self._matched and bool(batch.mask.any()):
            (versions,) = batch.need("versions")
            lag = float((self._version - versions[batch.mask]).double().mean())
            self._ewma.beta = beta_of_lag(max(lag, 0.0) * self._optimizer_steps)
        with self._weights(
            {n: x.to(p.dtype) for (n, p), x in zip(self._live.items(), self._ewma.average, strict=True)}
        ):
            return self._pass(batch, batch.mask)

    def before_update(self) -> None:
        """Only a step of several optimizer steps can fail after some of them."""
        if self._optimizer_steps > 1:
            self._kept = ([x.clone() for x in self._ewma.average], self._ewma.weight)

    def updated(self) -> None:
        """Take the live weights in."""
        self._ewma.update(self._live.values())

    def after_step(self, version: int) -> None:
        """The average stays."""
        super().after_step(version)
        self._kept = None

    def undo(self) -> None:
        """The average is as it was."""
        if self._kept is not None:
            self._ewma.average, self._ewma.weight = self._kept
            self._kept = None

    @property
    def nbytes(self) -> int:
        """Of the average."""
        return sum(x.nbytes for x in self._ewma.average)

    def counters(self) -> dict[str, float]:
        """The cost, and the beta in use."""
        return joined(super().counters(), OWN.checked({"old_policy/ewma_beta": self._ewma.beta}))

    def tensors(self) -> dict[str, Tensor]:
        """The average, its total weight and beta."""
        scalars = torch.tensor([self._ewma.weight, self._ewma.beta], dtype=torch.float64)
        return dict(zip(self._live, self._ewma.average, strict=True)) | {"ewma": scalars}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The same; a fixed beta stays the configured one."""
        average = [tensors[name].clone() for name in self._live]
        if [x.shape for x in average] != [x.shape for x in self._ewma.average]:
            raise ValueError("the average is of other shapes")
        weight, beta = tensors["ewma"].tolist()
        self._ewma.average, self._ewma.weight = average, weight
        if self._matched:
            self._ewma.beta = beta
