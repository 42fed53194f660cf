"""Resume: nothing skipped, nothing twice, labels and versions go on, the lag bound holds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from stretto.kernel.errors import ConfigError
from stretto.kernel.events import Event, read_events
from stretto.kernel.logfile import find_log
from stretto.runtime.manifest import latest, load_checkpoint
from stretto.runtime.workers.inline import InlineLearner

from .runs import assert_clean, exit_code, forked, go_on, start, trained_groups

BATCH, STEPS, BOUND = 2, 8, 2
LONG = (f"max_steps={STEPS}", "save_every=2", "sampling.max_new_tokens=16", "engine.decode_steps=2")


def assert_whole(out: Path) -> list[Event]:
    """Every prompt trained once, labels without gaps, admission never ran ahead."""
    events = read_events(out)
    assert_clean(out, complete=True)
    assert sorted(trained_groups(events)) == list(range(BATCH * STEPS))
    ends = [e for e in events if e["e"] == "StepEnd"]
    assert [e["step"] for e in ends] == list(range(STEPS))
    assert [e["version"] for e in ends] == list(range(1, STEPS + 1))
    outstanding: set[int] = set()
    training: list[int] = []
    for event in events:
        if event["e"] == "Submitted":
            outstanding.add(event["group"])
        elif event["e"] == "StepEnd":
            outstanding -= set(training)
        elif event["e"] == "StepStart":
            training = event["groups"]
        assert len(outstanding) <= (BOUND + 1) * BATCH, "admitted - trained <= (L + 1) * batch, after a resume too"
    return events


@pytest.mark.parametrize("save_partial", ["true", "false"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_kills_in_a_row_lose_and_repeat_no_prompt(
    seed: int, save_partial: str, tmp_path: Path, model: Path
) -> None:
    out, draw = tmp_path / "run", random.Random(seed)
    settings = (*LONG, f"save_partial={save_partial}")
    first = exit_code(forked(lambda: start(out, model, *settings), die_at_event=draw.randrange(40, 90)))
    assert first == -signal.SIGKILL
    for _ in range(6):
        if latest(out / "checkpoints") is None:
            break
        code = exit_code(forked(lambda: go_on(out), die_at_event=draw.randrange(10, 120)))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    if latest(out / "checkpoints") is not None:
        go_on(out)
        assert_whole(out)


def test_partial_rollouts_go_on_at_their_last_token_with_their_versions(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    settings = (*LONG, "sampling.max_new_tokens=24", "engine.decode_steps=1", "save_every=1", "group_size=4",
                "simulation.step_base_s=0.1")  # fmt: skip
    pid = forked(lambda: start(out, model, *settings, mode="rehearse"), die_at_event=130)
    assert exit_code(pid) == -signal.SIGKILL
    checkpoint = latest(out / "checkpoints")
    assert checkpoint is not None
    restored = load_checkpoint(checkpoint)
    left = [m for group in restored.running for m in group.open if m.completions]
    partial = {m.trajectory: m.completions[-1] for m in left}
    assert partial, "the checkpoint holds rollouts in the middle of a turn"
    assert all(c.finish == "aborted" for c in partial.values())
    go_on(out, mode="rehearse")
    done = {e["traj"]: e for e in assert_whole(out) if e["e"] == "TrajDone"}
    for trajectory, completion in partial.items():
        sampled = [v for v, n in done[trajectory]["versions"] for _ in range(n)]
        assert sampled[: len(completion.versions)] == completion.versions.tolist()


def test_the_first_act_of_a_resumed_run_is_to_publish_what_it_loaded(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    settings = ("max_steps=8", "save_every=3", "control.publish.name=every-k", "control.publish.k=2")
    assert exit_code(forked(lambda: start(out, model, *settings), die_at_event=85)) == -signal.SIGKILL
    go_on(out)
    events = assert_whole(out)
    after = events[[e["e"] for e in events].index("Resumed") :]
    first = next(e for e in after if e["e"] not in ("Resumed", "WorkerUp", "WorkerDown"))
    assert first["e"] == "Published"
    assert first["version"] == after[0]["version"]


def test_resuming_keeps_full_concurrency(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    assert exit_code(forked(lambda: start(out, model, *LONG), die_at_event=80)) == -signal.SIGKILL
    go_on(out)
    events = assert_whole(out)
    after = events[[e["e"] for e in events].index("Resumed") :]
    open_groups = most = 0
    for event in after:
        open_groups += (event["e"] in ("Submitted", "Restarted")) - (event["e"] == "GroupReady")
        most = max(most, open_groups)
    assert most > BATCH


def test_rehearsal_resumed_from_a_checkpoint_trains_the_same_prompts_in_every_step(tmp_path: Path, model: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = (*LONG, "simulation.env.kind=lognormal", "simulation.env.mean=1.0", "order=submission")
    start(whole, model, *settings, mode="rehearse")
    assert exit_code(forked(lambda: start(cut, model, *settings, mode="rehearse"), die_at_event=90)) == -signal.SIGKILL
    go_on(cut, mode="rehearse")
    a, b = assert_whole(whole), assert_whole(cut)
    assert trained_groups(a) == trained_groups(b)


def test_a_lower_max_steps_on_resume_cancels_what_can_not_train(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    pid = forked(lambda: start(out, model, *LONG, "simulation.step_base_s=0.1", mode="rehearse"), die_at_event=80)
    assert exit_code(pid) == -signal.SIGKILL
    checkpoint = latest(out / "checkpoints")
    assert checkpoint is not None
    version = load_checkpoint(checkpoint).version
    result = go_on(out, f"max_steps={version + 1}", mode="rehearse")
    assert_clean(out, complete=True)
    assert result["version"] == version + 1
    assert result["ledger"]["cancelled"] > 0


def test_a_finished_run_goes_on_to_a_higher_max_steps_and_remembers_it(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    start(out, model, "max_steps=4")
    pid = forked(lambda: go_on(out, f"max_steps={STEPS}", "save_every=2"), die_at_event=40)
    assert exit_code(pid) == -signal.SIGKILL
    go_on(out)
    assert_whole(out)


def test_an_older_checkpoint_can_be_chosen_and_newer_ones_step_aside(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    start(out, model, *LONG, "keep_checkpoints=10")
    go_on(out, checkpoint=out / "checkpoints" / "step-000004")
    assert_whole(out)
    assert list((out / "checkpoints").glob("step-000006.lost-*"))


def test_what_may_not_change_is_refused(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    start(out, model, "max_steps=1")
    with pytest.raises(ConfigError, match="keeps its 'seed'"):
        go_on(out, "seed=3")


def test_an_interrupt_finishes_the_step_saves_and_the_run_goes_on(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    pid = forked(lambda: start(out, model, *LONG, "sampling.max_new_tokens=24", "engine.decode_steps=1"))
    _wait_for_steps(out, 2)
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid) == 130
    events = read_events(out)
    assert events[-1]["e"] == "RunEnd"
    assert events[-1]["reason"] == "interrupted"
    assert_clean(out)
    go_on(out)
    assert_whole(out)


def test_a_second_interrupt_ends_the_run_at_once(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(handle: InlineLearner, directory: Path) -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(InlineLearner, "save", never)
    out = tmp_path / "run"
    pid = forked(lambda: start(out, model, "max_steps=100000"))
    _wait_for_steps(out, 2)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it saves"
    os.kill(pid, signal.SIGINT)
    assert exit_code(pid, 5) == 130
    assert read_events(out)[-1]["reason"] == "interrupted"
    assert_clean(out)


def _wait_for_steps(out: Path, count: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if find_log(out) is not None and sum(e["e"] == "StepEnd" for e in read_events(out)) >= count:
            return
        time.sleep(0.005)
    pytest.fail("no steps")
