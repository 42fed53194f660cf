"""Beginnings of trajectories, to be scored by the learner."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.data.records import UNRECORDED
from stretto.data.schema import Columns
from stretto.data.trajectory import Trajectory


def segment(trajectory: Trajectory, mask: NDArray[np.bool_]) -> Trajectory | None:
    """The trajectory up to its last token in ``mask``, with that as its policy mask; None: there is none."""
    if not mask.any():
        return None
    t, end = trajectory, int(mask.nonzero()[0][-1]) + 1
    zeros = np.zeros(end)
    records = {name: values[:end] for name, values in t.records.items() if name in UNRECORDED}
    return Trajectory(t.id, t.group, t.tokens[:end], mask[:end], t.versions[:end], t.logprobs[:end], zeros, 0.0,
                      version_complete=t.version_complete, records=records)  # fmt: skip


def prefix(trajectory: Trajectory) -> Trajectory | None:
    """Up to the last token that is older than the trajectory's last one; None: all are of one version."""
    t = trajectory
    sampled = t.versions[t.mask]
    return segment(t, t.mask & (t.versions < sampled[-1])) if len(sampled) else None


def forgetting(columns: Columns, logp: NDArray[np.floating[Any]], absolute: bool) -> NDArray[np.float64]:
    """How far a policy has moved away from each of these segments, of at least one policy token: mean over those of
    max(0, logp_behavior - logp), or of the distance if ``absolute``. ``logp``: flat, as the learner scores them."""
    gap = columns["logp_behavior"] - logp
    drift = np.where(columns["mask"], np.abs(gap) if absolute else np.maximum(gap, 0.0), 0.0)
    starts = columns["length"].cumsum() - columns["length"]
    mean: NDArray[np.float64] = np.add.reduceat(drift, starts) / np.add.reduceat(
        columns["mask"], starts, dtype=np.int64
    )
    return mean
