"""What this package's own passes expect of the modules that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

Layer = Callable[["Tensor"], "Tensor"]
"""A linear layer, or an embedding: it may carry an adapter."""


class Context(Protocol):
    """What PyTorch hands to the two passes of an ``autograd.Function``."""

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """What ``save_for_backward`` kept."""
        ...

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Of each argument of ``forward``."""
        ...

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep these until the backward pass."""
        ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """These results carry no gradient."""
        ...


class Norm(Protocol):
    """A root-mean-square norm over the last dimension."""

    weight: Tensor
    variance_epsilon: float


class Attention(Protocol):
    """The attention of a Llama's block; some models norm each head's queries and keys (``q_norm``, ``k_norm``)."""

    head_dim: int
    q_proj: Layer
    k_proj: Layer
    v_proj: Layer
    o_proj: Layer
    q_norm: Norm
    k_norm: Norm


class GatedMLP(Protocol):
    """down(silu(gate(x)) * up(x))."""

    gate_proj: Layer
    up_proj: Layer
    down_proj: Layer


class Block(Protocol):
    """One layer of a Llama."""

    self_attn: Attention
    mlp: GatedMLP
    input_layernorm: Norm
    post_attention_layernorm: Norm


class LlamaTrunk(Protocol):
    """A Llama without its head; ``rotary_emb`` gives (cos, sin) of positions, each [1,N,D]."""

    config: PretrainedConfig
    layers: Sequence[Block]
    norm: Norm
    embed_tokens: Layer
    rotary_emb: Callable[..., tuple[Tensor, Tensor]]
