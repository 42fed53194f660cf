"""How many tokens a model reads as it was made to, by its configuration. Free of torch: the front door asks too.

A row of an engine is decoded on a cache of rotated keys, and rows of different lengths share a step. Both are right
only where the rotation of a position doesn't depend on how long its row is:

* ``default``, ``linear``, ``yarn``, ``llama3`` rotations depend on the position alone, at any length;
* ``longrope`` takes other factors for all positions once a row (in Transformers: any row of the batch) exceeds
  ``original_max_position_embeddings``, ``dynamic`` stretches with the length beyond ``max_position_embeddings``: both
  are run up to that length, and refused beyond it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Description = Mapping[str, Any]
"""What a config.json holds: of any model, so that who reads a name knows its type."""

_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")

BUILT_IN: dict[str, dict[str, int]] = {
    "tiny": {"max_position_embeddings": 1024}, "smollm2": {"max_position_embeddings": 8192},
}  # fmt: skip
"""Of the models that are made on demand; both are Llamas."""
LLAMA_MODULES = ["embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""What can have an adapter in a Llama, beside the head."""


@dataclass(frozen=True, slots=True)
class Reach:
    """At most ``tokens`` a row, and ``why``."""

    tokens: int
    why: str


def description_of(config: PretrainedConfig) -> Description:
    """A Transformers configuration as config.json would hold it, with the kinds of layers that it derives."""
    out = dict(config.to_dict())
    if kinds := getattr(config, "layer_types", None):
        out["layer_types"] = list(kinds)
    return out


def reach_of(description: Description) -> Reach | None:
    """The reach of the model with this configuration (config.json); None if it has no limit."""
    text = description.get("text_config")
    d = {**description, **text} if isinstance(text, Mapping) else description
    found = [
        Reach(int(d[name]), f"it has {d[name]} positions ({name} in its config.json)")
        for name in _POSITIONS
        if isinstance(d.get(name), int) and d[name] > 0
    ][:1]
    for rotary in _rotations(d):
        kind = rotary.get("rope_type", rotary.get("type"))
        switch = rotary.get("original_max_position_embeddings") or d.get("original_max_position_embeddings")
        if kind == "longrope" and switch:
            found.append(Reach(int(switch), (
                f"its rotary positions are 'longrope', whose factors change for all positions of a row longer than "
                f"{switch} tokens (original_max_position_embeddings): keys that are in the cache can't follow"
            )))  # fmt: skip
    return min(found, key=lambda reach: reach.tokens, default=None)


def _rotations(d: Description) -> Iterator[Description]:
    """The tables of rotary parameters: one, or one a kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        table = d.get(name)
        if isinstance(table, Mapping):
            yield table
            yield from (part for part in table.values() if isinstance(part, Mapping))


def check_reach(description: Description, max_model_len: int, name: str) -> None:
    """Raise ``ConfigError`` if rows of ``max_model_len`` tokens are more than the model ``name`` can read."""
    reach = reach_of(description)
    if reach is not None and max_model_len > reach.tokens:
        raise ConfigError(
            f"engine.max_model_len = {max_model_len} is more than {name} can read: {reach.why}. Set "
            f"engine.max_model_len = {reach.tokens} or less"
        )


def window_of(description: Description) -> int | None:
    """The shortest window through which a layer looks back; None if all layers see everything."""
    kinds = description.get("layer_types")
    found = []
    sliding = description.get("sliding_window")
    if sliding and description.get("use_sliding_window", True) and (not kinds or "sliding_attention" in kinds):
        found.append(int(sliding))
    if "local" in (description.get("attention_layers") or ()):  # GPT-Neo
        found.append(int(description["window_size"]))
    return min(found, default=None)
