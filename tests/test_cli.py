"""Exit codes and messages of the commands, as a shell sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto import cli

SMALL = ("prompts_per_step=4", "group_size=2", "logging.console=off", "logging.report=false")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``stretto arguments``."""
    monkeypatch.setattr(sys, "argv", ["stretto", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    shown = capsys.readouterr()
    assert isinstance(done.value.code, int)
    return done.value.code, shown.out, shown.err


@pytest.fixture
def finished(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A simulated run."""
    code, shown, _ = run(
        capsys, monkeypatch, "simulate", "quickstart", f"out={tmp_path}/run", "max_steps=3", *SMALL, "--json"
    )
    assert code == 0
    assert json.loads(shown.splitlines()[-1])["steps"] == 3
    return tmp_path / "run"


def test_check_exits_1_when_an_invariant_is_broken(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, monkeypatch, "check", str(finished))[0] == 0
    log = finished / "events.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"e":"StepEnd"' not in line))
    code, shown, _ = run(capsys, monkeypatch, "check", str(finished), "--json")
    assert code == 1
    assert json.loads(shown.splitlines()[-1])["violations"]


def test_expected_errors_are_one_message_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, shown = run(capsys, monkeypatch, "simulate", "quickstart", f"out={tmp_path}/x", "max_stepz=3")
    assert code == 1
    assert "max_stepz" in shown
    assert "max_steps" in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "x").exists()
    assert run(capsys, monkeypatch, "train", "--no-such-option")[0] == 2


def test_doctor_exits_1_when_something_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stretto import doctor

    for status, code in (("ok", 0), ("missing", 0), ("bad", 1)):
        monkeypatch.setattr(doctor, "examine", lambda s=status: [{"name": "x", "status": s, "detail": ""}])
        assert run(capsys, monkeypatch, "doctor")[0] == code


def test_an_interrupted_simulation_says_so_and_exits_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stretto.cli", "simulate", "quickstart", f"out={tmp_path}/run",
               "max_steps=100000", *SMALL]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "events.jsonl"
    until = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "interrupted" in shown
    assert "Traceback" not in shown
