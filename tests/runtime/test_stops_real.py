"""Real runs that are told to end at random moments, with their terminal or without it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from stretto.runtime.manifest import latest, load_checkpoint

from .runs import SMALL, Run, assert_clean, children, resume, train, trained_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ENDLESS = ("max_steps=100000", "eval.tasks=20", "eval.every=4", "save_every=9", "deadlines.stop_s=60")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hears(pid: int) -> bool:
    """Has the command put its handlers up?"""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def goes_on(out: Path, model: Path) -> None:
    """From where it was, or from the beginning if nothing had trained."""
    checkpoint = latest(out / "checkpoints")
    done = 0 if checkpoint is None else load_checkpoint(checkpoint).version
    steps = f"max_steps={done + 2}"
    again = resume(out, steps) if (out / "config.toml").exists() else train(out, model, *ENDLESS, steps)
    with again as run:
        code, output = run.end(120)
    assert code == 0, output
    assert_clean(out, complete=True)
    assert sorted(trained_groups(run.events)) == list(range(2 * (done + 2))), "each prompt once"


@pytest.mark.parametrize("k", range(20))
def test_a_signal_at_a_random_moment_saves_ends_and_is_resumed(k: int, tmp_path: Path, model: Path) -> None:
    number, draw, out = SIGNALS[k % 3], random.Random(k), tmp_path / "run"
    # a quarter by the clock, mostly at the start; the others by how far the run is, however slow the machine
    events, moment = (0, draw.uniform(0, 20)) if k % 4 == 0 else (draw.randrange(1, 600), draw.uniform(0, 1))
    with train(out, model, *ENDLESS) as run:
        run.until(lambda: hears(run.process.pid) and len(run.events) >= events)
        time.sleep(moment)
        run.seen |= children(run.process.pid)
        last = run.events[-1]["e"] if run.events else "nothing yet"
        run.process.send_signal(number)
        code, output = run.end(60)
    print(f"{number.name} {moment:.2f} s after event {events} (0: its handlers were up); last event: {last}")
    assert code == 128 + number, output
    assert "interrupted" in output
    assert "Traceback" not in output
    if run.events:
        assert_clean(out)
    if any(e["e"] == "StepEnd" for e in run.events):
        assert latest(out / "checkpoints") is not None
    else:
        assert "nothing is lost" in output
    goes_on(out, model)


def test_two_signals_end_at_once_with_the_code_of_the_first(tmp_path: Path, model: Path) -> None:
    with train(tmp_path / "run", model, *ENDLESS) as run:
        run.until_event("StepEnd", 3)
        run.process.send_signal(signal.SIGINT)  # of two that wait to be heard, the lower number comes first
        run.process.send_signal(signal.SIGTERM)
        code, output = run.end(30)
    assert code == 130, output


def test_a_closed_terminal_costs_nothing_but_the_view(tmp_path: Path, model: Path) -> None:
    """Its processes get SIGHUP, and whatever they write to it fails from then on."""
    out = tmp_path / "run"
    recipe = tmp_path / "run.toml"
    recipe.write_text(f'name = "test"\nmodel = "{model}"\n[env]\nname = "arithmetic"\n')
    ours, theirs = pty.openpty()
    settings = [s for s in (*SMALL, *ENDLESS) if not s.startswith("logging.console")]
    process = subprocess.Popen(
        [sys.executable, "-m", "stretto.cli", "train", str(recipe), f"out={out}", *settings], stdin=theirs,
        stdout=theirs, stderr=theirs, env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    run = Run.__new__(Run)
    run.out, run.seen, run.process = out, set(), process  # type: ignore[assignment]
    try:
        until = time.monotonic() + 120
        while sum(e["e"] == "StepEnd" for e in run.events) < 5 and time.monotonic() < until:
            with contextlib.suppress(OSError):
                os.read(ours, 1 << 16)
            run.seen |= children(process.pid)
            time.sleep(0.02)
        os.close(ours)
        code, _ = run.end(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert code == 128 + signal.SIGHUP
    assert run.events[-1]["reason"] == "interrupted"
    goes_on(out, model)


def test_a_suspended_run_passes_no_deadline_when_it_goes_on(tmp_path: Path, model: Path) -> None:
    more = ("deadlines.batch_s=15", "deadlines.publish_s=15", "deadlines.step_s=15", "deadlines.rollout_s=15",
            "deadlines.group_s=15", "eval.tasks=0", "eval.every=0")  # fmt: skip
    with train(tmp_path / "run", model, *ENDLESS, *more) as run:
        run.until_event("StepEnd", 3)
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(20)
        run.process.send_signal(signal.SIGCONT)
        steps = sum(e["e"] == "StepEnd" for e in run.events)
        run.until_event("StepEnd", steps + 3)
        run.process.send_signal(signal.SIGINT)
        code, output = run.end(30)
    assert code == 130, output
    assert not [e for e in run.events if e["e"] == "TrajEnd" and e["ending"] == "failed"]
