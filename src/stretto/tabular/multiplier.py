"""What an objective multiplies grad log pi of a sampled token by, at ratios of one's choice."""

from __future__ import annotations

import numpy as np
import torch

from stretto.data.arrays import Floats
from stretto.data.batch import TokenBatch
from stretto.objectives.interface import LossFunction


def multipliers(objective: LossFunction, ratios: Floats, advantages: Floats, **columns: Floats) -> Floats:
    """[n]: what ``objective``, a mean over tokens, multiplies grad log pi by, for n rows of one token each with these
    ``ratios`` current / behaviour and ``advantages`` [n]. ``columns`` [n]: what else its batch holds (``logp_old``,
    say), where the behaviour's log-probability is 0."""
    logp = torch.from_numpy(np.log(ratios))[:, None].requires_grad_()
    batch = TokenBatch(
        mask=torch.ones(logp.shape, dtype=torch.bool),
        logp_behavior=torch.zeros_like(logp).detach(),
        group=torch.arange(len(ratios)),
    ).replace(**{name: torch.from_numpy(x)[:, None] for name, x in columns.items()})
    loss = objective(batch, logp, advantages=torch.from_numpy(advantages)).policy
    return np.asarray(-torch.autograd.grad(loss, logp)[0][:, 0].numpy() * len(ratios))


def both_signs(ratios: Floats) -> tuple[Floats, Floats]:
    """(ratios, advantages) [2n]: every one of ``ratios`` [n] with an advantage of 1 and of -1."""
    return np.tile(ratios, 2), np.repeat([1.0, -1.0], len(ratios))
