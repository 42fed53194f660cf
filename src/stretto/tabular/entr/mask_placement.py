"""At which entropies a trust region drops tokens whose log-ratio is noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from stretto.data.arrays import Bools
from stretto.data.batch import TokenBatch
from stretto.objectives import get
from stretto.tabular.entr.token_noise import Positions

Region = Literal["fixed", "entr"]
EPS = 0.01


@dataclass(frozen=True)
class Placement:
    """``entropy``: mean H of the dropped tokens, nats, NaN if none is; ``correlation`` of being dropped with H, 0 if
    all are treated alike; ``share`` of the tokens that are dropped."""

    entropy: float
    correlation: float
    share: float


def dropped(seen: Positions, region: Region, share: float = 0.05) -> Bools:
    """[N]: tokens without a gradient under the objective ``entr`` whose tau drops ``share`` of them. ``fixed``: it is
    told the same entropy everywhere, which makes it a threshold on abs(d)."""
    entropy = seen.entropy if region == "entr" else np.ones_like(seen.entropy)
    tau = float(np.quantile(seen.d**2 / (entropy + EPS), 1 - share))
    behavior = torch.zeros(len(seen.d), 1, dtype=torch.float64)
    logp = torch.from_numpy(seen.d[:, None].copy()).requires_grad_()
    batch = TokenBatch(
        mask=torch.ones_like(behavior, dtype=torch.bool),
        logp_behavior=behavior,
        entropy=torch.from_numpy(entropy[:, None]),
    )
    objective = get("entr", tau=tau, eps=EPS, clip_low=1.0, clip_high=1e9)  # the clip itself never binds
    loss = objective(batch, logp, advantages=torch.ones(len(seen.d), dtype=torch.float64))
    (slope,) = torch.autograd.grad(loss.total, logp)
    return np.asarray(slope[:, 0] == 0)


def placement(seen: Positions, region: Region, share: float = 0.05) -> Placement:
    """At which entropies ``region`` drops the ``share`` of the tokens whose log-ratio is furthest out."""
    mask = dropped(seen, region, share)
    if mask.all() or not mask.any():
        return Placement(float(seen.entropy.mean()) if mask.any() else math.nan, 0.0, float(mask.mean()))
    return Placement(float(seen.entropy[mask].mean()), float(np.corrcoef(mask, seen.entropy)[0, 1]), float(mask.mean()))


def shares(seen: Positions, region: Region, bins: int = 10) -> tuple[list[float], list[float]]:
    """(mean entropy, dropped share) of ``bins`` equally large sets of tokens, by entropy."""
    mask = dropped(seen, region)
    parts = np.array_split(np.argsort(seen.entropy), bins)
    return [float(seen.entropy[p].mean()) for p in parts], [float(mask[p].mean()) for p in parts]
