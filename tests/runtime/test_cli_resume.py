"""``--resume`` on the command line: what it takes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli import _configure, app
from stretto.errors import CheckpointError, ConfigError

from .runs import go_on, start


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    start(out, model, "max_steps=1")
    return out


def test_resume_takes_the_configuration_from_the_run(finished: Path) -> None:
    with pytest.raises(ConfigError, match="leave out 'quickstart'"):
        _configure("quickstart", [], finished)
    assert _configure(None, ["max_steps=9"], finished).max_steps == 9


@pytest.mark.parametrize("setting", ["seed=1", "lag_bound=0", "objective.name=grpo", "group_size=4", "out=elsewhere"])
def test_what_makes_the_run_what_it_is_stays(setting: str, finished: Path) -> None:
    with pytest.raises(ConfigError, match="a resumed run keeps its"):
        _configure(None, [setting], finished)


def test_a_directory_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a run directory nor one of its checkpoints"):
        _configure(None, [], tmp_path)


def test_a_run_that_never_saved_says_so(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text((finished / "config.toml").read_text())
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        go_on(tmp_path)


def test_a_dry_run_of_a_resume_starts_and_changes_nothing(finished: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    result = CliRunner().invoke(app, ["train", "--resume", str(finished), "max_steps=3", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "max_steps = 3" in result.output
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resuming_a_finished_run_trains_nothing_and_ends_well(finished: Path) -> None:
    result = go_on(finished)
    assert result["reason"] == "done"
    assert result["version"] == 1
    assert result["ledger"]["trained"] == 4
