"""``stretto eval`` and ``stretto chat``: what a run has trained, with the run's own parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli import app
from stretto.config.load import load_config
from stretto.kernel.errors import ConfigError, DataError, StrettoError
from stretto.run.launch import launch
from stretto.run.trained import find


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    config = load_config("quickstart", [
        f"out={out}", "max_steps=1", "prompts_per_step=2", "group_size=2", "eval.tasks=12", "sft.accuracy=0",
        "sft.hidden=16", "logging.console=off", "logging.report=false", "eval.every=0",
    ], "rehearse")  # fmt: skip
    launch(config, "rehearse")
    return out


def invoke(*arguments: object, text: str | None = None) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], input=text)
    if isinstance(done.exception, StrettoError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_is_played_on_its_held_out_tasks_as_it_was_at_its_end(trained: Path) -> None:
    last = (trained / "rollouts" / "eval-000001.jsonl").read_text().splitlines()
    result = json.loads(invoke("eval", trained, "--json"))
    assert [a["text"] for a in result["answers"]] == [json.loads(line)["text"] for line in last]
    assert (result["tasks"], result["samples"], result["failed"], result["faults"]) == (12, 1, 0, [])
    assert f"accuracy {result['accuracy']:.3f}" in invoke("eval", trained)
    (checkpoint,) = [p for p in (trained / "checkpoints").iterdir() if (p / "manifest.json").exists()]
    again = json.loads(invoke("eval", checkpoint, "--json"))
    assert (again["answers"], again["version"]) == (result["answers"], 1)
    bare = json.loads(invoke("eval", trained / "model", "--recipe", "quickstart", "--tasks", 12, "--json"))
    assert bare["answers"] == result["answers"]


def test_samples_tasks_temperature_and_data_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    result = json.loads(invoke("eval", trained, "--tasks", 3, "--samples", 2, "--temperature", 1, "--json",
                               "--max-tokens", 2))  # fmt: skip
    assert (result["tasks"], result["samples"], len(result["answers"])) == (3, 2, 6)
    assert result["solved"] >= result["accuracy"]
    with pytest.raises(ConfigError, match="with temperature 0: all answers to a task are alike"):
        invoke("eval", trained, "--samples", 2)
    with pytest.raises(DataError, match="no such file or directory"):
        invoke("eval", trained, "--data", tmp_path / "none.jsonl")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="reads no file"):
        invoke("eval", trained, "--data", tmp_path / "rows.jsonl")


def test_one_can_talk_to_it(trained: Path) -> None:
    once = invoke("chat", trained, "--prompt", "12+34=", "--temperature", 0)
    assert once.endswith("\n")
    talk = invoke("chat", trained, "--temperature", 0, text="12+34=\n/new\nxyz\n12+34=\n\n")
    assert talk.count(once.strip()) >= 2
    assert invoke("chat", trained / "model", "--prompt", "1+1=", "--max-tokens", 1)
    with pytest.raises(DataError, match="no token for 'x'"):
        invoke("chat", trained, "--prompt", "x")
    with pytest.raises(ConfigError, match="--system needs a chat template"):
        invoke("chat", trained, "--prompt", "1", "--system", "be brief")


def test_what_is_no_policy_is_named(trained: Path, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "x[/b]", "no such directory"), (tmp_path, "neither a run")):
        with pytest.raises(DataError, match=says):
            find(path, [])
    with pytest.raises(ConfigError, match="--recipe NAME"):
        find(trained / "model", [])
    with pytest.raises(ConfigError, match="has its own"):
        find(trained, [], "quickstart")


def test_the_example_trains_within_its_lag_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import asyncio
    import runpy

    monkeypatch.setenv("STRETTO_CACHE", str(tmp_path))
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "train_by_hand.py"))
    example["main"].__globals__.update(PROMPTS=2, GROUP=2)
    assert len(asyncio.run(example["main"](4, 0.0))) == 4
