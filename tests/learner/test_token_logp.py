"""Log-probabilities from hidden states, and what a model directory must be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stretto.errors import DataError
from stretto.models import logp as module
from stretto.models.load import load_policy, load_tokenizer, named_weights
from stretto.models.logp import check_head, policy_positions, token_logp, trunk_of
from stretto.models.prefix import can_share, plain_hidden, plan, policy_hidden


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


def test_a_model_that_transforms_its_logits_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        intermediate_size=16, final_logit_softcapping=0.05,
    )  # fmt: skip
    torch.manual_seed(0)
    with pytest.raises(DataError, match="transforms its logits"):
        check_head(Gemma2ForCausalLM(config).eval())


def test_dropout_is_off_in_both_modes(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32)).save_pretrained(tmp_path)
    model = load_policy(tmp_path)
    ids = torch.arange(6)[None]
    with torch.no_grad():
        quiet = model(ids).logits
        model.train()
        assert torch.equal(model(ids).logits, quiet)


def grouped_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Two prompts of 5 and 3 tokens, four rows each, tool tokens inside, one row without policy tokens."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 24, (9, 12), generator=g)
    first = torch.tensor([5, 5, 5, 5, 3, 3, 3, 3, 4])
    for rows, n in ((range(4), 5), (range(4, 8), 3)):
        tokens[list(rows), :n] = tokens[rows[0], :n].clone()
    ends = torch.tensor([12, 6, 9, 8, 12, 7, 5, 4, 4])
    columns = torch.arange(12)
    mask = (columns >= first[:, None]) & (columns < ends[:, None])
    mask[0, 7], mask[4, 4:6] = False, False
    return tokens, mask


def test_shared_prompts_give_the_same_hidden_states_and_gradients(model_dir: Path) -> None:
    model = load_policy(model_dir, torch.float64)
    trunk = trunk_of(model)
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    assert p is not None
    assert p.prompts.shape == (2, 5)
    assert p.tokens < 0.85 * tokens[:, :-1].numel()
    assert can_share(trunk)
    weight = torch.randn(int(mask.sum()), 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for hidden in (policy_hidden(trunk, tokens, mask, True), plain_hidden(trunk, tokens, mask)):
        results.append((hidden, torch.autograd.grad((hidden * weight).sum(), list(trunk.parameters()))))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-12, rtol=0)
    # Transformers' norms are float32 in any precision
    assert all(torch.allclose(a, b, atol=3e-5, rtol=0) for a, b in zip(results[0][1], results[1][1], strict=True))
    tokens[~mask & (torch.arange(12) > 5)] = 0  # what follows the last policy token can't matter
    again = policy_hidden(trunk, tokens, mask, True)
    later = [0, 1, 2, 3]  # a tool token did change in row 0, after its second policy token
    assert torch.equal(again[: later[2]], results[0][0][: later[2]])


def test_rows_of_one_policy_token_need_the_prompt_alone(model_dir: Path) -> None:
    trunk = trunk_of(load_policy(model_dir, torch.float64))
    tokens, _ = grouped_rows()
    mask = torch.zeros(9, 12, dtype=torch.bool)
    mask[:4, 5], mask[4:8, 3] = True, True
    p = plan(tokens, mask)
    assert p is not None
    assert p.rest.shape == (8, 0)
    shared = policy_hidden(trunk, tokens, mask, True)
    assert torch.allclose(shared, plain_hidden(trunk, tokens, mask), atol=1e-12, rtol=0)
    assert plan(tokens, torch.zeros_like(mask)) is None


def test_a_sliding_window_is_never_shared() -> None:
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, sliding_window=3,
    )  # fmt: skip
    assert not can_share(MistralModel(config).eval())
