"""Policies and tokenizers in Transformers format, in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stretto.errors import DataError


def load_policy(path: str | Path, dtype: torch.dtype = torch.float32, *, gradient_checkpointing: bool = False) -> Any:
    """The causal language model in the directory ``path`` with parameters of ``dtype``, in evaluation mode.

    Dropout is set to 0: the learner must score the policy that the engine sampled from. Attention runs in SDPA.
    Raises ``DataError`` if the directory doesn't hold a causal language model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # a worker has no terminal of its own
    directory = Path(path)
    if not (directory / "config.json").is_file():
        raise DataError(f"model {str(path)!r}: not a model directory in Transformers format (no config.json)")
    try:
        config = AutoConfig.from_pretrained(directory)
        for name, value in list(vars(config).items()):
            if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, float):
                setattr(config, name, 0.0)
        model: Any = AutoModelForCausalLM.from_pretrained(
            directory, config=config, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise DataError(f"model {str(path)!r}: can't be loaded as a causal language model: {error}") from error
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.eval()
    return model


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer in the directory ``path``; ``DataError`` if there is none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"model {str(path)!r}: holds no tokenizer that can be loaded: {error}") from error


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, detached, tied ones once (under their first name)."""
    return {name: p.detach() for name, p in model.named_parameters(remove_duplicate=True)}


def save_policy(model: Any, tokenizer_dir: str | Path | None, out: str | Path) -> None:
    """Write a directory that plain ``from_pretrained`` loads: model, configuration, and the tokenizer found in
    ``tokenizer_dir`` (None: no tokenizer)."""
    model.save_pretrained(str(out), safe_serialization=True)
    if tokenizer_dir is not None:
        load_tokenizer(tokenizer_dir).save_pretrained(str(out))
