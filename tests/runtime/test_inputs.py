"""A run goes on only with what its checkpoint was made with: data, prompts, tokenizer, model."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stretto.cli.runs import _configure
from stretto.config.load import apply_overrides, to_toml, validate
from stretto.control.hooks import in_order
from stretto.kernel.errors import CheckpointError, ConfigError
from stretto.kernel.events import read_events
from stretto.observe.checker import check_run
from stretto.run.launch import check_start, launch
from stretto.runtime import inputs

from .runs import SMALL

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "note": f"{a}"} for a in range(3) for b in range(4)]
LINES = [json.dumps(row) for row in ROWS]


class Place:
    """A directory with a model, data, and a run of two steps that ended in the middle of its data."""

    def __init__(self, root: Path) -> None:
        self.model, self.data, self.run = root / "model", root / "rows.jsonl", root / "run"

    def write(self, lines: list[str]) -> None:
        self.data.write_text("\n".join(lines) + "\n")

    def check(self, *more: str) -> None:
        check_start(_configure(None, ["max_steps=3", *more], self.run), "train", self.run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    place = Place(tmp_path_factory.mktemp("inputs"))
    shutil.copytree(model, place.model)
    place.write(LINES)
    settings = [*SMALL, "workers.kind=inline", "logging.console=off", "max_steps=2", f"out={place.run}",
                f"model={place.model}"]  # fmt: skip
    settings.remove("env.digits=1")
    table = {"env": {"name": "data", "path": str(place.data)}, "reward": f"{__name__}:score"}
    launch(validate(apply_overrides(table, settings)), "train")
    return place.run.parent


def score(text: str, answer: object, info: object) -> float:
    """A reward that groups differ in."""
    return float(len(text))


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Place:
    """A copy that has been moved: where things lie doesn't matter, what they say does."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(made), str(tmp_path)))
    return Place(tmp_path)


def test_an_unchanged_run_goes_on_wherever_it_lies(place: Place) -> None:
    place.check()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [("group_size = 2", "group_size = 4", r"group_size = 4 \(2 before\)"),
     ('name = "tis"', 'name = "grpo"', r'objective.name = "grpo" \(its default before\)'),
     ("temperature = 1.0", "temperature = 0.5", r"sampling.temperature = 0.5 \(its default before\)"),
     ("[env]", "[env]\nanswer_column = 'note'", r'env.answer_column = "note" \(its default before\)')],
)  # fmt: skip
def test_settings_edited_in_a_runs_own_file_are_refused(place: Place, before: str, after: str, says: str) -> None:
    config = place.run / "config.toml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    with pytest.raises(CheckpointError, match=says):
        place.check()


def test_what_may_change_when_a_run_goes_on_may_be_edited(place: Place) -> None:
    config = place.run / "config.toml"
    config.write_text(config.read_text().replace("\nlr = 0.0002", "\nlr = 0.0001"))
    place.check("eval.tasks=1")


def test_an_order_that_sets_rules_is_the_same_after_its_run_has_said_so() -> None:
    asked = validate({"order": "submission"})
    written = validate(tomllib.loads(to_toml(asked)))
    for hook, rule in in_order(asked).items():
        setattr(written.control, hook, rule)
    assert inputs.take(asked, object(), None)["settings"] == inputs.take(written, object(), None)["settings"]  # type: ignore[arg-type]


def edited(place: Place) -> None:
    place.write([LINES[0].replace("note", "nota"), *LINES[1:]])


def answered(place: Place) -> None:
    place.write([*LINES[:-1], LINES[-1].replace('"answer": "5"', '"answer": "6"')])


def shuffled(place: Place) -> None:
    place.write(LINES[::-1])


def appended(place: Place) -> None:
    place.write([*LINES, json.dumps({"prompt": "9+9=", "answer": "18"})])


def cut(place: Place) -> None:
    place.write(LINES[:-2])


