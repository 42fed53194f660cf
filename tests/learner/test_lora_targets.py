"""Adapters on every kind of module: what the learner scores is what it publishes, and what it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.families import MAX_TOKENS, VOCAB, build, sampled

from stretto.config.learner import LearnerConfig, Lora
from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.kernel.errors import ConfigError
from stretto.learner.learner import Learner
from stretto.models.load import load_policy
from stretto.models.lora import check_adapters
from stretto.objectives import get
from stretto.rollout.engine import TorchEngine
from stretto.weights.files import Files
from stretto.weights.in_process import InProcess
from stretto.weights.memory import SharedMemory
from stretto.weights.transport import Transport


def saved(out: Path, name: str, **settings: Any) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    build(name, settings).save_pretrained(out)
    words = WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="t2", pad_token="t0").save_pretrained(out)
    return out


def learner(model_dir: Path, targets: list[str]) -> Learner:
    config = LearnerConfig(lr=1e-2, warmup_steps=0, lora=Lora(rank=3, targets=targets))
    return Learner(model_dir, config, get("tis"))


def logp_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens).logits.log_softmax(-1)


CASES = [
    *(("llama", tie, targets) for tie in (True, False) for targets in (["embed_tokens"], ["lm_head"])),
    *(("llama", tie, ["embed_tokens", "lm_head", "q_proj"]) for tie in (True, False)),
    ("gpt2", True, ["wte"]),
    ("gpt2", True, ["lm_head", "c_attn"]),
    ("gemma2", True, ["lm_head"]),
    ("qwen3_moe", False, ["all-linear"]),
]


@pytest.mark.parametrize(("name", "tie", "targets"), CASES)
def test_an_adapter_is_published_and_saved_as_it_is_scored(
    tmp_path: Path, name: str, tie: bool, targets: list[str]
) -> None:
    from peft import PeftModel

    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24} if "moe" in name else {}
    model_dir = saved(tmp_path, name, tie_word_embeddings=tie, **more)
    one = learner(model_dir, targets)
    engine = TorchEngine(
        load_policy(model_dir), max_num_seqs=4, max_model_len=MAX_TOKENS, eos_ids=(2,), seed=5, version=0
    )
    for _ in range(2):
        columns = pack(sampled(engine, new=12))
        result = one.step(columns)
        assert not result.skipped
        ratio = torch.from_numpy(result.ratio)
        assert abs(float(ratio[ratio.isfinite()].mean()) - 1) < 1e-5
        engine.load(one.version, {n: w.clone() for n, w in one.weights().items()})
    batch = TokenBatch.from_columns(columns, one.version)
    assert batch.tokens is not None
    start = logp_of(load_policy(model_dir), batch.tokens)
    one.save_model(tmp_path / "out")
    merged = logp_of(load_policy(tmp_path / "out"), batch.tokens)
    assert float((merged - start).abs().max()) > 0.05  # it did train
    reloaded = PeftModel.from_pretrained(load_policy(model_dir), str(tmp_path / "out" / "adapter")).eval()
    torch.testing.assert_close(logp_of(reloaded, batch.tokens), merged, rtol=0, atol=1e-3)
    ours = one.scorer.scores(batch, values=False).logp.detach()
    theirs = torch.zeros_like(ours)
    theirs[:, 1:] = merged[:, :-1].gather(2, batch.tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(ours[batch.mask], theirs[batch.mask], rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", [SharedMemory, Files, InProcess])
@pytest.mark.parametrize("parts", ["adapter", "both"])
def test_an_adapter_is_staged_by_itself_or_beside_the_matrices_it_is_merged_into(
    kind: type[Transport], parts: str, tmp_path: Path
) -> None:
    model_dir = saved(tmp_path / "model", "llama", tie_word_embeddings=True)
    one = learner(model_dir, ["lm_head", "q_proj"])
    one.parts = parts  # type: ignore[assignment]
    with torch.no_grad():
        for p in one.scorer.policy_parameters().values():
            p.normal_(std=0.1)
    transport = InProcess() if kind is InProcess else kind.open(tmp_path / "weights")
    staged = one.stage(transport.stage)
    fetched = transport.fetch(staged)
    assert staged.parts == ({"adapter"} if parts == "adapter" else {"merged", "adapter"})
    assert staged.adapter is not None
    assert (staged.adapter.config["r"], staged.adapter.config["lora_alpha"]) == (3, 32.0)
    merged, adapter = staged.merged(fetched), {name: fetched[name] for name in staged.adapter.names}
    assert all(name.startswith("base_model.model.") for name in adapter)
    assert len(adapter) == 2 * (2 + 1 + 1), "A and B of two layers, of the embedding, and of the head that shares it"
    assert merged.keys() == (set() if parts == "adapter" else one.weights().keys())
    assert all(torch.equal(merged[name], w) for name, w in one.weights().items() if name in merged)
    if kind is Files:
        from peft import PeftModel

        tokens = torch.arange(2 * 9).view(2, 9) % VOCAB
        loaded = PeftModel.from_pretrained(load_policy(model_dir), str(staged.where["directory"])).eval()
        plain = load_policy(model_dir)
        with torch.no_grad():
            for name, weight in one.weights().items():
                dict(plain.named_parameters())[name].copy_(weight)
        torch.testing.assert_close(logp_of(loaded, tokens), logp_of(plain, tokens), rtol=0, atol=1e-4)
        assert float((logp_of(loaded, tokens) - logp_of(load_policy(model_dir), tokens)).abs().max()) > 0.05
    transport.close()


def test_what_has_no_adapter_publishes_none(tmp_path: Path) -> None:
    one = Learner(saved(tmp_path, "llama"), LearnerConfig(), get("tis"), parts="both")
    with pytest.raises(ConfigError, match="there is no adapter that could be published"):
        one.stage(InProcess().stage)


def test_a_target_that_is_nowhere_is_an_error_that_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no module called 'nix'.*embed_tokens, q_proj.*'all-linear'"):
        learner(saved(tmp_path, "llama"), ["q_proj", "nix"])


def test_a_module_whose_adapter_cannot_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    opt = {"ffn_dim": 48, "word_embed_proj_dim": 32}
    with pytest.raises(ConfigError, match=r"lora\.targets: in OPTForCausalLM not all .*\['all-linear'\]"):
        learner(saved(tmp_path, "opt", **opt), ["fc1", "embed_positions"])


def test_an_adapter_that_is_scored_otherwise_than_published_is_found(tmp_path: Path) -> None:
    one = learner(saved(tmp_path, "llama", tie_word_embeddings=True), ["embed_tokens"])
    scorer, before = one.scorer, {n: p.detach().clone() for n, p in one.scorer.policy_parameters().items()}
    scorer._head._shared = None  # as if the head knew nothing of the embedding's adapter
    with pytest.raises(ConfigError, match="not all of these modules act as a matrix"):
        check_adapters(scorer.model, lambda ids: scorer._head.logits(scorer._trunk(ids[None])[0][0]))
    assert all(torch.equal(p, before[n]) for n, p in scorer.policy_parameters().items())
