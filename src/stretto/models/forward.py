"""What an engine needs of a model: parameters by their Transformers names, prefill and decode on a row cache.

The cache is one buffer per layer, [rows, max_model_len, width]: at each position the keys of all heads, then the
values of all heads. ``KVShape`` gives the widths. A position that was never written holds zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from stretto.data.arrays import Array
from stretto.kernel.errors import ConfigError, WeightsError, did_you_mean
from stretto.models.reach import check_reach, description_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Weights = Mapping[str, Tensor | Array]
"""Parameters by their Transformers names; some or all."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """Heads and widths of one layer's cache."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Numbers per position."""
        return self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start``..``stop`` (counted from the first decoded row) that attend to ``length`` positions.

    ``bias`` [rows, 1, 1, length] is 0 where a row may look and -inf elsewhere; None: all rows may look everywhere.
    """

    start: int
    stop: int
    length: int
    bias: Tensor | None


class Places:
    """Where chunks of tokens [N, P] go that follow what rows have cached: chunk i is ``counts[i]`` tokens from position
    ``starts[i]`` on, the rest of it is padding. ``at`` [N, P]: positions; ``row``, ``column``: of what isn't padding;
    ``total``: positions that the longest row has afterwards; ``seen`` [N, 1, P, total]: what each token may look at."""

    def __init__(self, starts: Tensor, counts: Tensor) -> None:
        self.starts, self.counts = starts, counts
        self.total = int((starts + counts).max())
        chunk = torch.arange(int(counts.max()))
        self.at = (starts[:, None] + chunk).clamp_(max=self.total - 1)
        self.row, self.column = (chunk < counts[:, None]).nonzero(as_tuple=True)
        self.seen = torch.arange(self.total) <= self.at[:, None, :, None]

    def write(self, cache: Tensor, rows: Tensor, new: Tensor) -> Tensor:
        """``new`` [N, P, width] into the cache of ``rows``; returns all that these hold [N, total, width]."""
        cache[rows[self.row], self.at[self.row, self.column]] = new[self.row, self.column]
        return cache[rows, : self.total]


class Forward(Protocol):
    """One set of weights that can prefill and decode."""

    vocab: int
    dtype: torch.dtype
    kv_shapes: list[KVShape]

    def parameters(self) -> dict[str, Tensor]:
        """Every parameter by its Transformers name; views, in the model's own layout."""
        ...

    def check(self, weights: Weights) -> None:
        """Raise ``WeightsError`` for unknown names or wrong shapes; ``weights`` may hold only some parameters."""
        ...

    def copy_in(self, weights: Weights) -> None:
        """Overwrite these parameters in place (``check`` them first)."""
        ...

    def clone(self) -> Self:
        """Independent copy of the weights."""
        ...

    def prefill(self, tokens: Tensor, kv: Sequence[Tensor], rows: Tensor, last: Tensor | None = None) -> Tensor | None:
        """Write the cache of ``tokens`` [N, P] (right-padded; what stands in the padding is never read) into
        ``kv[layer][rows, :P]``. ``last`` [N]: also return the logits [N, vocab] after these positions."""
        ...

    def extend(self, tokens: Tensor, kv: Sequence[Tensor], rows: Tensor, places: Places) -> Tensor:
        """Append ``tokens`` [N, P] (right-padded) to rows whose cache holds what comes before; returns the logits
        [N, vocab] after the last one of each."""
        ...

    def decode(
        self, tokens: Tensor, positions: Tensor, kv: Sequence[Tensor], first: int, spans: Sequence[Span]
    ) -> Tensor:
        """Append ``tokens`` [B] at ``positions`` [B] of rows first..first+B; returns logits [B, vocab]."""
        ...

    def public_keys(self, keys: Tensor) -> Tensor:
        """Cached keys [..., head_dim] in the model's own layout."""
        ...

    def cached_keys(self, keys: Tensor) -> Tensor:
        """Inverse of ``public_keys``."""
        ...


def check_weights(parameters: Mapping[str, Tensor], weights: Weights, aliases: Mapping[str, str]) -> None:
    """Raise ``WeightsError`` for a name that the model lacks, or a shape that isn't its own.

    ``aliases`` maps tied names to the parameter that they share; both may be given only if they're equal.
    """
    for name, value in weights.items():
        known = aliases.get(name, name)
        if known not in parameters:
            raise WeightsError(f"weights: the model has no parameter {name!r}; {_hint(name, parameters)}")
        want, got = tuple(parameters[known].shape), tuple(value.shape)
        if want != got:
            raise WeightsError(f"weights: {name!r} has shape {got}, the model's is {want}")
        if known != name and known in weights:
            one, other = torch.as_tensor(value), torch.as_tensor(weights[known])
            if one.data_ptr() != other.data_ptr() and not torch.equal(one, other):
                raise WeightsError(f"weights: {name!r} and {known!r} are tied in this model but differ")


def _hint(name: str, parameters: Mapping[str, Tensor]) -> str:
    hint = did_you_mean(name, parameters)
    return hint if len(hint) < 400 else hint[:400] + " ..."


def build_forward(model: PreTrainedModel, kind: str, dtype: torch.dtype, max_model_len: int) -> Forward:
    """The forward pass for ``model``: ``fast``, ``transformers``, or ``auto`` (fast where it exists).

    Raises ``ConfigError`` if ``fast`` is asked for and the model isn't supported, or if the model can't read rows of
    ``max_model_len``.
    """
    from stretto.models.generic import GenericForward
    from stretto.models.llama import LlamaForward
    from stretto.models.llama_like import as_llama, unsupported

    if kind not in ("auto", "fast", "transformers"):
        raise ConfigError(f"engine.forward = {kind!r}; {did_you_mean(kind, ('auto', 'fast', 'transformers'))}")
    check_reach(description_of(model.config), max_model_len, type(model).__name__)
    reason = unsupported(model)
    if kind == "fast" and reason is not None:
        raise ConfigError(f"engine.forward = 'fast' can't run this model: {reason}. Use 'auto' or 'transformers'")
    if kind == "transformers" or reason is not None:
        return GenericForward(model, dtype, max_model_len)
    return LlamaForward(as_llama(model), dtype, max_model_len)
