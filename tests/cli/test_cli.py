"""Exit codes and messages of the commands, as a shell sees them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stretto import cli
from stretto.cli.runs import _show
from stretto.config.load import recipe_names
from stretto.kernel.errors import WorkerError
from stretto.observe.summary import summarize
from stretto.run.result import result_of
from stretto.runtime.workers.inline import InlineLearner

SMALL = ("prompts_per_step=4", "group_size=2", "logging.console=off", "logging.report=false")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``stretto arguments``."""
    monkeypatch.setattr(sys, "argv", ["stretto", *arguments])
    with pytest.raises(SystemExit) as done:
        cli.main()
    shown = capsys.readouterr()
    assert isinstance(done.value.code, int)
    return done.value.code, shown.out, shown.err


@pytest.mark.parametrize(
    ("accuracies", "says"),
    [
        ([0.25, 0.5], "0.250 → 0.500 (± 0.204 each, 24 tasks)"),
        ([0.5], "0.500 (± 0.204, 24 tasks)"),
        ([0.0], "0.000 (0 of 24: 95% interval 0.000 to 0.138)"),
        ([0.0, 0.0], "0.000 → 0.000 (0 of 24: 95% interval 0.000 to 0.138)"),
        ([0.0, 1.0], "0.000 → 1.000 (0 of 24: 95% interval 0.000 to 0.138, 24 of 24: 95% interval 0.862 to 1.000)"),
    ],
)
def test_what_is_said_of_accuracy_is_what_was_measured(
    accuracies: list[float], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [{"e": "Eval", "t": 1.0 + k, "start": k, "version": k, "n": 24, "accuracy": accuracy, "reward": accuracy}
              for k, accuracy in enumerate(accuracies)]  # fmt: skip
    _show(result_of("train", tmp_path, "max_steps", summarize(events), "", 1.0))
    assert f"held-out accuracy    {says}\n" in capsys.readouterr().out


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
    log = finished / "events.jsonl.gz"
    lines = gzip.decompress(log.read_bytes()).splitlines(True)
    log.write_bytes(gzip.compress(b"".join(line for line in lines if b'"e":"StepEnd"' not in line)))
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
    from stretto.run import doctor

    for status, code in (("ok", 0), ("missing", 0), ("bad", 1)):
        monkeypatch.setattr(doctor, "examine", lambda s=status: [{"name": "x", "status": s, "detail": ""}])
        assert run(capsys, monkeypatch, "doctor")[0] == code


def test_an_interrupted_simulation_says_so_and_exits_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stretto.cli", "simulate", "quickstart", f"out={tmp_path}/run",
               "max_steps=100000", *SMALL]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "events.jsonl.gz"
    until = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    result, shown = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    manifest = next(json.loads(p.read_text()) for p in tmp_path.glob("run/checkpoints/step-*/manifest.json"))
    kept = sum(len(g["members"]) for g in manifest["running"]) + sum(g["size"] for g in manifest["ready"])
    assert kept
    assert f"cancelled {kept}, open 0 ({kept} of the cancelled are in the checkpoint and go on when" in result
    assert f"interrupted. The last complete checkpoint is {tmp_path}/run/checkpoints/step-" in shown
    assert f"go on with: stretto simulate --resume {tmp_path}/run" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_can_be_simulated(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, shown = run(capsys, monkeypatch, "simulate", recipe, f"out={tmp_path}/run", "max_steps=1", *SMALL)
    assert code == 0, shown


def catches(pid: int, number: signal.Signals) -> bool:
    """Has this process a handler for the signal?"""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def test_a_run_that_is_told_to_end_at_its_start_says_so_and_exits_143(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stretto.cli", "rehearse", "quickstart", f"out={tmp_path}/run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not catches(process.pid, signal.SIGTERM) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    process.terminate()
    _, shown = process.communicate(timeout=60)
    assert process.returncode == 143, shown
    assert "interrupted" in shown
    assert "Traceback" not in shown


EARLY = """
import os, signal, sys
install = signal.signal
def and_there_it_is(number, handler):
    before = install(number, handler)
    if number == signal.SIGTERM and callable(handler):
        os.kill(os.getpid(), number)
    return before
signal.signal = and_there_it_is
sys.argv = ["stretto", "recipes"]
from stretto.cli.entry import main
main()
"""


def test_a_signal_that_comes_while_handlers_are_being_set_ends_as_later_ones_do() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr
    assert done.stderr.strip() == "interrupted"


@pytest.mark.parametrize("command", [("recipes",), ("check", "{run}"), ("check", "{run}", "--json")])
def test_a_stdout_that_can_not_be_written_is_one_message(finished: Path, command: tuple[str, ...]) -> None:
    arguments = [part.format(run=finished) for part in command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "stretto.cli", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "OSError: the standard output: No space left on device\n"


def test_a_path_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("x:b:y [red] " + "long" * 40 + ".toml")
    path.write_text("= 3")
    code, _, shown = run(capsys, monkeypatch, "train", str(path))
    assert code == 1
    assert f"ConfigError: {path}: not valid TOML" in shown


def test_check_says_whether_the_run_has_ended(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = finished / "events.jsonl.gz"
    for complete in (True, False):
        code, shown, _ = run(capsys, monkeypatch, "check", str(finished), "--json")
        assert (code, json.loads(shown)["complete"]) == (0, complete)
        lines = gzip.decompress(log.read_bytes()).splitlines(True)
        log.write_bytes(gzip.compress(b"".join(line for line in lines if b'"e":"RunEnd"' not in line)))


@pytest.mark.parametrize(
    ("save_every", "says"),
    [("1", "go on with: stretto simulate --resume {run}"), ("0", "no checkpoint yet: delete {run} or choose another")],
)
def test_a_run_that_fails_says_how_to_go_on(
    save_every: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = InlineLearner.step

    async def dies(self: InlineLearner, *arguments: Any) -> Any:
        stepped, staging = await step(self, *arguments)
        if stepped.version == 3:
            raise WorkerError("the learner died")
        return stepped, staging

    monkeypatch.setattr(InlineLearner, "step", dies)
    code, _, shown = run(
        capsys, monkeypatch, "simulate", "quickstart", f"out={tmp_path}/run", f"save_every={save_every}", *SMALL
    )
    assert code == 1
    assert shown.startswith("WorkerError: the learner died\n")
    assert says.format(run=tmp_path / "run") in shown


def test_a_component_may_be_a_file_of_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "my_own_task.py").write_text(
        "from stretto.envs.reverse import Reverse\n\nclass Mine(Reverse):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    code, out, err = run(capsys, monkeypatch, "train", "stale", "env.name=my_own_task:Mine", "--dry-run")
    assert code == 0, err
    assert "my_own_task:Mine" in out


MARKUP = "[/b] [red] :smile: \\[x]"


def test_what_a_user_named_is_shown_as_it_is_and_never_read_as_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = f"runs/{MARKUP}"
    code, shown, said = run(
        capsys, monkeypatch, "rehearse", "quickstart", f"out={out}", "name=n [red] [bold", f"description={MARKUP}",
        "max_steps=1", "prompts_per_step=2", "group_size=2", "eval.tasks=2", "sft.accuracy=0",
        "sft.hidden=16", "logging.console=plain",
    )  # fmt: skip
    assert code == 0, said
    assert f"{out}/model\n" in shown
    assert f"{out}/report.html\n" in shown
    for command in ("check", "report"):
        code, shown, said = run(capsys, monkeypatch, command, out)
        assert code == 0, said
    assert f"{out}/report.html" in shown
    code, _, said = run(capsys, monkeypatch, "train", "--resume", out)
    assert code == 1
    assert f"{out} was made by" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", f"{MARKUP}.toml"),
        ("train", "quickstart", f"model={MARKUP}"),
        ("train", "quickstart", f"reward={MARKUP}:f"),
        ("train", "quickstart", f"reward=math:{MARKUP}"),
        ("train", "quickstart", f"control.pool.name={MARKUP}"),
        ("train", "own-data", f"env.path={MARKUP}"),
        ("train", "quickstart", f"{MARKUP}=3"),
        ("train", "--resume", MARKUP),
        ("check", MARKUP),
        ("report", MARKUP),
        ("objectives", MARKUP),
        ("reproduce", MARKUP),
        ("compare", "stale", "--objectives", MARKUP),
        ("compare", MARKUP),
        (MARKUP,),
        ("train", f"--{MARKUP}"),
    ],
)
def test_an_error_shows_what_it_is_about_as_it_was_typed(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, said = run(capsys, monkeypatch, *arguments)
    assert code in (1, 2)
    assert MARKUP in said.replace("\\\\", "\\")
    assert "Traceback" not in said


@pytest.mark.parametrize("text", [MARKUP, "[/]", "[bold"])
def test_the_live_view_and_the_progress_of_a_sweep_read_no_markup(text: str) -> None:
    import io

    from rich.console import Console

    from stretto.cli import research
    from stretto.observe.live import LiveView

    shown = io.StringIO()
    with LiveView("rich", 3, console=Console(file=shown, force_terminal=True, width=200)) as live:
        live.progress(text)
        live({"e": "Fault", "t": 0.0, "where": "x", "what": text})
    assert text in shown.getvalue()
    with research._Counted(1, lambda record: record["error"]) as done:
        done({"error": text})


NOISY = """
import os
print("from an import")
os.write(1, b"past Python, without an end")
from stretto.envs.reverse import Reverse
class Noisy(Reverse):
    def __post_init__(self):
        print("from an object", end="")
"""


@pytest.mark.parametrize("wants", [("--dry-run", "--json"), ("--dry-run",)])
def test_what_a_users_module_prints_is_no_part_of_what_a_program_reads(wants: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    command = [sys.executable, "-m", "stretto.cli", "train", "stale", "env.name=noisy:Noisy", *wants]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) if "--json" in wants else tomllib.loads(done.stdout)
    for part in ("from an import", "from an object", "past Python"):
        assert part in done.stderr


@pytest.mark.parametrize("command", [("recipes",), ("recipes", "--json")])
def test_a_reader_that_has_enough_is_no_error(command: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "stretto.cli", *command], stdout=theirs, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["train", "quickstart", "--max_steps=3"], "Settings have no dashes: max_steps=VALUE"),
        (["train", "quickstart", "--max-steps", "3"], "Settings have no dashes: max_steps=VALUE"),
        (["train", "quickstart", "max_steps", "=", "3"], "key=value without blanks"),
        (["train", "quickstart", "learning_rate=1"], "here it is 'learner.lr'"),
        (["train", "quickstart", "batch_size=1"], "here it is 'prompts_per_step'"),
        (["train", "quickstart", "max_steps=ten"], "max_steps = 'ten': expected whole number, at least 0"),
        (["train", "quickstart", "sampling.stop=x"], "expected list of texts"),
        (["train", "quickstart", "learner.betas=0.9"], "expected two numbers, at least 0 and below 1, each"),
        (["train", "quickstart", "env.operators=[+,-]"], "texts in a list have quotes"),
        (["train", "quickstart", "reward=my/file.py:f"], "a module's name, not its file's: my.file:f"),
        (["train", "quickstart", "out=/root/nope/../../proc/x", "--dry-run"], "can't be created"),
        (["trian", "quickstart"], "Did you mean 'train'"),
        (["train", "quickstart", "--dryrun"], "--dry-run"),
        (["train", "--resume", "nowhere"], "neither a run directory"),
        (["train", "."], "neither a file nor a recipe"),
        (["train", "quickstrat"], "did you mean 'quickstart'"),
    ],
)
def test_a_wrong_command_line_gets_one_clear_answer(
    line: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, said = run(capsys, monkeypatch, *line)
    assert code in (1, 2)
    assert says in said
    assert "Traceback" not in said