def another_base(place: Place) -> None:
    path = place.model / "model.safetensors"
    tensors = {name: np.array(value) for name, value in load_file(path).items()}
    tensors["model.norm.weight"][3] += 1e-3
    save_file(tensors, path, {"format": "pt"})


def another_architecture(place: Place) -> None:
    path = place.model / "config.json"
    path.write_text(path.read_text().replace('"max_position_embeddings": 128', '"max_position_embeddings": 256'))


def another_template(place: Place) -> None:
    (place.model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")


def another_tokenizer(place: Place) -> None:
    path = place.model / "tokenizer.json"
    table = json.loads(path.read_text())
    vocabulary = table["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (edited, "data: 12 rows as before, but with other content or in another order"),
        (answered, "data: 12 rows as before, but with other content"),
        (shuffled, "data: 12 rows as before, but with other content or in another order"),
        (appended, "data: 13 rows, 12 then: 1 were appended"),
        (cut, "data: 10 rows, 12 then, and what is common differs or was cut"),
        (another_base, "model: model.safetensors is not what it was"),
        (another_architecture, r"model: config\.json is not what it was"),
        (another_template, "tokenizer: chat_template.jinja is new"),
        (another_tokenizer, r"tokenizer: tokenizer\.json is not what it was"),
    ],
)
def test_a_changed_input_is_refused_by_name_and_nothing_changes(
    change: Callable[[Place], None], says: str, place: Place
) -> None:
    change(place)
    with pytest.raises(CheckpointError, match=says) as caught:
        place.check()
    assert f"model={place.run / 'model'}" in str(caught.value)
    kinds = [k for k in ("data", "model", "prompts", "tokenizer") if f"\n  {k}: " in str(caught.value)]
    assert f"accept_changed='{json.dumps(kinds)}'" in str(caught.value)
    place.check(f"accept_changed={json.dumps(kinds)}")


def test_the_start_refuses_what_the_dry_run_refuses_and_goes_on_when_it_must(place: Place) -> None:
    edited(place)
    settings = _configure(None, ["max_steps=3"], place.run)
    before = {p: p.read_bytes() for p in place.run.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(CheckpointError, match="data: 12 rows as before"):
        launch(settings, "train", resume=place.run)
    assert {p: p.read_bytes() for p in place.run.rglob("*") if p.is_file() and p.name != ".lock"} == before
    launch(_configure(None, ["max_steps=3", "accept_changed=['data']"], place.run), "train", resume=place.run)
    assert not check_run(place.run).violations
    assert read_events(place.run)[-1]["reason"] == "done"
    assert "accept_changed = []" in (place.run / "config.toml").read_text(), "it was accepted once"
    with pytest.raises(ConfigError, match="accept_changed is for --resume"):
        check_start(validate({"accept_changed": ["data"]}), "train")


def test_the_user_is_told_of_other_code_and_of_nothing_else(tmp_path: Path) -> None:
    before = {"code": {"reward = rewards:score (rewards.py)": "a"}, "model": {"config.json": "x"}}
    after = {"code": {"reward = rewards:score (rewards.py)": "b"}, "tokenizer": {}}
    told = inputs.compare(tmp_path, before, after, None, [])  # type: ignore[arg-type]
    assert told == ["changed since the checkpoint: code: reward = rewards:score (rewards.py) is not what it was"]


def test_of_large_weights_each_tensor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "_WHOLE", 0)
    tensors = {name: np.arange(100_000, dtype=np.float32) for name in ("a", "b")}
    path = tmp_path / "model.safetensors"
    seen = set()
    for name, at in ((None, 0), ("a", 0), ("a", -1), ("b", 50_001)):
        changed = {k: v.copy() for k, v in tensors.items()}
        if name is not None:
            changed[name][at] += 1
        save_file(changed, path)
        seen.add(inputs.file_fingerprint(path))
    assert len(seen) == 4
