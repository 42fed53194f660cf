"""Which row of a batch made a gradient non-finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stretto.data.batch import TokenBatch
from stretto.learner.prepare import Prepared
from stretto.learner.scores import Scorer


def bad_row(scorer: Scorer, parts: Sequence[Prepared]) -> str:
    """The first row whose numbers aren't finite; else the one with the largest advantage."""
    with torch.no_grad():
        for part in parts:
            for row in range(part.batch.rows):
                one = part.batch.select(torch.tensor([row]))
                if not bool(part.advantages[row].isfinite().all()):
                    return f"advantages of {_name(part.batch, row)} aren't finite"
                if not bool(scorer.scores(one, values=False).logp.isfinite().all()):
                    return f"log-probabilities of {_name(part.batch, row)} aren't finite"
    largest = [part.advantages.abs().amax(1).max(0) for part in parts]
    which = max(range(len(parts)), key=lambda k: float(largest[k].values))
    size, at = float(largest[which].values), int(largest[which].indices)
    name = _name(parts[which].batch, at)
    return f"every row is finite, so it overflowed; the largest advantage is {size:g} in {name}"


def _name(batch: TokenBatch, row: int) -> str:
    return f"row {row}" if batch.trajectory is None else f"trajectory {int(batch.trajectory[row])}"
