"""A setting that can't have an effect is refused by name, whoever would have read it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from stretto.cli.runs import _configure
from stretto.config.idle import BESIDE, COMMANDS, _rule, check_idle, idle
from stretto.config.load import load_config, read_source, recipe_names, to_toml, validate
from stretto.config.schema import RunConfig
from stretto.config.sections import Component
from stretto.kernel.errors import ConfigError

SRC = Path(__file__).parents[2] / "src" / "stretto"
CAUSES = {  # what makes these keys idle
    "model=somewhere": ["sft.hidden=64", "sft.layers=1", "sft.heads=2", "sft.kv_heads=2",
                        "sft.intermediate=64", "sft.accuracy=0.5", "sft.max_steps=9",
                        "sft.batch=8", "sft.lr=0.1"],
    "sft.accuracy=0": ["sft.max_steps=9", "sft.batch=8", "sft.lr=0.1"],
    "learner.lora.rank=0": ["learner.lora.alpha=32", "learner.lora.dropout=0.1", "learner.lora.targets=['q_proj']",
                           "learner.lora.noisy_ratio=true", "weights.parts=both"],
    "learner.schedule=constant": ["learner.final_lr_share=0.1"],
    "learner.on_nonfinite=stop": ["learner.max_skipped=3"],
    "learner.critic.kind=none": ["learner.critic.lr=1e-3", "learner.critic.coefficient=1.0",
                                 "learner.critic.warmup_steps=3", "learner.critic.updates=2",
                                 "learner.critic.frozen=attention"],
    "engine.kind=mine:Engine": ["engine.dtype=float64", "engine.decode_steps=4", "engine.forward=fast"],
    "workers.on_engine_crash=stop": ["workers.max_restarts=3"],
    "workers.kind=inline": ["deadlines.startup_s=9", "deadlines.shutdown_s=9", "weights.transport=files"],
    "eval.tasks=0": ["eval.every=5", "eval.temperature=0.7", "eval.at_start=true", "eval.weight_drift=true"],
    "logging.wandb=false": ["logging.wandb_project=mine"],
    "control.pool.name=keep": ["simulation.forgetting=independent"],
    "simulation.env.kind=constant": ["simulation.env.sigma=0.5"],
    "simulation.env.kind=uniform": ["simulation.env.mean=3", "simulation.env.sigma=0.5"],
    "simulation.late.kind=exponential": ["simulation.late.sigma=0.5"],
    "simulation.late.kind=uniform": ["simulation.late.mean=3"],
    "simulation.lengths.kind=constant": ["simulation.lengths.sigma=0.5"],
    "simulation.lengths.kind=uniform": ["simulation.lengths.mean=3"],
}  # fmt: skip


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, type, default) of every key of the configuration."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        choices = [inner, *get_args(inner)]  # a section, or one that may be left out
        section = next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if section is not None and section is not Component:
            yield from keys(section, f"{prefix}{name}.")
        else:
            yield prefix + name, inner, field.get_default(call_default_factory=True)


def a_value(kind: Any, default: Any) -> Any:
    """Something that one might set."""
    if default:
        return {"name": "x"} if isinstance(default, Component) else default
    if get_origin(kind) is Literal:
        return get_args(kind)[-1]
    return {bool: True, float: 0.5, int: 1}.get(kind, "x")


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def test_every_key_is_read_somewhere() -> None:
    code = "\n".join(p.read_text() for p in SRC.rglob("*.py")
                     if p.name == "load.py" or p.parent.name != "config")  # fmt: skip
    code += "\n".join(line for p in (SRC / "config").glob("*.py") for line in p.read_text().splitlines()
                      if line.lstrip().startswith("return "))  # properties that stand for two keys  # fmt: skip
    for key, _, _ in keys(RunConfig):
        name = key.rsplit(".", 1)[-1]
        assert re.search(rf"""\.{name}\b|["']{name}["']""", code), f"{key} is read by nobody"


@pytest.mark.parametrize(("cause", "setting"), [(cause, s) for cause, settings in CAUSES.items() for s in settings])
def test_a_setting_without_effect_beside_another_is_refused_by_name(cause: str, setting: str, tmp_path: Path) -> None:
    key = setting.partition("=")[0]
    says = rf"{re.escape(key)} = .* has no effect: {re.split('[.=]', cause)[0]}"
    with pytest.raises(ConfigError, match=says):
        load_config("stale", [cause, setting])
    together: dict[str, Any] = {}
    for text in (cause, setting):
        name, _, value = text.partition("=")
        section, _, last = name.rpartition(".")
        here = together
        for part in section.split(".") if section else []:
            here = here.setdefault(part, {})
        try:
            here[last] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            here[last] = value
    import tomli_w

    (tmp_path / "mine.toml").write_text(tomli_w.dumps(together))
    with pytest.raises(ConfigError, match=re.escape(key)):
        load_config(str(tmp_path / "mine.toml"))


def test_every_row_of_the_table_is_tried() -> None:
    tried = {setting.partition("=")[0] for settings in CAUSES.values() for setting in settings}
    covered = {key for row in BESIDE for key in row.keys}
    assert all(any(t == k or t.startswith(f"{k}.") for t in tried) for k in covered), covered
    known = {key for key, _, _ in keys(RunConfig)}
    sections = {key.rpartition(".")[0] for key in known} | {"learner", "simulation"}
    named = covered | {key for rows in COMMANDS.values() for group in rows for key in group}
    assert named <= known | sections, "a key that there is not"


@pytest.mark.parametrize("mode", ["train", "rehearse", "simulate"])
def test_every_key_has_an_effect_under_a_command_or_is_refused_by_name(mode: str) -> None:
    config = load_config(
        "stale",
        [
            "workers.on_engine_crash=restart",
            "learner.lora.rank=4",
            "logging.wandb=true",
            "learner.lora.dropout=0.1",
            "learner.lora.noisy_ratio=true",
            "learner.schedule=linear",
            "learner.critic.kind=head",
            "control.pool.name=pace",
            "simulation.env.kind=lognormal",
            "simulation.late.kind=lognormal",
        ],
    )
    assert not idle(config)
    refused = set()
    for key, kind, default in keys(RunConfig):
        given = nested(key, a_value(kind, default))
        if _rule(key, idle(config, mode)) is None:
            check_idle({}, None, given, config, mode)
            continue
        refused.add(key)
        with pytest.raises(ConfigError, match=rf"{re.escape(key)}.*`stretto {mode}`"):
            check_idle({}, None, given, config, mode)
    assert {"train": "simulation.turns", "rehearse": "workers.own_cores", "simulate": "engine.dtype"}[mode] in refused


def test_simulate_follows_a_recipes_limits_unless_lengths_are_given() -> None:
    load_config("quickstart", ["sampling.max_new_tokens=4", "engine.max_model_len=12"], "simulate")
    with pytest.raises(ConfigError, match=r"sampling\.max_new_tokens = 4 has no effect: simulation\.lengths says"):
        load_config("quickstart", ["sampling.max_new_tokens=4", "simulation.lengths.mean=3"], "simulate")
    with pytest.raises(ConfigError, match=r"engine\.max_model_len = 12 has no effect: simulation\.prompt_tokens says"):
        load_config("quickstart", ["engine.max_model_len=12", "simulation.prompt_tokens=3"], "simulate")


def test_what_a_file_says_may_be_overruled_and_a_file_serves_every_command() -> None:
    config = load_config("quickstart", ["model=somewhere", "learner.schedule=constant", "eval.tasks=0"])
    assert config.sft.accuracy == 0.35
    for mode in ("train", "rehearse", "simulate"):
        for recipe in recipe_names():
            load_config(recipe, [], mode)


def test_what_is_turned_off_asks_for_nothing() -> None:
    load_config("quickstart", ["eval.tasks=0", "eval.every=0", "eval.weight_drift=false", "learner.lora.dropout=0"])
    load_config("quickstart", ["workers.kind=inline"], "rehearse")


def test_a_saved_configuration_leaves_out_what_is_idle_and_loads_again(tmp_path: Path) -> None:
    overruled = ["model=somewhere", "learner.schedule=constant", "eval.tasks=0", f"out={tmp_path}"]
    for settings in ([], overruled):
        config = load_config("quickstart", settings)
        saved = to_toml(config)
        table = tomllib.loads(saved)
        assert ("sft" in table) == (not settings)
        assert "alpha" not in table["learner"]["lora"]
        (tmp_path / "config.toml").write_text(saved)
        again = load_config(str(tmp_path / "config.toml"))
        assert to_toml(again) == saved
        assert _configure(None, ["max_steps=9"], tmp_path, "train").max_steps == 9
    with pytest.raises(ConfigError, match=r"workers\.max_restarts = 5 has no effect"):
        _configure(None, ["workers.max_restarts=5"], tmp_path, "train")
    with pytest.raises(ConfigError, match=r"workers\.own_cores = True has no effect"):
        _configure(None, ["workers.own_cores=true"], tmp_path, "rehearse")
    assert validate(read_source(str(tmp_path / "config.toml"))) == again


@pytest.mark.parametrize(("asked", "wrong"), [(4, False), (8, False), (9, True), (10**9, True)])
def test_more_samples_than_a_step_trains_on_are_refused(asked: int, wrong: bool) -> None:
    settings = ["prompts_per_step=2", "group_size=4", f"logging.rollouts_per_step={asked}"]
    if not wrong:
        load_config("stale", settings)
        return
    with pytest.raises(ConfigError, match=r"rollouts_per_step = \d+, but a step trains on .* = 8 trajectories"):
        load_config("stale", settings)


def test_samples_are_spread_over_the_groups_and_none_is_written_twice() -> None:
    from stretto.observe.samples import spread

    groups: Any = [["a0", "a1"], ["b0", "b1", "b2"]]

    def chosen(n: int) -> list[str]:
        return [group[row] for group, row in spread(groups, n)]

    assert chosen(2) == ["a0", "b1"]
    assert chosen(4) == ["a0", "b1", "a1", "b2"]
    assert sorted(chosen(99)) == ["a0", "a1", "b0", "b1", "b2"]
