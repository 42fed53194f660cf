"""Low-rank adapters (LoRA, arXiv 2106.09685) in PEFT format, and their merge into publishable weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stretto.errors import ConfigError
from stretto.models.tokenizer_files import load_tokenizer

ADAPTER = "default"


def attach_lora(model: Any, *, rank: int, alpha: float, dropout: float, targets: Sequence[str], seed: int) -> Any:
    """PEFT model around ``model`` (changed in place): only the adapters train. A is drawn from ``seed``, B is 0.

    Raises ``ConfigError`` if no module of the model has a name in ``targets``.
    """
    from peft import LoraConfig, get_peft_model

    scale: Any = alpha  # PEFT's annotation says int, its code takes any number
    config = LoraConfig(
        r=rank, lora_alpha=scale, lora_dropout=dropout, target_modules=list(targets), task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            wrapped = get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"learner.lora.targets = {list(targets)}: {error}") from error
    for name, p in wrapped.named_parameters():  # PEFT makes float32 adapters whatever the base is
        if p.requires_grad:
            p.data = p.data.to(_base_dtype(wrapped, name))
    wrapped.eval()
    return wrapped


def _base_dtype(wrapped: Any, name: str) -> torch.dtype:
    layer = wrapped.get_submodule(name.split(".lora_")[0])
    dtype: torch.dtype = layer.get_base_layer().weight.dtype
    return dtype


def merged_weights(model: Any) -> dict[str, Tensor]:
    """W + (alpha / rank) B A of every adapted module, by the base model's parameter name; the model isn't touched."""
    from peft.tuners.lora import LoraLayer

    merged: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, module in model.get_base_model().named_modules():
            if isinstance(module, LoraLayer):
                layer: Any = module
                merged[f"{name}.weight"] = layer.get_base_layer().weight + layer.get_delta_weight(ADAPTER)
    return merged


def base_weights(model: Any) -> dict[str, Tensor]:
    """All weights of the base model by its own names, adapters merged in, tied ones once."""
    merged = merged_weights(model)
    weights: dict[str, Tensor] = {}
    for name, p in model.get_base_model().named_parameters(remove_duplicate=True):
        if ".lora_" not in name:
            plain = name.replace(".base_layer.", ".")
            weights[plain] = merged.get(plain, p.detach())
    return weights


def save_lora(model: Any, model_dir: str | Path, out: str | Path) -> None:
    """Write the merged model and tokenizer to ``out`` (plain Transformers) and the adapter to ``out/adapter`` (PEFT,
    on the base model in ``model_dir``)."""
    from stretto.models.load import load_policy

    weights = base_weights(model)
    plain = load_policy(model_dir, next(iter(weights.values())).dtype)
    with torch.no_grad():
        for name, p in plain.named_parameters(remove_duplicate=True):
            p.copy_(weights[name])
    plain.save_pretrained(str(out), safe_serialization=True)
    load_tokenizer(model_dir).save_pretrained(str(out))
    model.peft_config[ADAPTER].base_model_name_or_path = str(model_dir)
    model.save_pretrained(str(Path(out) / "adapter"), safe_serialization=True)
