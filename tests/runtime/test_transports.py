"""Weights in whole runs: any number of versions, whoever is slow, dies or finds the disk full."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.kernel.errors import ConfigError
from stretto.kernel.events import Event, read_events
from stretto.run.launch import check_start
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment
from stretto.weights.memory import place_bytes

from .harness import Wired, assert_clean, configure, of
from .runs import assert_clean as assert_log_clean
from .runs import children, start, train
from .runs import configure as configure_run
from .sleepy import Overtaken

OVERTAKEN = (f"env.name={Overtaken.__module__}:Overtaken", "control.version_pinning.name=pinned", "lag_bound=20",
             "depth=1", "max_steps=14")  # fmt: skip


def kept_to_the_end(events: list[Event], group: int) -> int:
    """Asserts that this group's trajectories have version 0 alone; how many versions their engine loaded meanwhile."""
    done = [e for e in of(events, "TrajDone") if e["group"] == group]
    assert done
    for event in done:
        assert [version for version, _ in event["versions"]] == [0]
    last = events.index(done[-1])
    return len([e for e in events[:last] if e["e"] == "Loaded"])


@pytest.mark.parametrize(("mode", "kind"), [("rehearse", "inline"), ("train", "inline"), ("train", "process")])
def test_a_promised_version_is_there_however_many_come_meanwhile(
    mode: str, kind: str, tmp_path: Path, model: Path
) -> None:
    Overtaken.newest = 0
    start(tmp_path / "run", model, *OVERTAKEN, f"workers.kind={kind}", mode=mode)
    events = read_events(tmp_path / "run")
    assert_clean(events)
    assert kept_to_the_end(events, 0) > Overtaken.wanted


class Patient(SimulatedEnvironment):
    """The first prompt's second turn comes after a long time."""

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        await client.generate(transcript, max_new_tokens=5)
        if task.index == 0:
            await client.sleep(500.0, "a long tool call")
            await client.generate(transcript, max_new_tokens=5)
        return transcript.finish(1.0)


def test_a_promised_version_is_there_in_simulation_too(tmp_path: Path) -> None:
    config = configure(
        "control.version_pinning.name=pinned", "lag_bound=1000", "depth=1", "max_steps=400", "prompts_per_step=2",
        "group_size=2", "simulation.step_base_s=1", "deadlines.rollout_s=5000", "deadlines.group_s=5000",
    )  # fmt: skip
    events = Wired(config, tmp_path, env=Patient(CostModel(config.simulation, 0))).run()
    assert_clean(events)
    assert kept_to_the_end(events, 0) > 100


@pytest.mark.parametrize("limit", [2, 3, 8])
def test_the_learner_runs_ahead_of_an_engine_that_loads_slowly_as_far_as_the_limit_says(
    limit: int, tmp_path: Path
) -> None:
    """Engine 0 drains long turns before each load; engine 1 takes every version."""
    config = configure(
        "control.in_flight=drain", "lag_bound=30", "max_steps=40", "engine.count=2", "prompts_per_step=2",
        "group_size=2", f"weights.staged_versions={limit}", "simulation.step_base_s=0.1", "simulation.publish_s=0.01",
        "deadlines.rollout_s=90000", "deadlines.group_s=90000",
    )  # fmt: skip
    wired = Wired(config, tmp_path, slow_engine=3000.0)
    events = wired.run()
    assert_clean(events)
    published, ahead = 0, 0
    for event in events:
        if event["e"] == "Published":
            published = event["version"]
        elif event["e"] == "Loaded":
            ahead = max(ahead, published - event["version"])
    assert ahead == limit - 1


# --- real processes ---

