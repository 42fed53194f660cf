"""The choice of a reference policy, shared by methods without a clip (not a method by itself)."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.base import Objective
from stretto.objectives.ratio import Reference


@dataclass(frozen=True, kw_only=True)
class Referenced(Objective):
    """``reference``: ``behavior`` (default), ``proximal`` (the trainer's policy at the start of the step: with one
    optimizer step a batch, stale data goes uncorrected) or ``old`` (the trainer's at the token's version)."""

    reference: Reference = "behavior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference == "proximal":
            object.__setattr__(self, "corrects", False)  # nothing relates the data to the policy that sampled it

    @property
    def needs(self) -> frozenset[str]:
        """The critic's, and the reference's."""
        return super().needs | ({self.reference} - {"behavior"})
