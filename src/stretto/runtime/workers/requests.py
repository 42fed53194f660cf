"""Requests on the wire: members of a group share their prompt, so it travels once; plain tuples pickle fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.rollout.types import Request

Packed = tuple[list[Any], list[Any], list[tuple[Any, ...]]]
"""Distinct token arrays, distinct sampling parameters, and one row per request with indices into both."""


def pack_requests(requests: Sequence[Request]) -> Packed:
    """The same requests, what they share named once."""
    tokens: dict[tuple[int, bytes], int] = {}
    same: dict[int, int] = {}  # by identity first: members that share an array need no look into it
    sampling: dict[int, int] = {}
    arrays: list[Any] = []
    params: list[Any] = []
    rows: list[tuple[Any, ...]] = []
    for r in requests:
        at = same.get(id(r.tokens))
        if at is None:
            at = tokens.setdefault((r.group, r.tokens.tobytes()), len(arrays))
            if at == len(arrays):
                arrays.append(r.tokens)
            same[id(r.tokens)] = at
        which = sampling.get(id(r.sampling))
        if which is None:
            which = sampling[id(r.sampling)] = len(params)
            params.append(r.sampling)
        rows.append((r.id, r.trajectory, r.noise_key, r.group, at, which, r.version, r.top_logprobs, r.sampled_logprobs,
                     r.distribution, r.keep))  # fmt: skip
    return arrays, params, rows


def unpack_requests(packed: Packed) -> list[Request]:
    """The requests again; those with equal tokens share one array."""
    arrays, params, rows = packed
    return [
        Request(id, trajectory, group, arrays[at], params[which], *rest, noise_key=noise_key)
        for id, trajectory, noise_key, group, at, which, *rest in rows
    ]
