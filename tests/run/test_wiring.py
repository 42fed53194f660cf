from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stretto.config.schema import RunConfig
from stretto.envs.build import build_environment, scoring_imports
from stretto.kernel.errors import ConfigError, DataError
from stretto.learner.result import StepResult
from stretto.models.tokenizer import char_tokenizer
from stretto.run.checks import check
from stretto.run.readiness import check_ready
from stretto.run.wiring import _recorder, load_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory that looks like a model to everything that doesn't load it."""
    from safetensors.numpy import save_file

    char_tokenizer("0123456789+-=").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 15}))
    save_file({}, tmp_path / "model.safetensors")
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "{i}+1111=", "answer": 1}}\n' for i in range(9)))
    return tmp_path


def load(model: Path, **settings: Any) -> None:
    env = {"name": "data", "path": str(model / "rows.jsonl"), **settings.pop("env", {})}
    config = RunConfig.model_validate({"model": str(model), "env": env, **settings})
    checked = check(config, "train")
    check_ready(checked)
    load_model(checked, lambda line: None)


def test_what_the_tokenizer_decides_is_checked_before_anything_starts(model: Path) -> None:
    load(model)
    short = {"engine": {"max_model_len": 7}, "sampling": {"max_new_tokens": 2}}
    with pytest.raises(DataError, match=r"rows\.jsonl:\d: prompt of 7 tokens, and engine\.max_model_len = 7"):
        load(model, **short)
    with pytest.raises(DataError, match=r"more than env\.max_prompt_tokens = 3"):
        load(model, env={"max_prompt_tokens": 3})
    with pytest.raises(ConfigError, match=r"env\.chat = true, but the model's tokenizer has no chat template"):
        load(model, env={"chat": True})
    with pytest.raises(ConfigError, match=r"env\.system needs a chat template"):
        load(model, env={"system": "Be brief."})


def test_a_vocabulary_that_does_not_fit_the_tokenizer_is_found_before_anything_starts(model: Path) -> None:
    (model / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 9}))
    with pytest.raises(DataError, match="tokenizer's ids go up to 14"):
        load(model)


def test_a_learners_warning_becomes_an_event_and_a_skipped_steps_reason_is_not_repeated() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    log: Any = SimpleNamespace(emit=lambda name, **fields: events.append((name, fields)))
    run: Any = SimpleNamespace(mode="simulate", config=RunConfig())
    record = _recorder(run, SimpleNamespace(), log)  # type: ignore[arg-type]
    record(1, [], StepResult(1, False, {}, reason="the policy was uniform"))
    record(2, [], StepResult(1, True, {}, reason="non-finite"))
    record(3, [], StepResult(2, False, {}))
    assert events == [("Fault", {"where": "learner", "what": "the policy was uniform"})]


def test_scoring_processes_load_what_the_configured_verifier_needs() -> None:
    config = RunConfig.model_validate({"reward": "math-verify", "env": {"name": "tool-agent"}})
    assert scoring_imports(build_environment(config)) == ("stretto.envs.verifiers", "math_verify")
    assert scoring_imports(build_environment(RunConfig())) == ("stretto.envs.verifiers",)
