from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stretto.kernel.errors import ConfigError, WeightsError
from stretto.models.forward import Places, Span, build_forward
from stretto.models.generic import GenericForward
from stretto.models.llama import LlamaForward

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 36, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


def models() -> dict[str, Any]:
    gpt2 = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=1)
    return {
        "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
        "llama-untied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
        "gpt2": lambda: GPT2LMHeadModel(gpt2),
    }


def make(name: str, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(1)
    model = models()[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.to(dtype)


def decode_two(forward: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of rows of different length: 8 and 6 tokens, in buffer rows 1 and 2 of 4."""
    kv = [torch.zeros(4, 20, shape.width, dtype=forward.dtype) for shape in forward.kv_shapes]
    with torch.inference_mode():
        forward.prefill(tokens[:, :7], kv, torch.tensor([1, 2]))
        bias = torch.zeros(2, 1, 1, 8, dtype=forward.dtype)
        bias[1, ..., 6:] = -torch.inf
        last = torch.stack([tokens[0, 7], tokens[1, 5]])
        return forward.decode(last, torch.tensor([7, 5]), kv, 1, [Span(0, 2, 8, bias)])


@pytest.mark.parametrize("name", list(models()))
@pytest.mark.parametrize("kind", ["auto", "transformers"])
def test_both_paths_equal_a_plain_transformers_forward(name: str, kind: str) -> None:
    model = make(name)
    forward = build_forward(model, kind, torch.float64, 20)
    fast = kind == "auto" and name != "gpt2"
    assert isinstance(forward, LlamaForward if fast else GenericForward)
    tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    got = decode_two(forward, tokens)
    with torch.no_grad():
        for row, length in ((0, 8), (1, 6)):
            want = model(tokens[row : row + 1, :length]).logits[0, -1]
            torch.testing.assert_close(got[row], want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", list(models()))
@pytest.mark.parametrize("kind", ["auto", "transformers"])
def test_a_prefill_gives_the_logits_after_the_last_token_of_each_row(name: str, kind: str) -> None:
    model = make(name)
    forward = build_forward(model, kind, torch.float64, 20)
    tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    kv = [torch.zeros(4, 20, shape.width, dtype=forward.dtype) for shape in forward.kv_shapes]
    with torch.inference_mode():
        got = forward.prefill(tokens, kv, torch.tensor([1, 2]), torch.tensor([7, 4]))
        assert got is not None
        for row, length in ((0, 8), (1, 5)):
            want = model(tokens[row : row + 1, :length]).logits[0, -1]
            torch.testing.assert_close(got[row], want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", list(models()))
@pytest.mark.parametrize("kind", ["auto", "transformers"])
def test_rows_go_on_from_their_cache_by_chunks_of_any_length(name: str, kind: str) -> None:
    model = make(name)
    forward = build_forward(model, kind, torch.float64, 20)
    tokens = torch.randint(0, 50, (3, 12), generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([2, 0, 3])
    kv = [torch.zeros(4, 20, shape.width, dtype=forward.dtype) for shape in forward.kv_shapes]
    starts, counts = torch.tensor([3, 7, 1]), torch.tensor([4, 1, 8])
    longer = torch.cat([tokens, tokens], 1)
    chunks = torch.stack([row[start : start + 8] for row, start in zip(longer, starts, strict=True)])
    with torch.inference_mode():
        forward.prefill(tokens[:, :7], kv, rows)
        got = forward.extend(chunks, kv, rows, Places(starts, counts))
        for at, length in enumerate((starts + counts).tolist()):
            want = model(tokens[at : at + 1, :length]).logits[0, -1]
            torch.testing.assert_close(got[at], want, rtol=0, atol=1e-9)


def test_bfloat16_and_float32_stay_close_to_float64() -> None:
    tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    exact = decode_two(build_forward(make("qwen3"), "fast", torch.float64, 20), tokens)
    for dtype, atol in ((torch.float32, 1e-3), (torch.bfloat16, 0.5)):
        got = decode_two(build_forward(make("qwen3"), "fast", dtype, 20), tokens)
        torch.testing.assert_close(got.double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["llama-tied", "llama-untied", "qwen2", "qwen3", "gpt2"])
def test_parameters_read_back_exactly_what_was_copied_in(name: str) -> None:
    forward = build_forward(make(name), "auto", torch.float64, 20)
    other = {n: torch.randn_like(p) for n, p in make(name).named_parameters()}
    kept = forward.clone()
    before = {n: p.clone() for n, p in kept.parameters().items()}
    forward.check(other)
    forward.copy_in(other)
    got = forward.parameters()
    assert got.keys() == other.keys()
    assert all(torch.equal(got[n], other[n]) for n in other)
    assert all(torch.equal(p, before[n]) for n, p in kept.parameters().items())


@pytest.mark.parametrize("kind", ["fast", "transformers"])
def test_tied_names_are_one_parameter(kind: str) -> None:
    forward = build_forward(make("llama-tied"), kind, torch.float64, 20)
    one, other = torch.randn(50, 36).double(), torch.randn(50, 36).double()
    forward.check({"lm_head.weight": one, "model.embed_tokens.weight": one.clone()})
    with pytest.raises(WeightsError, match="tied"):
        forward.check({"lm_head.weight": one, "model.embed_tokens.weight": other})
    forward.copy_in({"lm_head.weight": one})
    assert torch.equal(forward.parameters()["model.embed_tokens.weight"], one)


def test_fast_refuses_what_it_does_not_compute() -> None:
    with pytest.raises(ConfigError, match="GPT2LMHeadModel"):
        build_forward(make("gpt2"), "fast", torch.float64, 20)
    windowed = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=8))
    with pytest.raises(ConfigError, match="sliding_window"):
        build_forward(windowed, "fast", torch.float32, 20)
    assert isinstance(build_forward(windowed, "auto", torch.float32, 20), GenericForward)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    scaled = LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=rope))
    with pytest.raises(ConfigError, match="rope_type"):
        build_forward(scaled, "fast", torch.float32, 20)
    assert isinstance(build_forward(scaled, "auto", torch.float32, 20), GenericForward)
    with pytest.raises(ConfigError, match="transformers"):
        build_forward(make("gpt2"), "quick", torch.float64, 20)
