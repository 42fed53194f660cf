"""Every way to read a batch gives the trunk's own hidden states and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from stretto.models import packed
from stretto.models.packed import PackedTrunk
from stretto.models.plan import distinct, plan
from stretto.models.prefix import PolicyStates, plain_hidden, shared_hidden

SMALL = {"vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}


def llama_like(kind: str, kv_heads: int = 2) -> Any:
    """A small float64 trunk with random weights, biases and norms."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SMALL, num_attention_heads=4, num_key_value_heads=kv_heads)
    torch.manual_seed(0)
    trunk = getattr(transformers, f"{kind}Model")(config).double().eval()
    for p in trunk.parameters():
        p.data.normal_(0, 0.3) if p.ndim > 1 else p.data.uniform_(0.5, 1.5)
    return trunk


def grouped_rows() -> tuple[Tensor, Tensor]:
    """Two prompts of 5 and 3 tokens, four rows each, tool tokens inside, one row without policy tokens, two alike."""
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 24, (9, 12), generator=g)
    first = torch.tensor([5, 5, 5, 5, 3, 3, 3, 3, 4])
    for rows, n in ((range(4), 5), (range(4, 8), 3)):
        tokens[list(rows), :n] = tokens[rows[0], :n].clone()
    ends = torch.tensor([12, 6, 9, 9, 12, 7, 5, 4, 4])
    tokens[3, :8] = tokens[2, :8]  # alike up to the token that predicts the last
    columns = torch.arange(12)
    mask = (columns >= first[:, None]) & (columns < ends[:, None])
    mask[0, 7], mask[4, 4:6] = False, False
    return tokens, mask


def grads(hidden: Tensor, trunk: Any) -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(hidden.shape, generator=g, dtype=torch.float64)
    return list(torch.autograd.grad((hidden * weight).sum(), list(trunk.parameters())))


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize(("kind", "kv_heads"), [("Llama", 4), ("Llama", 2), ("Qwen2", 2), ("Qwen3", 1), ("Mistral", 2)])
def test_packed_and_cached_equal_the_trunk(
    monkeypatch: pytest.MonkeyPatch, kind: str, kv_heads: int, short: bool
) -> None:
    if not short:
        monkeypatch.setattr(packed, "SHORT", 0)
    trunk = llama_like(kind, kv_heads)
    if kind == "Mistral":
        trunk.config.sliding_window = None
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    assert p is not None
    want = plain_hidden(trunk, tokens, mask)
    want_grads = grads(want, trunk)
    for hidden in (PackedTrunk(trunk)(p), shared_hidden(trunk, p)):
        # Transformers' norms and angles are float32 in any precision
        assert torch.allclose(hidden, want, atol=2e-5, rtol=1e-5)
        for a, b in zip(grads(hidden, trunk), want_grads, strict=True):
            assert torch.allclose(a, b, atol=2e-4, rtol=2e-4)


def test_each_distinct_beginning_is_read_once() -> None:
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    assert p is not None
    prompts, _, rows, _ = p.shape
    assert (prompts, rows) == (2, 7)  # eight rows with policy tokens, two of them alike
    last = torch.where(mask, torch.arange(12), 0).amax(1)
    first = torch.tensor([5, 5, 5, 5, 3, 3, 3, 3, 4])
    unshared = int((last - first).clamp(min=0).sum()) + 5 + 3
    assert len(p.ids) == unshared - int(last[3] - 5)
    assert len(p.wanted) == int(mask.sum())
    row, column = mask.nonzero(as_tuple=True)
    assert torch.equal(p.ids[p.wanted], tokens[row, column - 1])
    assert torch.equal(p.positions[p.wanted], column - 1)


def test_rows_that_share_nothing_are_read_in_full() -> None:
    tokens = torch.arange(24).view(3, 8)
    mask = torch.arange(8).expand(3, -1) >= 4
    p = plan(tokens, mask)
    assert p is not None
    assert p.shape == (3, 7, 0, 0)
    trunk = llama_like("Llama")
    for hidden in (PackedTrunk(trunk)(p), shared_hidden(trunk, p)):
        assert torch.allclose(hidden, plain_hidden(trunk, tokens, mask), atol=1e-5)
    assert plan(tokens, torch.zeros_like(mask)) is None


def test_rows_of_one_policy_token_need_the_prompt_alone() -> None:
    trunk = llama_like("Llama")
    tokens, _ = grouped_rows()
    mask = torch.zeros(9, 12, dtype=torch.bool)
    mask[:4, 5], mask[4:8, 3] = True, True
    p = plan(tokens, mask)
    assert p is not None
    assert len(p.ids) == 8
    for hidden in (PackedTrunk(trunk)(p), shared_hidden(trunk, p)):
        assert torch.allclose(hidden, plain_hidden(trunk, tokens, mask), atol=1e-5)


