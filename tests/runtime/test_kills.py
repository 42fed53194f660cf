"""kill -9 at random and at aimed moments: the run ends or goes on as it should, and resumes without a gap."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from stretto.kernel.logfile import find_log
from stretto.observe.checker import check_run
from stretto.runtime.manifest import latest, load_checkpoint

from .runs import Run, assert_clean, children, resume, train, trained_groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
REPETITIONS = 3
REWARDS = """
def length(text, answer, info):
    return float(len(text))
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "killed_rewards.py").write_text(REWARDS)
    return {"PYTHONPATH": str(tmp_path)}


ENDLESS = ("max_steps=100000", "save_every=1", "reward=killed_rewards:length", "workers.replace_failed=8")


def kill(run: Run, victim: str) -> None:
    """Now; the scoring process may be between two lives."""
    run.seen |= children(run.process.pid)
    pid = run.process.pid if victim == "parent" else run.until(lambda: run.child(victim))
    os.kill(pid, signal.SIGKILL)


def ends(run: Run, victim: str) -> None:
    """By itself, at once, with the error of who died; a scoring process alone is replaced, so that an interrupt ends
    the run."""
    if victim == "scoring":
        steps = sum(e["e"] == "StepEnd" for e in run.events)
        run.until_event("StepEnd", steps + 3)
        run.process.send_signal(signal.SIGINT)
    code, output = run.end(30)
    assert code != 0, output
    if victim in ("engine-0", "learner"):
        assert f"{victim} was killed by SIGKILL" in output


def resumes(out: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the last checkpoint, if there is one; the prompts are those of a run that nobody killed."""
    log = find_log(out)
    if log is None or not log.stat().st_size:
        return
    assert not check_run(out).violations
    checkpoint = latest(out / "checkpoints")
    if checkpoint is None:
        return
    done = load_checkpoint(checkpoint).version
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    with resume(out, f"max_steps={done + 2}") as again:
        code, output = again.end(90)
    assert code == 0, output
    assert_clean(out, complete=True)
    assert sorted(trained_groups(again.events)) == list(range(2 * (done + 2)))


@pytest.mark.parametrize("victim", ["engine-0", "learner", "scoring", "parent"])
@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_kill_at_a_random_moment(
    victim: str, repetition: int, tmp_path: Path, model: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first repetition kills during the start-up, the others within three seconds of training."""
    out = tmp_path / "run"
    moment = random.Random(f"{victim}/{repetition}").uniform(0, 3)
    print(f"{victim} dies {moment:.3f} s after {'its birth' if not repetition else 'the first step began'}")
    with train(out, model, *ENDLESS, **settings) as run:
        if repetition:
            run.until_event("StepStart")
        else:
            name = "learner" if victim == "parent" else victim
            # a first scoring process only looks at the reward's module, before there is a log
            run.until(lambda: (victim != "scoring" or run.events) and run.child(name))
        time.sleep(moment)
        kill(run, victim)
        ends(run, victim)
    resumes(out, settings, monkeypatch)


@pytest.mark.parametrize("victim", ["engine-0", "learner", "parent"])
def test_kill_in_a_weight_update(
    victim: str, tmp_path: Path, model: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with train(out, model, *ENDLESS, **settings) as run:
        run.until_event("StepEnd", 3)
        run.until(lambda: run.events[-1]["e"] in ("StepEnd", "Published"))
        kill(run, victim)
        ends(run, victim)
    resumes(out, settings, monkeypatch)


@pytest.mark.parametrize("victim", ["engine-0", "learner", "parent"])
def test_kill_in_a_checkpoint(
    victim: str, tmp_path: Path, model: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with train(out, model, *ENDLESS, **settings) as run:
        run.until_event("Checkpoint", 2)
        pid = run.process.pid if victim == "parent" else run.child(victim)
        run.seen |= children(run.process.pid)
        until = time.monotonic() + 30
        while not list((out / "checkpoints").glob(".tmp-*")):
            assert time.monotonic() < until, "no checkpoint came"
        os.kill(pid, signal.SIGKILL)
        ends(run, victim)
    assert latest(out / "checkpoints") is not None
    resumes(out, settings, monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_in_a_step_saves_it_and_the_run_goes_on_from_there(
    number: signal.Signals, tmp_path: Path, model: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with train(out, model, *ENDLESS, **settings) as run:
        run.until_event("StepEnd", 2)
        run.until(lambda: run.events[-1]["e"] == "StepStart" or len(run.events) > 400)
        run.process.send_signal(number)
        code, output = run.end(30)
    assert code == 128 + number, output
    steps = sum(e["e"] == "StepEnd" for e in run.events)
    assert run.events[-1]["reason"] == "interrupted"
    checkpoint = latest(out / "checkpoints")
    assert checkpoint is not None
    assert load_checkpoint(checkpoint).version == steps, "the step that ran is in it"
    resumes(out, settings, monkeypatch)


@pytest.mark.parametrize("moment", ["rollout", "checkpoint"])
def test_an_engine_that_is_restarted_costs_no_prompt(
    moment: str, tmp_path: Path, model: Path, settings: dict[str, str]
) -> None:
    """Also while a checkpoint waits for its partial rollouts: their deadline is shorter than its imports."""
    out = tmp_path / "run"
    more = ("max_steps=60", "workers.on_engine_crash=restart", "workers.max_restarts=1", "deadlines.publish_s=3",
            "save_partial=true")  # fmt: skip
    with train(out, model, *ENDLESS, *more, **settings) as run:
        run.until_event("StepEnd", 3)
        pid = run.child("engine-0")
        if moment == "checkpoint":
            until = time.monotonic() + 30
            while not list((out / "checkpoints").glob(".tmp-*")):
                assert time.monotonic() < until, "no checkpoint came"
        os.kill(pid, signal.SIGKILL)
        code, output = run.end(120)
    assert code == 0, output
    assert_clean(out, complete=True)
    assert sorted(trained_groups(run.events)) == list(range(120))
