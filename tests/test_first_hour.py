"""What a newcomer meets in the first hour: messages of the commands that say what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stretto import cli
from stretto.config.load import load_config
from stretto.envs.data import Data
from stretto.kernel.errors import DataError
from stretto.objectives.describe import NEEDS, describe, prose, summaries
from stretto.observe.samples import lines_of


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What ``stretto arguments`` says as it exits with 1."""
    monkeypatch.setattr(sys, "argv", ["stretto", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    assert done.value.code == 1
    return " ".join(capsys.readouterr().err.split())


def test_data_for_an_environment_without_files_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stretto.run.trained import Trained

    found = Trained(load_config("quickstart", []), tmp_path, None, None)
    monkeypatch.setattr("stretto.run.trained.find", lambda *_: found)
    said = refused(capsys, monkeypatch, "eval", str(tmp_path), "--data", str(tmp_path))
    assert "env.name = 'arithmetic', which makes its own tasks" in said
    assert "--data is for env.name = 'data'" in said


def test_a_name_of_no_event_and_out_of_a_sweep_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "did you mean 'StepEnd'" in refused(capsys, monkeypatch, "log", str(tmp_path), "--event", "StepEndd")
    assert "go to --out runs/x" in refused(capsys, monkeypatch, "compare", "stale", "out=runs/x")


def test_a_missing_file_says_where_it_was_looked_for() -> None:
    with pytest.raises(DataError, match=f"no such file or directory in {Path.cwd()}"):
        Data(path="nope.jsonl")


def test_objectives_are_set_as_paragraphs_and_their_needs_are_explained() -> None:
    text = "A line that\ngoes on with ``code``.\n\n    x = 1\n    y = 2\n\n* one\n  more\n* two"
    assert prose(text).split("\n") == [
        "A line that goes on with code.", "", "    x = 1", "    y = 2", "", "* one more", "* two"
    ]  # fmt: skip
    for summary in summaries():
        assert "``" not in prose(describe(summary.name).text)
        assert all(f"\n  {need} " in NEEDS for need in summary.needs)


def test_answers_of_eval_look_like_samples() -> None:
    sample = {"version": None, "reward": 1.0, "prompt": "95+65=", "completion": "160<eos>", "answer": "160"}
    assert lines_of([sample]) == ['sample reward=1: "95+65=" → "160<eos>", expected "160"']
