"""Faults: bad rewards, full disks, dead processes. Each ends as it should, and the log stays whole."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.kernel.errors import StrettoError
from stretto.kernel.events import Event, read_events
from stretto.runtime.manifest import latest, load_checkpoint

from .runs import alive, assert_clean, children, go_on, resume, start, train, trained_groups

REWARDS = """
import os, sys, time

def _bad(text):
    return sum(map(ord, text)) % 4 == 0

def hangs(text, answer, info):
    if _bad(text):
        time.sleep(1000)
    return float(len(text))

def raises(text, answer, info):
    if _bad(text):
        raise ValueError("no such thing")
    return float(len(text))

def nan(text, answer, info):
    return float("nan") if _bad(text) else 1.0

def none(text, answer, info):
    return None if _bad(text) else 1.0

def inf(text, answer, info):
    return float("inf") if _bad(text) else 1.0

def word(text, answer, info):
    return "1.0" if _bad(text) else 1.0

def exits(text, answer, info):
    if _bad(text):
        os._exit(3)
    return float(len(text))

def prints(text, answer, info):
    print("x" * 3_000_000)
    sys.stderr.write("y" * 1_000_000)
    return float(len(text))

def always_raises(text, answer, info):
    raise RuntimeError("the grader is down")
"""
EXPECTED = {
    "hangs": "deadline", "raises": "no such thing", "nan": "nan", "none": "returned None", "inf": "inf",
    "word": "not a number", "exits": "exit status 3",
}  # fmt: skip


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(str(tmp_path))


def failed(events: list[Event]) -> list[str]:
    return [e["reason"] for e in events if e["e"] == "TrajEnd" and e["ending"] == "failed" for _ in e["traj"]]


# --- rewards ---


@pytest.mark.parametrize("kind", list(EXPECTED))
def test_a_bad_reward_fails_that_member_with_its_reason_and_it_is_replaced(
    kind: str, tmp_path: Path, model: Path, rewards: None
) -> None:
    out = tmp_path / "run"
    score_s = 2 if kind == "hangs" else 30
    settings = ("max_steps=3", f"reward=user_rewards:{kind}", f"deadlines.score_s={score_s}",
                "workers.replace_failed=8", "workers.scoring_processes=2")  # fmt: skip
    result = start(out, model, *settings)
    events = read_events(out)
    assert_clean(out, complete=True)
    assert result["version"] == 3
    assert sorted(trained_groups(events)) == list(range(6)), "no prompt is lost to a failed member"
    reasons = failed(events)
    assert reasons
    assert all(EXPECTED[kind] in reason for reason in reasons), reasons[:3]
    replaced = [e["replaces"] for e in events if "replaces" in e]
    assert len(replaced) == len(reasons)
    done = {e["traj"]: e["reward"] for e in events if e["e"] == "TrajDone"}
    trained = [t for e in events if e["e"] == "StepStart" for t in e["traj"]]
    assert all(done[t] is not None for t in trained), "absent rewards never train"


def test_a_reward_that_prints_a_lot_blocks_nobody(tmp_path: Path, model: Path, rewards: None) -> None:
    result = start(tmp_path / "run", model, "max_steps=2", "reward=user_rewards:prints")
    assert result["ledger"]["failed"] == 0
    assert result["version"] == 2


def test_a_pattern_that_backtracks_without_end_is_killed_at_its_deadline(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    settings = ("max_steps=2", "reward=regex", 'reward_options.pattern="(?:.+)+!"', "sampling.max_new_tokens=28",
                "deadlines.score_s=2", "workers.replace_failed=8")  # fmt: skip
    result = start(out, model, *settings)
    assert result["version"] == 2
    reasons = failed(read_events(out))
    assert reasons
    assert all("deadline" in r for r in reasons)
    assert_clean(out, complete=True)


def test_when_every_reward_fails_the_run_ends_with_the_reason(tmp_path: Path, model: Path, rewards: None) -> None:
    out, before = tmp_path / "run", children(os.getpid())
    with pytest.raises(StrettoError, match="valid members") as caught:
        start(out, model, "max_steps=3", "reward=user_rewards:always_raises")
    assert re.search(
        r"in a row failed.*: \d+ x .*raised RuntimeError at user_rewards\.py:\d+ in always_raises: the grader",
        str(caught.value),
    )
    events = read_events(out)
    assert events[-1]["e"] == "RunEnd"
    assert events[-1]["reason"] == "failed"
    assert any("the grader is down" in r for r in failed(events))
    assert "in always_raises" in (out / "logs" / "tracebacks.txt").read_text()
    assert_clean(out)
    assert children(os.getpid()) <= before


# --- disks ---


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """No file may grow beyond this: what a full disk does, to one file at a time."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def small_disk(where: Path, size: str) -> Iterator[None]:
    """A file system of this size at ``where``."""
    where.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(where)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system isn't permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def test_a_full_disk_under_the_event_log_ends_the_run_with_one_clear_message(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with largest_file(6000), pytest.raises(StrettoError, match=r"(File too large|No space left).*Make room"):
        start(out, model, "max_steps=50")
    assert_clean(out)