def test_what_follows_the_last_policy_token_never_matters() -> None:
    read = PackedTrunk(llama_like("Llama"))
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    last = torch.where(mask, torch.arange(12), 0).amax(1)
    changed = torch.where(torch.arange(12) > last[:, None], 23, tokens)
    q = plan(changed, mask)
    assert p is not None
    assert q is not None
    assert torch.equal(read(p), read(q))


def test_adapters_are_trained_through_the_packed_pass() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from stretto.models.lora import attach_lora

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2)).double().eval()
    wrapped = attach_lora(
        model, rank=2, alpha=4, dropout=0.0, targets=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"], seed=0
    )
    for name, q in wrapped.named_parameters():
        if "lora_B" in name:
            q.data.normal_(0, 0.1)
    trunk = wrapped.get_base_model().model
    trained = [q for q in wrapped.parameters() if q.requires_grad]
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    assert p is not None
    both = [torch.autograd.grad(h.square().sum(), trained) for h in
            (PackedTrunk(trunk)(p), plain_hidden(trunk, tokens, mask))]  # fmt: skip
    assert len(trained) == 20
    assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in zip(*both, strict=True))
    assert all(bool(a.abs().sum() > 0) for a in both[0])


def test_hand_written_backward_passes_agree_with_finite_differences() -> None:
    g = torch.Generator().manual_seed(0)

    def new(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    assert gradcheck(lambda x, w: packed._RMSNorm.apply(x, w, 1e-5), (new(2, 3, 4), new(4)))
    cos, sin = torch.randn(3, 1, 2, dtype=torch.float64), torch.randn(3, 1, 2, dtype=torch.float64)
    assert gradcheck(lambda x: packed._Rotate.apply(x, cos, sin), (new(3, 2, 4),))
    assert gradcheck(packed._SiluMul.apply, (new(3, 4), new(3, 4)))
    bias = torch.zeros(1, 1, 3, 4, dtype=torch.float64)
    bias[..., 1:, 3] = float("-inf")
    attend = (new(2, 2, 3, 4), new(2, 2, 4, 4), new(2, 2, 4, 4))
    assert gradcheck(lambda q, k, v: packed._ShortAttention.apply(q, k, v, bias, 0.5), attend)


def test_each_trunk_is_read_by_the_fastest_way_that_it_allows() -> None:
    from transformers import GPT2Config, GPT2Model, MistralConfig, MistralModel

    llama = llama_like("Llama").float()
    assert PolicyStates(llama, llama_like=True, share=True).way == "packed"
    assert PolicyStates(llama, llama_like=False, share=True).way == "cached"
    assert PolicyStates(llama, llama_like=True, share=False).way == "plain"
    gpt2 = GPT2Model(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()
    assert PolicyStates(gpt2, llama_like=False, share=True).way == "cached"
    config = MistralConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16, sliding_window=3,
    )  # fmt: skip
    window = MistralModel(config).eval()
    states = PolicyStates(window, llama_like=False, share=True)
    assert states.way == "plain"
    tokens, mask = grouped_rows()
    assert torch.equal(states(tokens, mask), plain_hidden(window, tokens, mask))


def test_distinct_rows_keep_their_order() -> None:
    rows = torch.tensor([[3, 1], [2, 2], [3, 1], [0, 5], [2, 2]]).numpy()
    firsts, which = distinct(rows)
    assert firsts.tolist() == [0, 1, 3]
    assert which.tolist() == [0, 1, 0, 2, 1]


def test_bfloat16_products_change_the_packed_pass_no_more_than_the_trunk() -> None:
    trunk = llama_like("Llama").float()
    tokens, mask = grouped_rows()
    p = plan(tokens, mask)
    assert p is not None
    exact = plain_hidden(trunk, tokens, mask)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = PackedTrunk(trunk)(p), plain_hidden(trunk, tokens, mask)
    assert ours.dtype == torch.float32
    assert 0 < (ours - exact).norm() < 1.2 * (theirs - exact).norm()
    weight = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    flat = [
        torch.cat([g.flatten() for g in torch.autograd.grad((h * weight).sum(), list(trunk.parameters()))])
        for h in (exact, ours, theirs)
    ]
    assert 0 < (flat[1] - flat[0]).norm() < 1.2 * (flat[2] - flat[0]).norm()
