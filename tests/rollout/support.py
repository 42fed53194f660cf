"""A tiny float64 Llama, requests over it, and plain reference computations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stretto.data.trajectory import Completion
from stretto.rollout.engine import TorchEngine
from stretto.rollout.types import Request, SamplingParams

VOCAB, MAX_TOKENS, EOS = 40, 48, (1, 2)


def build_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> LlamaForCausalLM:
    """Grouped heads, tied embeddings, weights large enough to make sharp and varied distributions."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return model.to(dtype)


def weights_of(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Independent copy of the parameters, by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def perturbed(weights: dict[str, torch.Tensor], seed: int, scale: float = 0.05) -> dict[str, torch.Tensor]:
    """Another version of these weights."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: w + scale * torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)
        for name, w in weights.items()
    }


def engine(model: Any = None, max_num_seqs: int = 4, **options: Any) -> TorchEngine:
    """An engine that serves version 0, unless told otherwise."""
    options = {"version": 0, "seed": 7, "eos_ids": EOS, "max_model_len": MAX_TOKENS, **options}
    return TorchEngine(model or build_model(), max_num_seqs=max_num_seqs, **options)


def request(
    id: int, tokens: Sequence[int] | np.ndarray, max_new_tokens: int = 12, *, group: int = 0, **options: Any
) -> Request:
    """A request whose trajectory has the id ``id``, which is its noise key, too; sampling settings and record options
    by name."""
    rest = {
        name: options.pop(name)
        for name in ("version", "top_logprobs", "sampled_logprobs", "trajectory")
        if name in options
    }
    sampling = SamplingParams(max_new_tokens=max_new_tokens, **options)
    trajectory = rest.pop("trajectory", id)
    return Request(id, trajectory, group, np.asarray(tokens, np.int32), sampling, **rest, noise_key=trajectory)


def run(eng: TorchEngine, steps: int = 3) -> dict[int, Completion]:
    """Advance until nothing is left."""
    out: dict[int, Completion] = {}
    for _ in range(500):
        report = eng.advance(steps)
        out.update(report.finished)
        if not report.running and not report.waiting:
            return out
    raise AssertionError("the engine never became idle")


def mixed_requests(n: int, seed: int = 0) -> list[Request]:
    """Requests of all kinds: lengths, settings, records, shared prompts."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(3, VOCAB, rng.integers(1, 14)) for _ in range(n)]
    return [
        request(
            i, prompts[i // 2 * 2], int(rng.integers(1, 24)), group=i // 2, temperature=[1.0, 0.7, 0.0, 1.4][i % 4],
            top_p=[1.0, 0.85][i % 2], top_k=[0, 9, 4][i % 3], stop=((5,), (), (6, 7))[i % 3], top_logprobs=i % 3,
            sampled_logprobs=(0, 2)[i % 2],
        )
        for i in range(n)
    ]  # fmt: skip


def assert_same(got: Completion, want: Completion, atol: float = 1e-10) -> None:
    """Equal tokens, versions and finish; log-probabilities, entropies and records within ``atol``."""
    assert got.tokens.tolist() == want.tokens.tolist()
    assert got.versions.tolist() == want.versions.tolist()
    assert got.finish == want.finish
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=0, atol=atol)
    np.testing.assert_allclose(got.entropy, want.entropy, rtol=0, atol=atol)
    assert got.records.keys() == want.records.keys()
    for name, values in want.records.items():
        np.testing.assert_allclose(got.records[name], values, rtol=0, atol=atol)


def reference_logp(model: LlamaForCausalLM, weights: dict[str, torch.Tensor], tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities [T, V] of the next token after each of ``tokens``, by a plain forward pass."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
        logits = model(torch.as_tensor(tokens, dtype=torch.long)[None]).logits[0]
        return logits.log_softmax(-1).numpy()
