"""SAT on sequence ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.objectives.registry import REGISTRY
from stretto.objectives.sat import SAT


@REGISTRY.register("sat-gspo")
@dataclass(frozen=True, kw_only=True)
class SATGSPO(SAT):
    """-min(s A, clip(s, 1 - clip_low c_minus, 1 + clip_high c_plus) A), s = exp(mean_t log(current / behaviour)) of the
    row, A its mean, c as in SAT (arXiv 2607.18722 on GSPO, arXiv 2507.18071).

    Clip 3e-4 / 4e-4 [inferred]: GSPO's widely quoted widths, as for sequence ratios those of tokens never bind. The
    quantile weighs rows by their length and often equals a row's |log s|: such a row is not gated.
    """

    level: Literal["token", "sequence"] = "sequence"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
