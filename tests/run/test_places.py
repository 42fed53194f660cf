"""Where a configuration's files, modules and results are: the same from every working directory."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stretto.cli import app
from stretto.cli.runs import _configure
from stretto.config.load import load_config, to_toml
from stretto.run import rundir
from stretto.run.checks import check
from stretto.run.launch import check_start, launch

ROW = '{"question": "1+1=", "result": "2"}\n'
MODULE = "def half(text, answer, info):\n    return 0.5\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TOML file with data, a model and a reward beside it, seen from another directory."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    home = tmp_path / "my project"
    (home / "data").mkdir(parents=True)
    (home / "data" / "mine.jsonl").write_text(ROW * 3 + ROW.replace("1+1", "2+1"))
    (home / f"rewards_of_{tmp_path.name}.py").write_text(MODULE)
    (home / "run.toml").write_text(
        f'name = "mine"\nreward = "rewards_of_{tmp_path.name}:half"\nmax_steps = 1\nprompts_per_step = 1\n'
        'group_size = 2\n[env]\nname = "data"\npath = "data/mine.jsonl"\nprompt_column = "question"\n'
        'answer_column = "result"\n[sft]\naccuracy = 0\nhidden = 16\n[eval]\ntasks = 1\n[logging]\n'
        'console = "off"\nreport = false\n[sampling]\nmax_new_tokens = 3\n'
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def test_a_file_names_data_models_and_modules_from_where_it_lies(project: Path, tmp_path: Path) -> None:
    config = load_config(str(project / "run.toml"), [], "rehearse")
    assert config.env.options["path"] == str(project / "data" / "mine.jsonl")
    assert config.python_path == [str(project), str(tmp_path / "elsewhere")]
    check(config, "rehearse")
    relative = load_config(os.path.relpath(project / "run.toml"), [])
    assert relative.env == config.env
    (project / "model").mkdir()
    text = (project / "run.toml").read_text().replace('name = "mine"', 'name = "mine"\nmodel = "model"')
    (project / "run.toml").write_text(text.split("[sft]")[0])
    assert load_config(str(project / "run.toml")).model == str(project / "model")


def test_what_is_typed_is_meant_from_the_working_directory(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "data").mkdir()
    (tmp_path / "elsewhere" / "data" / "mine.jsonl").write_text(ROW)
    (tmp_path / "elsewhere" / "other.jsonl").write_text(ROW)
    typed = load_config(str(project / "run.toml"), ["env.path=data/mine.jsonl"])
    assert typed.env.options["path"] == str(tmp_path / "elsewhere" / "data" / "mine.jsonl")
    assert load_config("own-data", ["env.path=other.jsonl"]).env.options["path"] == str(
        tmp_path / "elsewhere" / "other.jsonl"
    )
    (project / "run.toml").write_text((project / "run.toml").read_text().replace("data/mine.jsonl", "other.jsonl"))
    found = load_config(str(project / "run.toml")).env.options["path"]
    assert found == str(tmp_path / "elsewhere" / "other.jsonl"), "nothing of that name lies beside the file"


@pytest.mark.parametrize(
    "value", ["stretto:additions.jsonl", "hf://some/data", "nowhere.jsonl", "~nobody/x", "x" * 300]
)
def test_what_is_no_file_here_stays_as_it_is(value: str, project: Path) -> None:
    assert load_config("own-data", [f"env.path={value}"]).env.options["path"] == value


def test_a_run_goes_on_from_another_directory(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(str(project / "run.toml"), ["out=run"], "rehearse")
    assert launch(config, "rehearse")["steps"] == 1
    saved = tomllib.loads(Path("run/config.toml").read_text())
    assert saved["env"]["path"] == str(project / "data" / "mine.jsonl")
    run = Path("run").absolute()
    monkeypatch.chdir(tmp_path)
    code = (
        "from pathlib import Path; from stretto.cli.runs import _configure\n"
        "from stretto.kernel.components import load_object\n"
        f"config = _configure(None, ['max_steps=2'], Path({str(run)!r}), 'rehearse')\n"
        "print(load_object(config.reward, 'reward')('', '', {}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["0.5"], done.stderr
    check_start(_configure(None, ["max_steps=2"], run, "rehearse"), "rehearse", run)


def test_a_run_without_a_place_gets_the_next_free_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def place() -> str | None:
        return _configure("quickstart", [], None, "train").out

    assert place() is None
    (tmp_path / "runs" / "quickstart" / "logs").mkdir(parents=True)
    assert place() is None, "what a failed start left"
    (tmp_path / "runs" / "quickstart" / "events.jsonl").touch()
    assert place() == "runs/quickstart-2"
    (tmp_path / "runs" / "quickstart-2").write_text("a file")
    (tmp_path / "runs" / "quickstart-3").mkdir()
    (tmp_path / "runs" / "quickstart-3" / "thesis.tex").touch()
    (tmp_path / "runs" / "quickstart-4").mkdir()
    with rundir.hold(tmp_path / "runs" / "quickstart-4"):
        said = CliRunner().invoke(app, ["train", "quickstart", "--dry-run"])
    assert said.exit_code == 0, said.output
    assert "runs/quickstart is taken: this run goes to runs/quickstart-5" in said.stderr
    assert 'out = "runs/quickstart-5"' in said.stdout
    assert _configure("quickstart", ["out=runs/quickstart"], None, "train").out == "runs/quickstart"
    assert "out = " not in to_toml(load_config("quickstart"))


def test_the_version_is_told() -> None:
    from importlib.metadata import version

    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.output) == (0, f"stretto {version('stretto')}\n")
