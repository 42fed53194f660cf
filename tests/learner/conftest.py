"""A random Llama of a few thousand parameters with a character tokenizer, and packed trajectories for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stretto.data.columns import pack
from stretto.data.schema import Columns
from stretto.data.trajectory import Trajectory

VOCABULARY = 24


def build_model(out: Path, *, hidden: int = 32, layers: int = 2, tie: bool = False, seed: int = 0) -> Path:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=128,
        tie_word_embeddings=tie,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(out)
    words = {c: i for i, c in enumerate("?0123456789+-=abcdefghij")}
    tokenizer = Tokenizer(WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="=", pad_token="=").save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("model"))


def make_columns(
    groups: int = 4, size: int = 4, *, seed: int = 0, version: int = 0, longest: int = 8, truncated: bool = False
) -> Columns:
    """Random trajectories: a prompt, then policy tokens with one tool token in the middle of some."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(groups * size):
        prompt, n = 3 + (i // size) % 3, int(rng.integers(2, longest + 1))
        if i % size == 0:
            question = rng.integers(0, VOCABULARY, prompt)
        mask = np.r_[np.zeros(prompt, bool), np.ones(n, bool)]
        if n > 3:
            mask[prompt + 1] = False
        out.append(
            Trajectory(
                id=i,
                group=i // size,
                tokens=np.r_[question, rng.integers(0, VOCABULARY, n)].astype(np.int32),
                mask=mask,
                versions=np.full(prompt + n, version, np.int32),
                logprobs=-rng.random(prompt + n) * 4 - 1,
                entropy=rng.random(prompt + n),
                reward=float(rng.integers(0, 2)) if i >= size else 1.0,
                terminated=not (truncated and i % 2),
                truncated=bool(truncated and i % 2),
            )
        )
    return pack(out)


@pytest.fixture(name="make_columns")
def make_columns_fixture() -> Callable[..., Columns]:
    return make_columns


@pytest.fixture(name="build_model")
def build_model_fixture() -> Callable[..., Path]:
    return build_model
