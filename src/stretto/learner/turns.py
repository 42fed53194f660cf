"""A multi-turn trajectory as one row per turn: the turn's tokens train, everything before them is context.

For objectives that weigh steps of trajectories (AsyncWebRL's 1/|tau| and 1/k, the trajectory ratios of TIC-GRPO and
GMC-GRPO): rows of one trajectory share ``trajectory`` and ``group``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.learner.result import Floats

_OF_ROWS = ("length", "trajectory", "reward", "terminated", "truncated", "turns", "version_complete", "group",
            "reward_fast", "reward_slow", "trained_at")  # fmt: skip


@dataclass(frozen=True)
class Turns:
    """``columns``: a row per turn. ``source`` [tokens of all rows]: the place of each among the ``tokens`` of the
    trajectories."""

    columns: Columns
    source: NDArray[np.int64]
    tokens: int

    def gathered(self, flat: Floats) -> Floats:
        """Per-token numbers of the rows as per-token numbers of the trajectories [tokens]; NaN off the policy's."""
        out = np.full(self.tokens, np.nan, flat.dtype)
        mask = self.columns["mask"]
        out[self.source[mask]] = flat[mask]
        return out


def by_turn(columns: Columns) -> Turns:
    """Split packed trajectories (``stretto.data.columns``) into rows.

    A turn is an unbroken run of policy tokens. Its row holds the trajectory up to the turn's last token, only the
    turn's tokens in the mask, and what was rewarded since the turn before; the last row also what follows it. Each
    policy token and each reward is in exactly one row's mask and rewards. Earlier rows are neither terminated nor
    truncated. A trajectory without policy tokens stays one row.
    """
    length, mask = columns["length"], columns["mask"]
    tokens = len(mask)
    ends = np.cumsum(length)
    starts = ends - length
    # first and last tokens of the runs; two trajectories that touch are not one run
    before = np.concatenate([[False], mask[:-1]])
    before[starts[length > 0]] = False
    after = np.concatenate([mask[1:], [False]])
    after[ends[length > 0] - 1] = False
    last = np.flatnonzero(mask & ~after)
    owner = np.searchsorted(ends, last, side="right")
    empty = np.setdiff1d(np.arange(len(length)), owner)
    owner, last = np.concatenate([owner, empty]), np.concatenate([last, ends[empty] - 1])
    order = np.lexsort((last, owner))
    owner, last = owner[order], last[order]
    is_last = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, bool)
    is_first = np.insert(owner[1:] != owner[:-1], 0, True) if len(owner) else np.zeros(0, bool)
    begin = starts[owner]
    end = np.where(is_last, ends[owner], last + 1)
    fresh = np.where(is_first, begin, np.roll(last + 1, 1))  # what no earlier row has told
    size = end - begin
    row = np.repeat(np.arange(len(size)), size)
    source = np.arange(size.sum()) - (np.cumsum(size) - size)[row] + begin[row]
    told = source >= fresh[row]
    out: Columns = {}
    for name, column in columns.items():
        if name in _OF_ROWS:
            out[name] = column[owner]
        else:
            out[name] = column[source]
            assert len(column) == tokens, f"{name} is neither per row nor per token"
    out["length"] = size.astype(length.dtype)
    out["mask"] = out["mask"] & told
    out["rewards"] = np.where(told, out["rewards"], 0.0)
    for name in ("terminated", "truncated"):
        out[name] = out[name] & is_last
    return Turns(out, source, tokens)


def totals_of(columns: Columns, rows: str = "trajectory") -> Totals:
    """Denominators of an optimizer step on these packed trajectories, for ``learner.rows`` = ``rows``. Tokens whose
    recorded log-probability isn't finite don't count: they leave training."""
    split = by_turn(columns).columns if rows == "turn" and len(columns["length"]) else columns
    if not len(split["length"]):
        return Totals(0, 0, 0)
    tokens = int((split["mask"] & np.isfinite(split["logp_behavior"])).sum())
    return Totals(tokens, len(split["length"]), len(np.unique(split["trajectory"])))