WAYS = """
import os, time
from pathlib import Path
from stretto.weights import files


class Full(files.Files):
    name = "full"

    def stage(self, version, tensors, adapter=None):
        def full(path, data):
            path.write_bytes(data[:100])
            raise OSError(28, "No space left on device")

        if version.number == 3:
            files._write = full
        return super().stage(version, tensors, adapter)


class Hangs(files.Files):
    name = "hangs"

    def stage(self, version, tensors, adapter=None):
        def hang(path, data):
            path.write_bytes(data[:100])
            self.hang()

        if version.number == 3 and os.environ["HANGS"] == "learner":
            files._write = hang
        return super().stage(version, tensors, adapter)

    def fetch(self, staged):
        if staged.version.number == 3 and os.environ["HANGS"] == "engine-0":
            self.hang()
        return super().fetch(staged)

    def hang(self):
        Path(self.place.directory, "hangs").touch()
        time.sleep(600)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "ways.py").write_text(WAYS)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_a_full_disk_ends_the_run_by_its_name_and_engines_keep_the_version_before(
    tmp_path: Path, model: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "run"
    with train(out, model, "weights.transport=ways:Full", "max_steps=100000", **environment) as run:
        code, output = run.end(240)
    assert code == 1
    assert "version 3 of policy can't be written to" in output
    assert "No space left on device. Make room" in output
    assert max(e["version"] for e in run.events if e["e"] == "Loaded") == 2
    assert run.events[-1]["reason"] == "failed"
    assert not (out / "weights").exists()
    assert_log_clean(out)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["engine-0", "learner"])
def test_a_kill_in_the_middle_of_a_load_leaves_no_file_behind(
    victim: str, tmp_path: Path, model: Path, environment: dict[str, str]
) -> None:
    out = tmp_path / "run"
    settings = ("weights.transport=ways:Hangs", "max_steps=100000")
    with train(out, model, *settings, **environment, HANGS=victim) as run:
        run.until(lambda: (out / "weights" / "hangs").exists())
        run.seen |= children(run.process.pid)
        os.kill(run.child(victim), signal.SIGKILL)
        code, output = run.end(30)
    assert code == 1
    assert f"{victim} was killed by SIGKILL" in output
    assert not (out / "weights").exists()
    assert_log_clean(out)


@pytest.mark.slow
def test_the_learner_goes_on_beside_an_engine_that_does_not_answer(tmp_path: Path, model: Path) -> None:
    """What it reads stays; beside that there are the newest version, one that is staged, and the other's."""
    out, limit = tmp_path / "run", 6
    settings = ("engine.count=2", f"weights.staged_versions={limit}", "lag_bound=30", "max_steps=100000")
    with train(out, model, *settings) as run:
        run.until_event("StepEnd", 3)
        learner, stopped = run.child("learner"), run.child("engine-1")
        (memory,) = [fd for fd in Path(f"/proc/{learner}/fd").iterdir() if "stretto-weights" in os.readlink(fd)][:1]
        nbytes = next(e["bytes"] for e in run.events if e["e"] == "Published")
        os.kill(stopped, signal.SIGSTOP)
        try:
            run.until(lambda: _ahead(run.events) >= limit - 2, 240)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert memory.stat().st_size <= 4 * place_bytes(nbytes)
        loads = len([e for e in run.events if e["e"] == "Loaded"])
        run.until_event("Loaded", loads + 6)
        run.process.send_signal(signal.SIGINT)
        code, output = run.end(60)
    assert code == 130, output
    assert_log_clean(out)


def _ahead(events: list[Event]) -> int:
    """How many versions were published after the last one that engine 1 loaded."""
    loaded = max((e["version"] for e in events if e["e"] == "Loaded" and e["worker"] == "engine-1"), default=0)
    return max(e["version"] for e in events if e["e"] == "Published") - loaded


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("weights.transport=pigeons",), "weights.transport: unknown transport 'pigeons'"),
        (("weights.transport=pathlib:Path",), "weights.transport = 'pathlib:Path': not a subclass"),
        (("weights.transport=nowhere:X",), "weights.transport = 'nowhere:X': can't import"),
        (("learner.lora.rank=2", "weights.parts=adapter"), "weights.parts = 'adapter' publishes nothing that engine"),
    ],
)
def test_what_a_run_could_not_do_is_refused_before_it_starts(
    settings: tuple[str, ...], said: str, tmp_path: Path, model: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_start(configure_run(tmp_path / "run", model, "workers.kind=process", *settings), "train")
