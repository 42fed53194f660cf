"""Policies and tokenizers in Transformers format, in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor, nn

from stretto.kernel.errors import DataError
from stretto.models.tokenizer_files import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NOISE = ("dropout", "_pdrop", "layerdrop", "jitter")
"""Parts of the names of settings that make a forward pass in training mode random."""
_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")


class LoadingInfo(TypedDict):
    """What Transformers says of the tensors that it read."""

    missing_keys: set[str]
    unexpected_keys: set[str]
    mismatched_keys: set[tuple[str, torch.Size, torch.Size]]


def load_policy(
    path: str | Path, dtype: torch.dtype = torch.float32, *, gradient_checkpointing: bool = False
) -> PreTrainedModel:
    """The causal language model in the directory ``path`` with parameters of ``dtype``, in evaluation mode.

    Dropout and router noise are set to 0: the learner must score the policy that the engine sampled from. Attention
    runs in SDPA where the model knows it (caps on attention logits and learned sinks need the model's own).
    Raises ``DataError`` if the directory doesn't hold a causal language model, or if its weights aren't exactly those
    of its configuration, all finite.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    from stretto.models.resolve import check_adapter

    logging.disable_progress_bar()  # a worker has no terminal of its own
    logging.set_verbosity_error()  # its report of missing tensors is an error here
    directory = Path(path)
    if not (directory / "config.json").is_file():
        raise DataError(f"model {str(path)!r}: not a model directory in Transformers format (no config.json)")
    check_adapter(directory)
    try:
        config = AutoConfig.from_pretrained(directory)
        for name, value in list(vars(config).items()):
            if any(part in name for part in _NOISE) and isinstance(value, float):
                setattr(config, name, 0.0)

        def load(attention: str) -> tuple[PreTrainedModel, LoadingInfo]:
            found: tuple[PreTrainedModel, LoadingInfo] = AutoModelForCausalLM.from_pretrained(  # type: ignore[assignment]
                directory, config=config, dtype=dtype, attn_implementation=attention, local_files_only=True,
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
            return found

        try:
            loaded = load("sdpa")
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            loaded = load("eager")
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(f"model {str(path)!r}: can't be loaded as a causal language model: {error}") from error
    model, found = loaded
    _check_tensors(str(path), model, found)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.eval()
    return model


def _check_tensors(path: str, model: nn.Module, found: LoadingInfo) -> None:
    """Transformers fills what a file lacks with random numbers; here that is an error, and so are weights that would be
    left out and weights that aren't finite. Buffers (rotary tables, causal masks of old files) don't count."""
    setting = f"model = {path!r}"
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    parameters = dict(model.named_parameters())
    mismatched = [
        f"{name} is {list(shape)} in the file and {list(expected)} by config.json"
        for name, shape, expected in sorted(found["mismatched_keys"])
    ]
    if mismatched:
        raise DataError(
            f"{setting}: weights and config.json don't fit: {_some(mismatched)}. Give the configuration that the "
            "weights were saved with"
        )
    missing = sorted(name for name in found["missing_keys"] if name in parameters and name not in tied)
    if missing:
        raise DataError(
            f"{setting}: the safetensors files lack {len(missing)} tensor(s) of the model: {_some(missing)}. Save the "
            "whole model with save_pretrained"
        )
    unexpected = sorted(n for n in found["unexpected_keys"] if not n.endswith(_BUFFERS))
    if unexpected:
        raise DataError(
            f"{setting}: {len(unexpected)} tensor(s) have no place in {type(model).__name__} and would be lost: "
            f"{_some(unexpected)}. Save the model from the class that config.json names"
        )
    bad = [name for name, p in parameters.items() if not bool(p.isfinite().all())]
    if bad:
        raise DataError(f"{setting}: weights that aren't finite (NaN or infinite) in {_some(bad)}; the file is damaged")


def _some(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, detached, tied ones once (under their first name)."""
    return {name: p.detach() for name, p in model.named_parameters(remove_duplicate=True)}


def save_policy(model: PreTrainedModel, tokenizer_dir: str | Path | None, out: str | Path) -> None:
    """Write a directory that plain ``from_pretrained`` loads: model, configuration, and the tokenizer found in
    ``tokenizer_dir`` (None: no tokenizer)."""
    model.save_pretrained(str(out), safe_serialization=True)
    if tokenizer_dir is not None:
        load_tokenizer(tokenizer_dir).save_pretrained(str(out))
