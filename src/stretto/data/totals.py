"""Denominators of an optimizer step. Free of torch: whoever splits a step's rows counts them first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """Structural denominators of a whole optimizer step: policy tokens N, rows B and trajectories (a trajectory may
    have several rows), before any rejection."""

    tokens: int
    rows: int
    trajectories: int
