"""A version that a group was promised is there until the group is over: waits, failures, checkpoints change nothing."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stretto.config.load import validate
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import ConfigError, InvariantError, StrettoError, WorkerError
from stretto.kernel.events import Event, EventLog, read_events
from stretto.observe.checker import check_events
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine
from stretto.simulation.costs import CostModel

from .handles import Idle
from .harness import Chaos, ChaoticEnvironment, Wired, assert_clean, configure, of
from .runs import exit_code, forked, go_on, start
from .sleepy import Early

PINS = ["control.in_flight=pin", "control.version_pinning.name=pinned"]


class Handle(Idle):
    """Notes what it is told to free."""

    def __init__(self) -> None:
        super().__init__("engine-0")
        self.freed: list[int] = []

    def free(self, versions: Any) -> None:
        self.freed += versions


def loads(engine: PooledEngine, version: int) -> None:
    engine.loaded(version)
    engine.acknowledged(version)


def on_an_engine(check: Any, keeps: bool = True) -> None:
    async def scenario() -> None:
        handle = Handle()
        pool = EnginePool([handle], EventLog(None, asyncio.get_running_loop().time), keeps=keeps)
        check(pool["engine-0"], handle.freed)

    run_virtual(scenario(), VirtualLoop())


def test_a_promised_version_outlives_later_ones_until_its_last_group_is_over() -> None:
    def check(engine: PooledEngine, freed: list[int]) -> None:
        loads(engine, 3)
        engine.promise(3)
        engine.promise(3)
        engine.loaded(4)
        engine.promise(3)  # nobody knows of version 4 yet
        engine.acknowledged(4)
        loads(engine, 7)
        assert freed == [4]
        for _ in range(2):
            engine.redeem(3)
        assert freed == [4]
        engine.redeem(3)
        assert freed == [4, 3]
        with pytest.raises(InvariantError, match=r"can't promise version 3: it holds \[7\]"):
            engine.promise(3)

    on_an_engine(check)


def test_an_engine_that_dies_with_promised_versions_fails_by_their_name() -> None:
    def check(engine: PooledEngine, freed: list[int]) -> None:
        loads(engine, 3)
        assert engine.died(WorkerError("killed"), returns=True)
        assert not engine.failed.done()
        loads(engine, 3)
        engine.promise(3)
        assert not engine.died(WorkerError("killed"), returns=True), "nothing to come up again for"
        with pytest.raises(WorkerError, match="engine-0 died, and with it version 3, to which groups are pinned"):
            engine.failed.result()

    on_an_engine(check)


def test_an_engine_that_keeps_nothing_promises_nothing() -> None:
    def check(engine: PooledEngine, freed: list[int]) -> None:
        loads(engine, 3)
        with pytest.raises(InvariantError, match="keeps none"):
            engine.promise(3)
        loads(engine, 4)
        assert (freed, list(engine.held)) == ([], [4])

    on_an_engine(check, keeps=False)


@pytest.mark.parametrize("setting", PINS)
def test_restarts_of_engines_and_pins_exclude_each_other(setting: str) -> None:
    with pytest.raises(ConfigError, match="on_engine_crash = 'restart' can't go with control"):
        configure(setting, "workers.on_engine_crash=restart")


def chaotic(seed: int, out: Path, *more: str) -> Wired:
    """Waits before the first token and between turns, failures at the end, replacements, three engines."""
    config = configure(
        f"seed={seed}", "lag_bound=3", "max_steps=6", "prompts_per_step=2", "group_size=3", "engine.count=3",
        "engine.max_num_seqs=4", "simulation.prompt_tokens=5", "simulation.publish_s=0.3", "simulation.step_base_s=0.2",
        "deadlines.group_s=400", "deadlines.rollout_s=200", *more,
    )  # fmt: skip
    return Wired(config, out, Chaos(seed, turns=3, spread=0.3, fail=0.2, hang=0.01, early=15.0))


@pytest.mark.parametrize("setting", PINS)
def test_whatever_waits_or_fails_each_trajectory_has_one_version(setting: str, tmp_path: Path) -> None:
    behind = 0
    for seed in range(8):
        wired = chaotic(seed, tmp_path / str(seed), setting)
        try:
            wired.run()
        except StrettoError as error:
            assert "in a row failed" in str(error)  # noqa: PT017
        events = wired.events
        assert_clean(events)
        done = of(events, "TrajDone")
        assert all(len(e["versions"]) == 1 for e in done)
        replaced = {e["traj"][0]: e["version"] for e in of(events, "Submitted") if "replaces" in e}
        assert all(e["versions"][0][0] == replaced.get(e["traj"], e["versions"][0][0]) for e in done)
        held = {e["worker"]: 0 for e in of(events, "Loaded")}
        engine = {e["group"]: e["engine"] for e in of(events, "Submitted")}
        for event in events:
            if event["e"] == "Loaded":
                held[event["worker"]] = event["version"]
            elif event["e"] == "TrajDone":
                behind += event["versions"][0][0] < held[engine[event["group"]]]
    assert behind > 20, "many went on under a version that their engine had left behind"


def test_an_engine_that_freed_too_early_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PooledEngine, "promise", lambda engine, version: None)
    monkeypatch.setattr(PooledEngine, "redeem", lambda engine, version: None)
    wired = chaotic(1, tmp_path, PINS[0])
    with pytest.raises(InvariantError, match="is pinned to version 0, which was freed"):
        wired.run()
    assert any("released while trajectory" in str(v) for v in check_events(wired.events))


@pytest.mark.parametrize("settings", [PINS[:1], PINS[1:], [PINS[1], "control.in_flight=abort"]], ids=" ".join)
def test_real_engines_hold_what_was_promised_and_a_resumed_run_plays_it_anew(
    settings: list[str], tmp_path: Path, model: Path
) -> None:
    out = tmp_path / "run"
    more = (*settings, f"env.name={Early.__module__}:Early", "env.digits=1", "max_steps=6", "save_every=2",
            "simulation.step_base_s=0.5", "engine.count=2")  # fmt: skip
    pid = forked(lambda: start(out, model, *more, mode="rehearse"), die_at_event=120)
    assert exit_code(pid) == -signal.SIGKILL
    go_on(out, mode="rehearse")
    events: list[Event] = read_events(out)
    assert_clean(events)
    assert events[-1]["reason"] == "done"
    assert of(events, "Restarted")
    assert any("replaces" in e for e in of(events, "Submitted"))
    assert all(len(e["versions"]) == 1 for e in of(events, "TrajDone"))
    assert all("pin" in e for e in of(events, "Submitted") + of(events, "Restarted"))


def test_a_rule_that_promises_what_is_not_there_is_named(tmp_path: Path) -> None:
    config = configure("lag_bound=1", "max_steps=2", f"control.version_pinning.name={__name__}:Future")
    wired = Wired(config, tmp_path, env=ChaoticEnvironment(CostModel(config.simulation, 0), Chaos(0)))
    with pytest.raises(StrettoError, match="engine-0 can't promise version 1: it holds"):
        wired.run()
    assert validate({}).control.version_pinning.name == "latest"


class Future:
    """A version rule that asks for the next version."""

    def assign(self, view, engine):  # type: ignore[no-untyped-def]
        return view.version + 1
