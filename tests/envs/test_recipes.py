from __future__ import annotations

import pytest

from stretto.config.load import load_config, recipe_names
from stretto.envs.build import build_environment
from stretto.models.tokenizer import LightTokenizer


@pytest.mark.parametrize("name", ["quickstart", "smollm2", "tool-agent", "own-data"])
def test_recipe_is_listed_and_its_prompts_and_answers_fit(name: str, chars: LightTokenizer) -> None:
    assert name in recipe_names()
    config = load_config(name)
    assert config.name == name
    env = build_environment(config)
    env.bind(chars, config.seed)
    task = env.task(0)
    assert len(task.prompt) > 0
    assert len(env.eval_tasks(5)) == 5
    if config.model == "tiny":  # one token per character: the engine's limits must hold the longest episode
        worked = max((env.demonstration(i) for i in range(200)), key=lambda w: len(w[0]))  # type: ignore[attr-defined]
        assert len(worked[0]) <= config.engine.max_model_len
        turns = "".join("x" if m else " " for m in worked[1]).split()
        assert max(map(len, turns)) <= config.sampling.max_new_tokens
