"""Which row of a batch made a gradient non-finite."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.learner.scores import Scorer


def bad_row(scorer: Scorer, part: TokenBatch, advantages: Tensor) -> str:
    """The first row whose numbers aren't finite; else the one with the largest advantage."""

    def name(row: int) -> str:
        return f"row {row}" if part.trajectory is None else f"trajectory {int(part.trajectory[row])}"

    with torch.no_grad():
        for row in range(part.rows):
            one = part.select(torch.tensor([row]))
            if not bool(advantages[row].isfinite().all()):
                return f"advantages of {name(row)} aren't finite"
            if not bool(scorer.scores(one, values=False).logp.isfinite().all()):
                return f"log-probabilities of {name(row)} aren't finite"
    largest, at = advantages.abs().amax(1).max(0)
    return f"every row is finite, so it overflowed; the largest advantage is {float(largest):g} in {name(int(at))}"
