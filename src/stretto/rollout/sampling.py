"""From logits to tokens: temperature, top-k, top-p, one uniform number per token by the inverse CDF.

What is recorded belongs to the distribution really sampled from, after temperature, top-k and top-p. At
temperature 0 the token is the likeliest one and the records are those of the untempered, unfiltered distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.data.arrays import Array
from stretto.rollout.types import SamplingParams


@dataclass(slots=True)
class RowSampling:
    """Sampling settings of B rows; None where no row needs the setting."""

    inverse_temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    greedy: Tensor | None

    @staticmethod
    def of(params: list[SamplingParams], vocab: int, dtype: torch.dtype) -> RowSampling:
        """Settings of these rows as columns [B, 1]. Greedy rows are neither tempered nor filtered."""

        def column(values: Sequence[float], off: float, kind: torch.dtype) -> Tensor | None:
            return torch.tensor(values, dtype=kind)[:, None] if any(v != off for v in values) else None

        hot = [p.temperature > 0 for p in params]
        rows = list(zip(params, hot, strict=True))
        return RowSampling(
            column([1.0 / p.temperature if h else 1.0 for p, h in rows], 1.0, dtype),
            column([min(p.top_k, vocab) if h and p.top_k else vocab for p, h in rows], vocab, torch.long),
            column([p.top_p if h and p.top_p < 1 else 2.0 for p, h in rows], 2.0, torch.float64),
            column([not h for h in hot], False, torch.bool),
        )

    def take(self, which: NDArray[np.int64]) -> RowSampling:
        """The settings of rows that have these (repeated, in any order)."""
        index = torch.from_numpy(which)
        columns = (self.inverse_temperature, self.top_k, self.top_p, self.greedy)
        return RowSampling(*(None if column is None else column[index] for column in columns))


@dataclass(slots=True)
class Sampled:
    """One token per row [B], and the optional records [B, K] and [B, M]."""

    tokens: NDArray[np.int64]
    logprobs: Array
    entropy: Array
    top_ids: NDArray[np.int64] | None = None
    top_logprobs: Array | None = None
    sampled_ids: NDArray[np.int64] | None = None
    sampled_logprobs: Array | None = None
    support: NDArray[np.uint8] | None = None


def filtered(logits: Tensor, rows: RowSampling) -> Tensor:
    """Logits [B, V] after temperature, top-k and top-p; what is cut is -inf. Ties with the last kept are kept.

    The order is that of Transformers: top-p counts mass among what top-k left.
    """
    if rows.inverse_temperature is not None:
        logits = logits * rows.inverse_temperature
    if rows.top_k is None and rows.top_p is None:
        return logits
    ordered = logits.sort(dim=-1, descending=True).values
    if rows.top_k is not None:
        least = ordered.gather(1, rows.top_k - 1)
        logits = logits.masked_fill(logits < least, float("-inf"))
        ordered = ordered.masked_fill(ordered < least, float("-inf"))
    if rows.top_p is not None:
        mass = ordered.double().softmax(-1)
        before = mass.cumsum(-1) - mass
        kept = (before < rows.top_p).sum(-1, keepdim=True).clamp_min(1)
        logits = logits.masked_fill(logits < ordered.gather(1, kept - 1), float("-inf"))
    return logits


def sample(
    logits: Tensor,
    rows: RowSampling,
    uniform: NDArray[np.float64],
    top: int = 0,
    extra_noise: NDArray[np.float64] | None = None,
    support: bool = False,
) -> Sampled:
    """Sample one token per row of ``logits`` [B, V] with ``uniform`` [B].

    ``top`` K > 0 also returns the K likeliest ids and their log-probabilities, ``extra_noise`` [B, M] uniforms M
    further samples, ``support`` the tokens that were kept, 8 a byte (``records.UNRECORDED``). Tokens follow the CDF in
    the order of ids: the token is the first whose cumulated mass (summed in float64) reaches ``uniform`` times the
    total, so a token without mass is never sampled.
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    logprobs = filtered(logits, rows).log_softmax(-1)
    mass = logprobs.exp()
    cdf = mass.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:]
    token = torch.searchsorted(cdf, torch.from_numpy(uniform)[:, None] * total)
    token.clamp_(max=logits.shape[1] - 1)  # only where the total is NaN; the caller refuses that row
    if rows.greedy is not None:
        token = torch.where(rows.greedy, logits.argmax(-1, keepdim=True), token)
    chosen = logprobs.gather(1, token)
    out = Sampled(token[:, 0].numpy(), chosen[:, 0].numpy(), np.empty(0))
    if top:
        head = logprobs.topk(top, -1)
        out.top_ids, out.top_logprobs = head.indices.numpy(), head.values.numpy()
    if extra_noise is not None:
        ids = torch.searchsorted(cdf, torch.from_numpy(extra_noise) * total).clamp_(max=logits.shape[1] - 1)
        out.sampled_ids, out.sampled_logprobs = ids.numpy(), logprobs.gather(1, ids).numpy()
    if support:
        out.support = np.packbits((logprobs > float("-inf")).numpy(), axis=1, bitorder="little")
    # -inf is clamped last: 0 * -inf would be NaN, and the records above want the -inf
    out.entropy = -torch.linalg.vecdot(mass, logprobs.clamp_(min=-1e30)).numpy()
    return out
