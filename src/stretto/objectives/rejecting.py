"""Methods that reject whole rows: is a rejected row still a member of its group? (not a method by itself)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives.base import Objective


@dataclass(frozen=True, kw_only=True)
class Rejecting(Objective):
    """``baseline_over``: whom means, deviations and standardisation are taken over. ``kept``: a row that is rejected as
    a whole isn't in the batch, so that a far-off row can't decide the sign of the others; it is decided once a step, by
    the policy at its start, which costs a forward pass. ``all``: every row that was sampled, as TRL and verl take it:
    the rejected row's reward is a sample of the same prompt all the same. ``auto`` (default): ``kept`` where the method
    is asked to decide about sequences, else ``all``. Denominators count every row either way."""

    baseline_over: Literal["auto", "kept", "all"] = "auto"

    @property
    def rejects(self) -> bool:
        """Whether whole rows can be rejected, as the other options are set."""
        raise NotImplementedError

    @property
    def decides_by_row(self) -> bool:
        """What ``auto`` is: ``kept`` if so, else ``all``."""
        return False

    def kept_rows(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """[B] bool: rows that aren't rejected as a whole. ``logp`` [B,T]: the policy at the start of the step."""
        raise NotImplementedError

    @property
    def _leaves_out(self) -> bool:
        centres = self.baseline in ("group", "leave-one-out") or self.std
        kept = self.decides_by_row if self.baseline_over == "auto" else self.baseline_over == "kept"
        return kept and self.rejects and centres

    @property
    def needs(self) -> frozenset[str]:
        """The policy at the start of the step, where advantages depend on what is rejected."""
        return super().needs | ({"gate"} if self._leaves_out else frozenset())

    @property
    def idle(self) -> dict[str, str]:
        """``baseline_over`` where no row is ever rejected."""
        why = "no row is rejected as a whole"
        return super().idle if self.rejects else super().idle | {"baseline_over": why}

    def members(self, batch: TokenBatch, logp: Tensor | None) -> Tensor | None:
        if not self._leaves_out:
            return None
        logp = batch.logp_proximal if logp is None else logp
        if logp is None:
            raise DataError(
                f"objective {self.component_name!r} takes advantages over the rows that it keeps: give logp, or set "
                "baseline_over = 'all'"
            )
        return self.kept_rows(batch, logp.detach())


def rows_where(kept: Tensor, mask: Tensor) -> Tensor:
    """[B] bool: rows all of whose policy tokens are ``kept`` [B,T]; a decision about the row is the same for all."""
    return torch.where(mask, kept, True).all(1)
