"""``--resume`` on the command line: what it takes and what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli import app
from stretto.cli.runs import _configure
from stretto.kernel.errors import CheckpointError, ConfigError, DataError
from stretto.run import rundir
from stretto.run.launch import check_start

from .runs import configure, exit_code, forked, go_on, start


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    start(out, model, "max_steps=1", "logging.events=plain")
    return out


def test_resume_takes_the_configuration_from_the_run(finished: Path) -> None:
    with pytest.raises(ConfigError, match="leave out 'quickstart'"):
        _configure("quickstart", [], finished)
    assert _configure(None, ["max_steps=9"], finished).max_steps == 9


@pytest.mark.parametrize("setting", ["seed=1", "lag_bound=0", "objective.name=grpo", "group_size=4", "out=elsewhere"])
def test_what_makes_the_run_what_it_is_stays(setting: str, finished: Path) -> None:
    with pytest.raises(ConfigError, match="a resumed run keeps its"):
        _configure(None, [setting], finished)


def test_a_damaged_configuration_is_named_by_its_file(finished: Path, tmp_path: Path) -> None:
    text = (finished / "config.toml").read_text()
    (tmp_path / "config.toml").write_text(text.replace("group_size = ", "group_size = -"))
    with pytest.raises(ConfigError, match=r"config\.toml: group_size = -2"):
        _configure(None, [], tmp_path)


def test_a_directory_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run directory nor one of its checkpoints"):
        _configure(None, [], tmp_path)


def test_a_run_that_never_saved_says_so(finished: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "events.jsonl"):
        shutil.copy(finished / name, tmp_path)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint.*what it trained is lost"):
        go_on(tmp_path)


def test_a_dry_run_of_a_resume_starts_and_changes_nothing(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    result = CliRunner().invoke(app, ["train", "--resume", str(finished), "max_steps=3", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "max_steps = 3" in result.output
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def fingerprints(run: Path) -> dict[Path, int]:
    """When each file was last changed; the lock is no part of the run."""
    return {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and p.name != rundir.LOCK}


def test_resuming_a_finished_run_starts_nothing_changes_nothing_and_says_what_it_had(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("it loaded the model")

    monkeypatch.setattr("stretto.run.launch.load_model", never)
    before = fingerprints(finished)
    result = go_on(finished)
    assert result["reason"] == "done"
    assert result["version"] == 1
    assert result["ledger"]["trained"] == 4
    assert len(result["events_sha256"]) == len(result["weights_sha256"]) == 64
    assert fingerprints(finished) == before
    shown = CliRunner().invoke(app, ["train", "--resume", str(finished), "logging.console=plain"])
    assert shown.exit_code == 0
    assert "nothing to do (a higher max_steps goes on)" in shown.output


def test_fewer_steps_than_were_trained_can_not_be_asked_for(finished: Path) -> None:
    before = fingerprints(finished)
    with pytest.raises(ConfigError, match="max_steps = 0 is below the 1 steps"):
        go_on(finished, "max_steps=0")
    assert fingerprints(finished) == before


@pytest.mark.parametrize("mode", ["simulate", "rehearse"])
def test_a_run_goes_on_in_its_own_mode_only(mode: str, finished: Path) -> None:
    before = fingerprints(finished)
    with pytest.raises(ConfigError, match="was made by `stretto train`"):
        go_on(finished, "max_steps=3", mode=mode)
    for more in ([], ["--dry-run"]):
        result = CliRunner().invoke(app, [mode, "--resume", str(finished), "max_steps=3", *more])
        assert isinstance(result.exception, ConfigError)
        assert f"stretto train --resume {finished}" in str(result.exception)
    assert fingerprints(finished) == before


def test_a_run_is_held_by_one_process_at_a_time(finished: Path, tmp_path: Path, model: Path) -> None:
    def hold_for_a_while() -> dict[str, str]:
        with rundir.hold(finished), rundir.hold(tmp_path):
            (tmp_path / "held").touch()
            time.sleep(60)
        return {"reason": "done"}

    pid = forked(hold_for_a_while)
    try:
        until = time.monotonic() + 20
        while not (tmp_path / "held").exists() and time.monotonic() < until:
            time.sleep(0.01)
        before = fingerprints(finished)
        with pytest.raises(ConfigError, match=rf"{finished} is in use: process {pid} "):
            go_on(finished, "max_steps=3")
        assert fingerprints(finished) == before
        (tmp_path / "held").unlink()
        with pytest.raises(ConfigError, match=rf"{tmp_path} is in use: process {pid} "):
            start(tmp_path, model, "max_steps=1")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert exit_code(pid) == -signal.SIGKILL
    with rundir.hold(finished):
        pass  # the kernel let go


def test_a_damaged_log_is_named_by_file_and_line_and_nothing_is_changed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    lines = (run / "events.jsonl").read_bytes().split(b"\n")
    lines[6] = b"\xff\x00garbage".ljust(len(lines[6]), b"z")
    (run / "events.jsonl").write_bytes(b"\n".join(lines))
    before = fingerprints(run)
    with pytest.raises(DataError, match=r"events\.jsonl:7: not JSON"):
        go_on(run, "max_steps=3")
    assert fingerprints(run) == before
    result = CliRunner().invoke(app, ["report", str(run)])
    said = str(result.exception) if result.exception else capsys.readouterr().err + result.output
    assert "events.jsonl: line 7 can't be read" in said
    assert result.exception is None or isinstance(result.exception, DataError)


def test_a_directory_with_other_things_in_it_is_no_place_for_a_run(tmp_path: Path, model: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"thesis\.tex.*choose another out=\.\.\. or empty it"):
        start(tmp_path, model)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("out", ["file", "file/x", "a" * 300, "nul\0", "/proc/run"])
def test_a_directory_that_can_not_be_made_is_found_by_a_dry_run(out: str, tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose another out="):
        check_start(configure(tmp_path / out, model), "train")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_dry_run_finds_the_run_that_is_already_there_and_makes_no_directory(
    finished: Path, tmp_path: Path, model: Path
) -> None:
    with pytest.raises(ConfigError, match="already holds a run: go on with it"):
        check_start(configure(finished, model), "train")
    check_start(configure(tmp_path / "a" / "b", model), "train")
    assert not list(tmp_path.iterdir())
