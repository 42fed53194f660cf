"""TIC-GRPO."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.gmc_grpo import GMCGRPO, Variant
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("tic-grpo")
@dataclass(frozen=True, kw_only=True)
class TICGRPO(GMCGRPO):
    """-(1/B) sum_i sg(w_i) A_i (1/n_i) sum_t logp, w_i = min(r_i, 1 + eps) (arXiv 2508.02833), r_i = prod_t current /
    behaviour over all rows of the trajectory.

    Upper-only clipping and the length-corrected normalisation are the paper's. ``variant``: ``tic_truncate``
    (default) or ``tic_zero``, w_i = 0 above 1 + eps; both readings and ``eps`` 0.2 are [inferred].
    """

    variant: Variant = "tic_truncate"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.variant != "gmc", "variant = 'gmc' is the objective 'gmc-grpo'")
