"""What this package's own passes expect of the modules that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig

    from stretto.kernel.json import Jsonable
    from stretto.models.tokenizer import LightTokenizer


class Embedding(Protocol):
    """A matrix that is applied; it may carry an adapter."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Of hidden states, or of ids."""
        ...


class Linear(Embedding, Protocol):
    """A linear layer; it may carry an adapter."""

    bias: Tensor | None


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


@runtime_checkable
class Demonstrates(Protocol):
    """An environment with worked answers: what a warm start learns from."""

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Called once before anything else."""
        ...

    def demonstration(self, index: int) -> tuple[list[int], list[bool]]:
        """Ids of training task number ``index`` and of its worked answer, and which of them the answer is."""
        ...


class Norm(Protocol):
    """A root-mean-square norm over the last dimension."""

    weight: Tensor
    variance_epsilon: float


class Attention(Protocol):
    """The attention of a Llama's block; some models norm each head's queries and keys (``q_norm``, ``k_norm``)."""

    head_dim: int
    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    q_norm: Norm
    k_norm: Norm


class GatedMLP(Protocol):
    """down(silu(gate(x)) * up(x))."""

    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear


class Block(Protocol):
    """One layer of a Llama."""

    self_attn: Attention
    mlp: GatedMLP
    input_layernorm: Norm
    post_attention_layernorm: Norm


class Rotary(Protocol):
    """(cos, sin) of positions, each [1,N,D]."""

    inv_freq: Tensor
    attention_scaling: float

    def __call__(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of ``position_ids`` [1,N]; ``x`` says the dtype."""
        ...


class LlamaTrunk(Protocol):
    """A Llama without its head."""

    config: PretrainedConfig
    layers: Sequence[Block]
    norm: Norm
    embed_tokens: Embedding
    rotary_emb: Rotary


class Llama(Protocol):
    """A causal LM of ``llama_like.FAST_CLASSES``."""

    config: PretrainedConfig
    model: LlamaTrunk
    lm_head: Linear

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by their Transformers names, tied ones once."""
        ...


class ChatTemplates(Protocol):
    """What a chat asks of a tokenizer of Transformers, whose own annotations allow for texts alone."""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Jsonable]], *, tools: Sequence[Mapping[str, Jsonable]] | None,
        chat_template: str | None, tokenize: bool, continue_final_message: bool, add_generation_prompt: bool,
        **variables: Jsonable,
    ) -> str:  # fmt: skip
        """The messages as one text."""
        ...

    def get_chat_template(self, chat_template: str | None, tools: Sequence[Mapping[str, Jsonable]] | None) -> str:
        """The Jinja text of the template, by name, or the only one."""
        ...


class AdaptedLayer(Protocol):
    """PEFT's layer around one that has a low-rank adapter."""

    def get_delta_weight(self, adapter: str) -> Tensor:
        """What the adapter adds to the layer's weight."""
        ...

    def get_base_layer(self) -> nn.Module:
        """The layer itself."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Of layer and adapter."""
        ...


class AdaptedEmbedding(Protocol):
    """PEFT's layer around an embedding: the factors of each adapter, by its name, and their scale."""

    lora_embedding_A: Mapping[str, Tensor]
    lora_embedding_B: Mapping[str, Tensor]
    scaling: Mapping[str, float]
