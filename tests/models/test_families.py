"""At lag bound 0 the ratio is 1: what the engine samples from, a token at a time on its cache, is what the learner
scores, a whole row at once, for every family of models that isn't refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stretto.kernel.errors import ConfigError, DataError
from stretto.models.generic import GenericForward
from stretto.models.reach import reach_of, window_of

from .families import FAMILIES, MAX_TOKENS, MORE, REFUSED, SWITCH, build, ratio_with_itself


def check(name: str, settings: dict[str, Any]) -> None:
    ratio = ratio_with_itself(build(name, settings))
    assert abs(float(ratio.mean()) - 1) < 1e-5
    assert float((ratio - 1).abs().max()) < 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_engine_and_learner_agree(name: str) -> None:
    check(name, FAMILIES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_engine_and_learner_agree_on_more_families(name: str) -> None:
    check(name, MORE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_differ_is_refused_by_name(name: str) -> None:
    settings, message = REFUSED[name]
    with pytest.raises((ConfigError, DataError), match=message):
        ratio_with_itself(build(name, settings))


@pytest.mark.parametrize("name", ["llama longrope", "phi3 longrope", "llama dynamic"])
def test_a_rotation_that_depends_on_length_is_right_up_to_its_switch(name: str) -> None:
    ratio = ratio_with_itself(build(name, REFUSED[name][0]), max_model_len=SWITCH)
    assert abs(float(ratio.mean()) - 1) < 1e-5


def test_a_window_that_the_mask_forgets_is_found() -> None:
    """The start-up check sees a model that looks back otherwise than its mask says."""
    model = build("gemma3_text", FAMILIES["gemma3_text"])
    GenericForward(model, torch.float32, MAX_TOKENS)
    right = GenericForward._masks

    def forgetful(self: GenericForward, seen: torch.Tensor, near: torch.Tensor) -> Any:
        masks = right(self, seen, near)
        return {**masks, "sliding_attention": masks["full_attention"]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GenericForward, "_masks", forgetful)
        with pytest.raises(ConfigError, match="Gemma3ForCausalLM isn't reproduced by the row cache"):
            GenericForward(model, torch.float32, MAX_TOKENS)


def test_reach_and_window_by_the_configuration_alone() -> None:
    reach = reach_of({"max_position_embeddings": 131072, "rope_scaling": {
        "type": "longrope", "original_max_position_embeddings": 4096}})  # fmt: skip
    assert reach is not None
    assert reach.tokens == 4096
    nested = reach_of({"text_config": {"max_position_embeddings": 99}})
    assert nested is not None
    assert nested.tokens == 99
    assert reach_of({"n_layer": 2}) is None
    assert window_of({"sliding_window": 8, "layer_types": ["full_attention"]}) is None
    assert window_of({"sliding_window": 8, "use_sliding_window": False}) is None
    assert window_of({"sliding_window": 8}) == 8
