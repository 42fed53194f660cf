from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from stretto.config.sections import EngineConfig
from stretto.kernel.errors import DataError
from stretto.models.load import load_policy
from stretto.models.resolve import check_directory, check_vocabulary
from stretto.models.tokenizer import char_tokenizer, light_tokenizer
from stretto.rollout.build import build_engine

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("good")
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(out)
    char_tokenizer("0123456789+-=").save_pretrained(out)
    return out


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def edit(model: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return model


def configure(model: Path, **settings: object) -> Path:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return model


def test_a_complete_model_loads_with_tied_embeddings_and_old_buffers(model: Path) -> None:
    edit(model, lambda w: w.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    check_directory(model)
    check_vocabulary(model, light_tokenizer(model))
    assert load_policy(model).lm_head.weight.shape == (16, 16)


def test_a_missing_tensor_is_named_instead_of_drawn_at_random(model: Path) -> None:
    edit(model, lambda w: w.pop(Q))
    with pytest.raises(DataError, match=rf"model'.*lack 1 tensor.*: {Q}\. Save"):
        load_policy(model)


def test_a_tensor_that_the_model_has_no_place_for_is_named(model: Path) -> None:
    edit(model, lambda w: w.update({"model.layers.1.mlp.up_proj.weight": torch.ones(2)}))
    with pytest.raises(DataError, match=r"no place in LlamaForCausalLM.*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_policy(model)


def test_shapes_that_do_not_fit_the_configuration_are_named(model: Path) -> None:
    configure(model, vocab_size=8)
    with pytest.raises(DataError, match=r"embed_tokens\.weight is \[16, 16\] in the file and \[8, 16\] by config"):
        load_policy(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named_by_learner_and_engine(model: Path, value: float) -> None:
    edit(model, lambda w: w[Q][0, 0].fill_(value))
    with pytest.raises(DataError, match=rf"model'.*aren't finite.*{Q}"):
        load_policy(model)
    with pytest.raises(DataError, match=Q):
        build_engine(model, EngineConfig(), 0, (1,))


def test_a_truncated_file_is_found_before_anything_starts(model: Path) -> None:
    file = model / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DataError, match=r"model\.safetensors is damaged or incomplete"):
        check_directory(model)
    with pytest.raises(DataError, match="can't be loaded"):
        load_policy(model)


def test_a_vocabulary_smaller_than_the_tokenizers_is_an_error_that_names_both(model: Path) -> None:
    configure(model, vocab_size=4)
    with pytest.raises(DataError, match=r"ids go up to 14 \('='\).*has 4 entries, ids 0 to 3"):
        check_vocabulary(model, light_tokenizer(model))


def test_a_special_token_beyond_the_vocabulary_is_no_error(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<image-{i}>" for i in range(5)]})
    tokenizer.save_pretrained(model)
    assert len(tokenizer) > 16
    check_vocabulary(model, light_tokenizer(model))
