"""Which models the package's own forward passes, the engine's and the learner's, can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from stretto.models.protocols import Llama, LlamaTrunk

FAST_CLASSES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")

FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary scalings in which the rotation of a position depends on nothing else."""


def unsupported(model: PreTrainedModel) -> str | None:
    """Why ``LlamaForward`` can't run this model; None if it can."""
    config, name = model.config, type(model).__name__
    if name not in FAST_CLASSES:
        return f"{name} isn't one of {', '.join(FAST_CLASSES)}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in FIXED_ROTATIONS:
        return f"rope_type is {rope['rope_type']!r}, not one of {', '.join(FIXED_ROTATIONS)}"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "only part of each head is rotated"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "some layers use sliding-window attention"
    if name == "MistralForCausalLM" and config.sliding_window is not None:
        return f"sliding_window is {config.sliding_window}"
    if config.hidden_act != "silu":
        return f"hidden_act is {config.hidden_act!r}, not 'silu'"
    llama = as_llama(model)
    layer = llama.model.layers[0]
    biased = (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj, llama.lm_head)
    if any(getattr(module, "bias", None) is not None for module in biased):
        return "projections other than q, k, v have biases"
    if layer.self_attn.head_dim % 2:
        return f"head_dim is odd: {layer.self_attn.head_dim}"
    return None


def as_llama(model: PreTrainedModel) -> Llama:
    """``model`` with the parts that its class gives it; ask ``unsupported`` first."""
    return cast("Llama", model)


def as_llama_trunk(trunk: PreTrainedModel) -> LlamaTrunk:
    """``trunk``, of such a model, with the parts that its class gives it."""
    return cast("LlamaTrunk", trunk)
