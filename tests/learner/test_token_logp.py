"""Log-probabilities from hidden states, and what a model directory must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.kernel.errors import DataError
from stretto.models import logp as module
from stretto.models.head import head_transform
from stretto.models.load import load_policy, load_tokenizer, named_weights
from stretto.models.logp import policy_positions, token_logp


def inputs(dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    g = torch.Generator().manual_seed(0)
    return {
        "hidden": torch.randn(7, 5, generator=g, dtype=dtype).requires_grad_(),
        "weight": torch.randn(11, 5, generator=g, dtype=dtype).requires_grad_(),
        "bias": torch.randn(11, generator=g, dtype=dtype).requires_grad_(),
        "ids": torch.randint(0, 11, (7,), generator=g),
    }


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_value_and_gradient_equal_plain_log_softmax(monkeypatch: pytest.MonkeyPatch, chunked: bool, bias: bool) -> None:
    if chunked:
        monkeypatch.setattr(module, "LOGITS_BYTES", 0)
        monkeypatch.setattr(module, "CHUNK_BYTES", 3 * 11 * 8)
    x = inputs()
    b = x["bias"] if bias else None
    upstream = torch.linspace(-1, 2, 7, dtype=torch.float64)
    logp, entropy = token_logp(x["hidden"], x["weight"], x["ids"], b, temperature=0.6)
    logq = torch.log_softmax((x["hidden"] @ x["weight"].T + (0 if b is None else b)) / 0.6, 1)
    plain = logq.gather(1, x["ids"][:, None])[:, 0]
    assert torch.allclose(logp, plain, atol=1e-12, rtol=0)
    assert torch.allclose(entropy, -(logq.exp() * logq).sum(1), atol=1e-12, rtol=0)
    leaves = [x["hidden"], x["weight"]] + ([x["bias"]] if bias else [])
    ours = torch.autograd.grad((logp * upstream).sum(), leaves)
    theirs = torch.autograd.grad((plain * upstream).sum(), leaves)
    assert all(torch.allclose(a, b, atol=1e-12, rtol=0) for a, b in zip(ours, theirs, strict=True))
    assert torch.autograd.gradcheck(lambda h, w: token_logp(h, w, x["ids"])[0], (x["hidden"], x["weight"]))


def test_half_precision_hidden_states_get_float32_log_probabilities() -> None:
    x = inputs(torch.float32)
    hidden = x["hidden"].detach().bfloat16().requires_grad_()
    logp, _ = token_logp(hidden, x["weight"], x["ids"])
    assert logp.dtype == torch.float32
    logp.sum().backward()
    assert x["weight"].grad.dtype == torch.float32
    assert hidden.grad is not None


def test_a_policy_token_needs_a_token_before_it() -> None:
    assert policy_positions(torch.tensor([[False, True, True], [False, False, True]])).tolist() == [1, 2, 5]
    with pytest.raises(DataError, match="row 1: its first token"):
        policy_positions(torch.tensor([[False, True], [True, True]]))


def test_a_directory_that_is_no_model_is_named(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(DataError, match=r"no config\.json"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(DataError, match="can't be loaded"):
        load_policy(tmp_path)
    with pytest.raises(DataError, match="tokenizer"):
        load_tokenizer(tmp_path / "nothing")


def test_tied_weights_are_named_once(build_model: Callable[..., Path], tmp_path: Path) -> None:
    model = load_policy(build_model(tmp_path, tie=True))
    names = named_weights(model)
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert sum(t.numel() for t in names.values()) == sum(p.numel() for p in model.parameters())


def test_a_model_that_transforms_its_logits_in_an_unknown_way_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, final_logit_softcapping=30.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    assert head_transform(model).cap == 30  # small logits are hardly capped: it shows on realistic ones alone
    forward = model.forward

    def stranger(*args: Any, **options: Any) -> Any:
        out = forward(*args, **options)
        out.logits = out.logits - 0.001 * out.logits**2
        return out

    model.forward = stranger
    with pytest.raises(DataError, match="Gemma2ForCausalLM transforms its logits"):
        head_transform(model)


def test_dropout_is_off_in_both_modes(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32)).save_pretrained(tmp_path)
    model = load_policy(tmp_path)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        quiet = model(ids).logits
        model.train()
        assert torch.equal(model(ids).logits, quiet)
