"""Random models of many families, as small as they go, and the ratio of each with itself: engine against learner."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.trajectory import Trajectory, Transcript
from stretto.models.head import Head, head_transform
from stretto.models.llama_like import unsupported
from stretto.models.logp import policy_positions, trunk_of
from stretto.models.prefix import PolicyStates
from stretto.rollout.engine import TorchEngine
from stretto.rollout.types import Request, SamplingParams

VOCAB, MAX_TOKENS, WINDOW, SWITCH = 41, 48, 8, 24
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
_OLD: dict[str, Any] = {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128}
_MLA: dict[str, Any] = {
    "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
_MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LONG: dict[str, Any] = {
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": SWITCH,
}  # fmt: skip


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama tied": {"tie_word_embeddings": True},
    "llama biased": {"attention_bias": True, "mlp_bias": True},
    "llama yarn": rope("yarn", factor=4.0, original_max_position_embeddings=SWITCH),
    "llama llama3": rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=SWITCH
    ),
    "llama dynamic": {**rope("dynamic", factor=2.0), "max_position_embeddings": MAX_TOKENS},
    "llama longrope": rope("longrope", factor=4.0, **{**_LONG, "original_max_position_embeddings": MAX_TOKENS}),
    "qwen2 windowed": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {},
    "mistral windowed": {"sliding_window": WINDOW},
    "gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "phi3": {},
    "gpt2": _OLD,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    "granite": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.3,
        "embedding_multiplier": 3.0,
    },
    "cohere2": {"sliding_window": WINDOW, "logit_scale": 0.25},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW, **rope("default")},
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama partly rotated": rope("default", partial_rotary_factor=0.5),
    "llama linear": rope("linear", factor=2.0),
    "qwen2": {},
    "gemma": {},
    "gpt_neox": {"rotary_pct": 0.25},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "olmo2": {},
    "stablelm": {},
    "phi": {},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 24},
    "deepseek_v2": _MLA,
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "num_heads": 4,
        "window_size": MAX_TOKENS,
    },
    **{k: {} for k in ("olmo", "starcoder2", "biogpt", "persimmon", "glm", "glm4", "nemotron", "helium", "arcee")},
    **{k: {} for k in ("seed_oss", "ernie4_5", "hunyuan_v1_dense", "apertus", "diffllama", "doge", "nanochat")},
    **{f"{k} windowed": {"sliding_window": WINDOW} for k in ("olmo3", "starcoder2", "exaone4", "mixtral")},
    **{k: {**_OLD, "rotary_dim": 4} for k in ("gptj", "codegen")},
    **dict.fromkeys(("gpt_bigcode", "ctrl"), _OLD),
    **dict.fromkeys(("qwen3_moe", "olmoe"), _MOE),
    "granitemoe": {"num_local_experts": 4, "logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    "smollm3": {"no_rope_layers": [1, 0]},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "llama longrope": (rope("longrope", factor=4.0, **_LONG), "'longrope'.* Set engine.max_model_len = 24 or less"),
    "phi3 longrope": (
        {**rope("longrope", **_LONG), "original_max_position_embeddings": SWITCH}, "Phi3ForCausalLM.*longer than 24",
    ),
    "llama dynamic": (
        {**rope("dynamic", factor=2.0), "max_position_embeddings": SWITCH}, "it has 24 positions.*max_model_len = 24",
    ),
    "llama": ({"max_position_embeddings": SWITCH}, "it has 24 positions"),
    "gpt_neo": (
        {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 4, "window_size": WINDOW},
        r"exceeds the window of the local layers of GPTNeoForCausalLM \(8\)",
    ),
    "bloom": ({"n_head": 4, "n_layer": 2}, "BloomForCausalLM can't run on a cache of rows"),
    "falcon alibi": ({"alibi": True}, "FalconForCausalLM can't run on a cache of rows"),
    "mamba": ({"state_size": 4}, "MambaForCausalLM has layers of kind"),
    "rwkv": ({}, "RwkvForCausalLM can't run on a cache of rows"),
    "bert": ({"is_decoder": True}, "transforms its logits"),
    "bart": ({"d_model": 32}, "not supported"),
}  # fmt: skip


def build(name: str, settings: dict[str, Any]) -> Any:
    """The model in evaluation mode, with weights large enough for sharp and varied distributions."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = name.split()[0]
    base = {k: v for k, v in _BASE.items() if not (kind == "falcon" and k == "head_dim")}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**base, **settings})
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except ValueError:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.25 * torch.randn_like(p))
    return model.eval()


def sampled(engine: TorchEngine, *, new: int = 30, **sampling: Any) -> list[Trajectory]:
    """A trajectory for each of six prompts of 2 to 14 tokens, two of them equal."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, VOCAB, n).astype(np.int32) for n in (2, 5, 5, 9, 14, 3)]
    prompts[2] = prompts[1]
    params = SamplingParams(max_new_tokens=new, **sampling)
    engine.add([Request(i, i, 0, prompt, params, noise_key=i) for i, prompt in enumerate(prompts)])
    done: dict[int, Any] = {}
    while len(done) < len(prompts):
        done.update(engine.advance(4).finished)
    out = []
    for i, prompt in enumerate(prompts):
        transcript = Transcript(i, i // 3)
        transcript.observe(prompt)
        transcript.sample(done[i])
        out.append(transcript.finish(float(i % 2)))
    return out


def ratio_with_itself(model: Any, max_model_len: int = MAX_TOKENS) -> torch.Tensor:
    """pi_learner / pi_engine of every sampled token, both being ``model``; float32. Four slots for six rows: they join
    and leave the batch at different lengths."""
    transform = head_transform(model)
    engine = TorchEngine(
        copy.deepcopy(model), max_num_seqs=4, max_model_len=max_model_len, eos_ids=(2,), seed=5, version=0
    )
    batch = TokenBatch.from_columns(pack(sampled(engine)), 0)
    assert batch.tokens is not None
    assert batch.logp_behavior is not None
    states = PolicyStates(trunk_of(model), llama_like=unsupported(model) is None, share=True)
    ids = batch.tokens.flatten()[policy_positions(batch.mask)]
    with torch.no_grad():
        hidden = states(batch.tokens, batch.mask)
        logp, _ = Head(model, transform).logp(hidden, ids[:, None], 1.0, None)
    return (logp[:, 0] - batch.logp_behavior[batch.mask]).exp()
