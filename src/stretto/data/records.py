"""Per-token records beside the columns that every token has; which of them may be missing, and what that means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.data.arrays import Array
from stretto.kernel.errors import InvariantError

UNRECORDED: dict[str, float] = {"temperature": np.nan, "support": 255}
"""Records of the distribution that a token was sampled from, and what stands for a token without one: sampled at the
run's temperature, from the whole vocabulary. ``temperature`` [n,1] floating; ``support`` [n,W] uint8, bit v % 8 of byte
v // 8 says whether the sampler kept token v (top-k, top-p)."""


def padded_records(
    parts: Sequence[tuple[int, dict[str, Array]]],
) -> dict[str, list[Array]]:
    """For each record that some of these parts (tokens, records) have: that of every part."""
    known = {name: values for _, records in parts for name, values in records.items()}
    out: dict[str, list[Array]] = {name: [] for name in known}
    for n, records in parts:
        for name, like in known.items():
            values = records.get(name)
            if values is None:
                if name not in UNRECORDED:
                    raise InvariantError(f"record {name!r} is there for some tokens of the policy and not for others")
                values = np.full((n, *like.shape[1:]), UNRECORDED[name], like.dtype)
            out[name].append(values)
    return out
