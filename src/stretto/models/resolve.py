"""From the setting ``model`` to a directory in Transformers format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.errors import DataError
from stretto.models.tiny import Progress

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def resolve_model(config: RunConfig, env: Any, progress: Progress = print) -> Path:
    """The directory of ``config.model``: built (``tiny``, with a warm start on ``env``), converted (``smollm2``), or
    the user's own, checked. ``DataError`` says what a directory lacks."""
    if config.model == "tiny":
        from stretto.models.tiny import build_tiny

        return build_tiny(config.warm_start, env, seed=config.seed, progress=progress)
    if config.model == "smollm2":
        from stretto.models.smollm2 import build_smollm2

        return build_smollm2(progress=progress)
    directory = Path(config.model).expanduser()
    check_directory(directory)
    return directory


def check_directory(directory: Path) -> None:
    """Raise ``DataError`` unless config, tokenizer and safetensors weights are there."""
    setting = f"model = {str(directory)!r}"
    if not directory.is_dir():
        raise DataError(
            f"{setting}: no such directory; give tiny, smollm2, or a directory in Transformers format "
            "(a model of the Hub must be downloaded first: huggingface-cli download NAME --local-dir DIR)"
        )
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    if not any((directory / name).is_file() for name in _WEIGHTS):
        missing.append("model.safetensors")
    if missing:
        adapter = " (it holds a PEFT adapter: merge it into its base model first)" if (
            directory / "adapter_config.json"
        ).is_file() else ""  # fmt: skip
        raise DataError(
            f"{setting}: lacks {', '.join(missing)}{adapter}; save model and tokenizer there with save_pretrained"
        )
    _check_architecture(directory, setting)


def _check_architecture(directory: Path, setting: str) -> None:
    try:
        description = json.loads((directory / "config.json").read_text())
    except ValueError as error:
        raise DataError(f"{setting}: config.json is not JSON: {error}") from error
    names = description.get("architectures") or []
    if not any("CausalLM" in name or "LMHead" in name for name in names):
        raise DataError(f"{setting}: architectures = {names}, not a causal language model (...ForCausalLM)")
    if description.get("quantization_config"):
        raise DataError(f"{setting}: quantized weights can't be trained; save the model dequantized")
