from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stretto.config.sections import SFT
from stretto.envs.arithmetic import Arithmetic
from stretto.kernel.errors import ConfigError, DataError
from stretto.models.tiny import answer_logp, build_tiny, cache_key, collate

SMALL = SFT(hidden=64, layers=1, heads=2, kv_heads=2, intermediate=128, accuracy=0.1, batch=64, max_steps=400)


def quiet(line: str) -> None:
    del line


def test_warm_start_reaches_its_accuracy_and_loads_with_from_pretrained(tmp_path: Path) -> None:
    env = Arithmetic(digits=1)
    lines: list[str] = []
    directory = build_tiny(SMALL, env, tmp_path, 0, lines.append)
    assert lines
    assert not hasattr(env, "tokenizer")  # the environment that was given stays as it was
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    env.bind(tokenizer_of(directory), 0)
    with torch.no_grad():
        accuracy = answer_logp(model, collate([env.demonstration(i) for i in range(1000, 1256)])).exp().mean()
    assert accuracy > 0.05
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == 1
    before = (directory / "model.safetensors").stat().st_mtime_ns
    assert build_tiny(SMALL, env, tmp_path, 0, quiet) == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == before
    assert [p.name for p in tmp_path.iterdir()] == [directory.name]  # nothing half-built is left


def tokenizer_of(directory: Path):  # type: ignore[no-untyped-def]
    from stretto.models.tokenizer import light_tokenizer

    return light_tokenizer(directory)


def test_every_setting_and_environment_option_has_its_own_cache_entry() -> None:
    keys = {
        cache_key(SMALL, Arithmetic(digits=1), 0),
        cache_key(SMALL, Arithmetic(digits=1), 1),
        cache_key(SMALL, Arithmetic(digits=2), 0),
        cache_key(SMALL.model_copy(update={"lr": 1e-3}), Arithmetic(digits=1), 0),
    }
    assert len(keys) == 4


def test_an_accuracy_out_of_reach_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    hopeless = SMALL.model_copy(update={"max_steps": 10, "accuracy": 1.0})
    with pytest.raises(DataError, match=r"sft\.max_steps"):
        build_tiny(hopeless, Arithmetic(digits=1), tmp_path, 0, quiet)
    assert list(tmp_path.iterdir()) == []


def test_random_weights_need_no_worked_answers(tmp_path: Path) -> None:
    class Bare:
        alphabet = "01"

    with pytest.raises(ConfigError, match="no worked answers"):
        build_tiny(SMALL, Bare(), tmp_path, 0, quiet)
    directory = build_tiny(SMALL.model_copy(update={"accuracy": 0.0}), Bare(), tmp_path, 0, quiet)
    assert AutoModelForCausalLM.from_pretrained(directory).config.vocab_size == 4


def test_padding_and_unmasked_tokens_do_not_count() -> None:
    directory_tokens, mask = collate([([2, 3, 4], [False, True, True]), ([2, 3], [False, True])])
    assert directory_tokens.tolist() == [[2, 3, 4], [2, 3, 0]]
    assert mask.tolist() == [[False, True, True], [False, True, False]]