def test_a_checkpoint_that_does_not_fit_leaves_the_earlier_one(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    start(out, model, "max_steps=2", "save_every=1")
    earlier = latest(out / "checkpoints")
    assert earlier is not None
    with largest_file(150_000), pytest.raises(StrettoError, match=f"can't write a checkpoint.*{earlier.name}"):
        go_on(out, "max_steps=6")
    assert latest(out / "checkpoints") == earlier
    assert not list((out / "checkpoints").glob(".tmp-*"))
    assert_clean(out)
    go_on(out, "max_steps=6")
    assert sorted(trained_groups(read_events(out))) == list(range(12))
    assert_clean(out, complete=True)


@pytest.mark.parametrize("where", ["model", "rollouts", "tensorboard"])
def test_a_full_disk_under_a_part_of_the_run_is_one_clear_message(
    where: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(
        "stretto.run.rundir.check_contents", lambda out: None
    )  # the mounted disk is there before the run
    message = r"(?s)(No space left|os error 28).*(step-000060|There is no checkpoint)"
    with small_disk(out / where, "4k"), pytest.raises(StrettoError, match=message):
        start(out, model, "max_steps=60", "logging.rollouts_per_step=2")
    assert_clean(out)


def test_a_full_disk_under_the_report_is_one_clear_message(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: Path) -> Path:
        raise OSError(28, "No space left on device", str(run / "report.html"))

    monkeypatch.setattr("stretto.run.launch.write_report", full)
    with pytest.raises(StrettoError, match=r"report\.html: No space left"):
        start(tmp_path / "run", model, "max_steps=1", "logging.report=true")


# --- the loop's own parts ---


def test_an_error_in_any_background_callback_ends_the_run(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("in a callback")

    monkeypatch.setattr("stretto.runtime.groups.Groups._member_ok", broken)
    with pytest.raises(ZeroDivisionError, match="in a callback"):
        start(tmp_path / "run", model, "max_steps=2")
    assert_clean(tmp_path / "run")


# --- dead processes ---


def test_a_dead_engine_ends_the_run_with_its_own_error_last(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with train(out, model, "max_steps=100000") as run:
        run.until_event("StepEnd", 3)
        os.kill(run.child("engine-0"), signal.SIGKILL)
        code, output = run.end(20)
    assert code == 1
    assert output.rpartition("WorkerError: ")[2].startswith("engine-0 was killed by SIGKILL")
    assert run.events[-1]["reason"] == "failed"
    assert_clean(out)


def test_no_worker_outlives_a_killed_parent(tmp_path: Path, model: Path, rewards: None) -> None:
    out = tmp_path / "run"
    path = str(tmp_path)
    with train(out, model, "max_steps=100000", "reward=user_rewards:prints", "save_every=2", PYTHONPATH=path) as run:
        run.until_event("Checkpoint", 2)
        family = children(run.process.pid)
        assert len(family) == 3, "engine, learner, scoring"
        run.process.kill()
        run.process.wait()
        until = time.monotonic() + 60
        while alive(family) and time.monotonic() < until:
            time.sleep(0.02)
        assert not alive(family)
    assert_clean(out)
    checkpoint = latest(out / "checkpoints")
    assert checkpoint is not None
    load_checkpoint(checkpoint)


MOMENTS = {"start-up": 0.3, "early": 2.0, "rollout": 5.0, "later": 8.0}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["engine-0", "learner", "parent"])
@pytest.mark.parametrize("moment", list(MOMENTS))
def test_kill_at_any_moment_ends_the_run_and_leaves_nothing(
    victim: str, moment: str, tmp_path: Path, model: Path
) -> None:
    out = tmp_path / "run"
    with train(out, model, "max_steps=100000", "save_every=1") as run:
        run.until(lambda: run.child("learner"))
        time.sleep(MOMENTS[moment])
        run.seen |= children(run.process.pid)
        os.kill(run.process.pid if victim == "parent" else run.child(victim), signal.SIGKILL)
        code, output = run.end(30)
    assert code != 0
    if victim != "parent":
        assert f"{victim} was killed by SIGKILL" in output
    if run.events:
        assert_clean(out)
    checkpoint = latest(out / "checkpoints")
    if checkpoint is not None:
        done = load_checkpoint(checkpoint).version
        with resume(out, f"max_steps={done + 2}") as again:
            code, output = again.end(60)
        assert code == 0, output
        assert_clean(out, complete=True)
        assert sorted(trained_groups(again.events)) == list(range(2 * (done + 2)))


@pytest.mark.slow
def test_a_restarted_engine_takes_up_its_requests(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    settings = ("max_steps=400", "workers.on_engine_crash=restart", "workers.max_restarts=2", "engine.count=2")
    with train(out, model, *settings) as run:
        for kills in (1, 2):
            run.until_event("WorkerUp", 2 + kills)
            run.until_event("StepEnd", 10 * kills)
            os.kill(run.child("engine-0"), signal.SIGKILL)
        code, output = run.end(90)
    assert code == 0, output
    events = run.events
    assert sum(e["e"] == "WorkerDown" and e["worker"] == "engine-0" for e in events) == 2
    assert sorted(trained_groups(events)) == list(range(800))
    assert_clean(out, complete=True)


@pytest.mark.slow
def test_a_dead_scoring_process_fails_its_own_call_only(tmp_path: Path, model: Path, rewards: None) -> None:
    out = tmp_path / "run"
    settings = ("max_steps=60", "reward=user_rewards:prints", "workers.replace_failed=8")
    with train(out, model, *settings, PYTHONPATH=str(tmp_path)) as run:
        for steps in (3, 6, 9):
            run.until_event("StepEnd", steps)
            os.kill(run.child("scoring"), signal.SIGKILL)
        code, output = run.end(60)
    assert code == 0, output
    assert len(failed(run.events)) <= 3
    assert_clean(out, complete=True)


@pytest.mark.slow
def test_an_engine_that_hangs_in_an_update_ends_the_run_at_the_deadline(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with train(out, model, "max_steps=100000", "deadlines.publish_s=1", "deadlines.shutdown_s=1") as run:
        run.until_event("StepEnd", 3)
        os.kill(run.child("engine-0"), signal.SIGSTOP)
        code, output = run.end(20)
    assert code == 1
    assert "deadlines.publish_s" in output
    assert "engine-0: loading version" in output
    assert_clean(out)
