"""From the setting ``model`` to a directory in Transformers format."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from stretto.config.schema import RunConfig
from stretto.kernel.errors import DataError
from stretto.models.reach import Description
from stretto.models.tiny import Progress
from stretto.models.tokenizer import LightTokenizer

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def resolve_model(config: RunConfig, env: object, progress: Progress = print) -> Path:
    """The directory of ``config.model``: built (``tiny``, with a warm start on ``env``), converted (``smollm2``), or
    the user's own, checked. ``DataError`` says what a directory lacks."""
    if config.model == "tiny":
        from stretto.models.tiny import build_tiny

        return build_tiny(config.sft, env, seed=config.seed, progress=progress)
    if config.model == "smollm2":
        from stretto.models.smollm2 import build_smollm2

        return build_smollm2(progress=progress)
    directory = Path(config.model).expanduser()
    check_directory(directory)
    return directory


def find_model(config: RunConfig, env: object) -> Path | None:
    """``resolve_model`` without building anything: None if it isn't there yet."""
    if config.model == "tiny":
        from stretto.models.tiny import tiny_path

        built = tiny_path(config.sft, env, seed=config.seed)
    elif config.model == "smollm2":
        from stretto.models.smollm2 import smollm2_path

        built = smollm2_path()
    else:
        return resolve_model(config, env)
    return built if (built / "model.safetensors").is_file() else None


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
    check_adapter(directory)
    if missing:
        raise DataError(f"{setting}: lacks {', '.join(missing)}; save model and tokenizer there with save_pretrained")
    _check_architecture(directory, setting)
    _check_files(directory, setting)


def check_adapter(directory: Path) -> None:
    """Raise ``DataError`` if the directory holds a PEFT adapter: alone it is no model, and beside full weights it isn't
    clear which of the two is meant (Transformers would load the adapter's base instead of them)."""
    file, setting = directory / "adapter_config.json", f"model = {str(directory)!r}"
    if not file.is_file():
        return
    try:
        base = str(json.loads(file.read_text()).get("base_model_name_or_path") or "")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{setting}: adapter_config.json is not a JSON object: {error}") from error
    if any((directory / name).is_file() for name in _WEIGHTS):
        source = f" {base!r}" if base else ""
        raise DataError(
            f"{setting}: holds full weights and a PEFT adapter (adapter_config.json): it isn't clear which is meant. "
            "To train from the full weights, move adapter_config.json and adapter_model.* out of the directory; to "
            f"train from the adapter, merge it into its base model{source} and give the merged one"
        )
    there = f"its base is {base!r}" if base else "it doesn't say of which base model"
    if base and not Path(base).is_dir():
        there += ", which is no directory here: get it first"
    raise DataError(
        f"{setting}: holds a PEFT adapter alone ({there}); merge it into its base model first: "
        "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), ADAPTER).merge_and_unload()"
        ".save_pretrained(OUT), and save the tokenizer there too"
    )


def check_vocabulary(directory: Path, tokenizer: LightTokenizer) -> None:
    """Raise ``DataError`` if the model has no row for an ordinary token of its tokenizer, and let ``tokenizer`` refuse
    texts that need another one it lacks.

    A special token beyond the vocabulary is no error as long as no text holds it (some models of the Hub have one for
    images).
    """
    description = _description(directory, f"model = {str(directory)!r}")
    size = description.get("vocab_size") or (description.get("text_config") or {}).get("vocab_size")
    if size is None:
        return
    tokenizer.size = size
    largest = tokenizer.largest_id
    if largest >= size:
        raise DataError(
            f"model = {str(directory)!r}: the tokenizer's ids go up to {largest} "
            f"({tokenizer.decode([largest])!r}), but the model's vocabulary (vocab_size in config.json) has {size} "
            f"entries, ids 0 to {size - 1}. Tokenizer, weights and config.json must be of one model: save all three "
            "again"
        )


def _check_files(directory: Path, setting: str) -> None:
    """Read the headers: a truncated or damaged file is found before anything starts."""
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"{setting}: {path.name} is damaged or incomplete ({error}); copy or save it again"
            ) from error


def _description(directory: Path, setting: str) -> Description:
    try:
        return dict(json.loads((directory / "config.json").read_text()))
    except (ValueError, TypeError) as error:
        raise DataError(f"{setting}: config.json is not a JSON object: {error}") from error


def _check_architecture(directory: Path, setting: str) -> None:
    description = _description(directory, setting)
    names = description.get("architectures") or []
    if not any("CausalLM" in name or "LMHead" in name for name in names):
        raise DataError(f"{setting}: architectures = {names}, not a causal language model (...ForCausalLM)")
    if description.get("quantization_config"):
        raise DataError(f"{setting}: quantized weights can't be trained; save the model dequantized")
