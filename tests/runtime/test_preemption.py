"""Trajectories that rest, go on and move, in whole runs and between two engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from stretto.config.sections import EngineConfig
from stretto.control.actions import Preempt, PreemptionAction
from stretto.control.hooks import build_rules
from stretto.control.view import View
from stretto.data.counter import mix
from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.envs.scoring import InlineScoring
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.kernel.events import Event, EventLog, read_events
from stretto.observe.checker import check_events
from stretto.rollout.types import Request, SamplingParams
from stretto.run.launch import launch
from stretto.runtime.client import RolloutClient
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.preemption import Preemption
from stretto.runtime.workers.inline import InlineEngine
from stretto.weights.in_process import InProcess

from .handles import Idle
from .harness import Wired, assert_clean, configure, ledger, of, rehearse, simulate, tiny, trained

SMALL = ("prompts_per_step=4", "group_size=2", "engine.max_num_seqs=8", "engine.count=3", "lag_bound=2", "max_steps=12",
         "simulation.prompt_tokens=10", "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40",
         "simulation.turns=3", "simulation.env.mean=0.2", "simulation.migrate_token_s=0.001")  # fmt: skip


@dataclass(frozen=True)
class Whims:
    """Does to trajectories whatever can be done, as the hour says. All that rest go on if nothing else runs."""

    seed: int = 0
    often: int = 3
    watches_trajectories: ClassVar[bool] = True

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        running = [one for one in view.trajectories.values() if view.group_of(one.id) is not None]
        if all(one.rests for one in running):
            return [PreemptionAction(Preempt.RESUME, one.id) for one in running]
        out = []
        for one in running:
            n = mix(self.seed, one.id, round(view.t * 1e6)) >> 8
            if n % self.often:
                continue
            group, here = view.group_of(one.id), view.engines[one.engine]
            assert group is not None
            there = [engine.name for engine in view.engines.values()
                     if engine.name != one.engine and engine.active and engine.version is not None
                     and (engine.version == group.pin if group.pin is not None else
                          here.version is not None and engine.version >= max(here.version, view.version))]  # fmt: skip
            to = there[n // 640 % len(there)] if there else None
            if one.rests:
                out.append(PreemptionAction(Preempt.RESUME, one.id, to if n // 64 % 5 == 0 else None))
            elif n // 64 % 2:
                out.append(PreemptionAction(Preempt.PAUSE if n // 128 % 2 else Preempt.EVICT, one.id))
            elif to is not None:
                out.append(PreemptionAction(Preempt.MIGRATE, one.id, to))
        return out


def whimsical(out: Path, seed: int, *settings: str) -> list[Event]:
    config = configure(*SMALL, f"seed={seed}", *settings)
    return Wired(config, out, rules=replace(build_rules(config), preemption=Whims(seed))).run()


@pytest.mark.parametrize("mode", [mode for mode in InFlight if mode != InFlight.DRAIN])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_to_trajectories_each_ends_once_and_no_invariant_breaks(
    tmp_path: Path, mode: str, seed: int
) -> None:
    events = whimsical(tmp_path / "a", seed, f"control.in_flight={mode}")
    assert_clean(events)
    assert ledger(events)["open"] == 0
    assert len(trained(events)) == 12 * 4 * 2
    assert {e["verb"] for e in of(events, "Preempted")} == {*Preempt}
    again = whimsical(tmp_path / "b", seed, f"control.in_flight={mode}")
    assert events == again, "it replays"


def test_what_a_dead_engine_had_goes_on_in_another_one(tmp_path: Path) -> None:
    config = configure(*SMALL, "engine.count=2")
    events = Wired(config, tmp_path, kills=[(3.0, 0, 12.0)]).run()
    assert_clean(events)
    (down,), up = of(events, "WorkerDown"), of(events, "WorkerUp")[-1]
    moved = {e["traj"] for e in of(events, "Placed") if e["engine"] == "engine-1" and down["t"] <= e["t"] < up["t"]}
    assert moved
    done = {e["traj"] for e in of(events, "TrajDone") if e["t"] < up["t"]}
    assert moved <= done, "nobody waited for it"
    assert ledger(events)["failed"] == 0


@pytest.mark.parametrize("mode", ["keep", "reprefill", "abort"])
def test_engines_may_die_meanwhile(tmp_path: Path, mode: str) -> None:
    config = configure(*SMALL, f"control.in_flight={mode}", "seed=3")
    kills = [(2.0, 0, 5.0), (4.0, 1, 1.0), (4.5, 2, 9.0), (11.0, 0, 0.5)]
    events = Wired(config, tmp_path, kills=kills, rules=replace(build_rules(config), preemption=Whims(3))).run()
    assert_clean(events)
    assert len(of(events, "WorkerDown")) >= 3
    assert len(trained(events)) == 12 * 4 * 2


@pytest.mark.parametrize("mode", ["keep", "pin"])
def test_rebalancing_moves_trajectories_from_a_slow_engine(tmp_path: Path, mode: str) -> None:
    settings = (*SMALL, "simulation.env.mean=0", f"control.in_flight={mode}", "control.preemption.name=rebalance")
    config = configure(*settings)
    events = Wired(config, tmp_path / "moved", rules=build_rules(config), slow_engine=4.0).run()
    assert_clean(events)
    moved = of(events, "Preempted")
    assert moved
    assert {e["verb"] for e in moved} == {"migrate"}
    view = View(watch=True)
    for event in events:
        view(event)
    assert {engine.trajectories for engine in view.engines.values()} == {0}


def test_the_same_prompts_give_the_same_tokens_wherever_trajectories_rest_and_go(model: Path, tmp_path: Path) -> None:
    """Lag bound 0: all tokens of a step have one version, so that time decides nothing."""
    settings = ("engine.count=2", "lag_bound=0", "max_steps=4", "prompts_per_step=4", "seed=5")
    _, plain = rehearse(tmp_path / "plain", model, *settings)
    _, whims = rehearse(tmp_path / "whims", model, *settings, f"control.preemption.name={__name__}:Whims",
                        "control.preemption.often=2")  # fmt: skip
    assert_clean(whims)
    assert {e["verb"] for e in of(whims, "Preempted")} == {*Preempt}
    assert [e["checksum"] for e in of(whims, "Published")] == [e["checksum"] for e in of(plain, "Published")]


@pytest.mark.parametrize("mode", [mode for mode in InFlight if mode != InFlight.DRAIN])
def test_a_trajectory_that_moves_has_the_tokens_of_one_that_stays(model: Path, mode: InFlight) -> None:
    """Float64, new weights in its midst, which both engines load before it goes over, or after."""
    stayed, before, after = (tokens(model, mode, moves) for moves in ((), (3,), (15,)))
    both = tokens(model, mode, (3, 15))
    for moved in (before, after, both):
        assert moved.tokens.tolist() == stayed.tokens.tolist()
        assert moved.versions.tolist() == stayed.versions.tolist()
        np.testing.assert_allclose(moved.logprobs, stayed.logprobs, rtol=0, atol=1e-10)
    if mode in (InFlight.KEEP, InFlight.REPREFILL):
        assert set(stayed.versions) == {0, 1}


def tokens(model: Path, mode: InFlight, moves: Sequence[int]) -> Completion:
    """26 tokens: after 3 or more, and after 15, the request may change its engine; both load weights in between."""
    import torch

    from stretto.rollout.build import build_engine

    found: list[Completion] = []
    settings = EngineConfig(max_num_seqs=4, max_model_len=32, dtype="float64")

    async def play() -> None:
        loop = asyncio.get_running_loop()
        engines = [build_engine(model, settings, 0, (), keep_versions=mode == InFlight.PIN) for _ in range(2)]
        handles = [InlineEngine(f"engine-{i}", engine, None, 1, InProcess()) for i, engine in enumerate(engines)]
        for handle in handles:
            handle._engine.load(0, {}, InFlight.KEEP)
        pool = EnginePool(handles, EventLog(None, loop.time), keeps=mode == InFlight.PIN)
        for engine in pool:
            engine.loaded(0)
        here, there = pool
        pin = 0 if mode == InFlight.PIN else None
        request = Request(0, 0, 0, np.arange(2, 7, dtype=np.int32), SamplingParams(max_new_tokens=26), pin, noise_key=7)
        waiting = pool.submit(request, here, 0)
        earlier: list[Completion] = []
        for stop in (3, 9, 15):
            await until(pool, here, request.id, stop, waiting)
            if stop == 9:
                generator = torch.Generator().manual_seed(1)
                new = {n: w + 0.3 * torch.randn(w.shape, generator=generator, dtype=w.dtype)
                       for n, w in engines[0].parameters().items()}  # fmt: skip
                for engine in pool:
                    aborted = engine.handle._engine.load(1, new, mode)  # type: ignore[attr-defined]
                    engine.loaded(1)
                    engine.finished(aborted)
            elif stop in moves:
                assert request.id in here.open
                assert await pool.move(request.id, here, there, mode) is there
                here, there = there, here
            here.handle.resume([request.id])
            if waiting.done():
                if waiting.result().finish != "aborted":
                    break
                earlier.append(waiting.result())
                text = np.concatenate([request.tokens, earlier[-1].tokens])
                left = SamplingParams(max_new_tokens=26 - len(earlier[-1].tokens))
                request = Request(1, 0, 0, text.astype(np.int32), left, pin, noise_key=7)
                waiting = pool.submit(request, here, 0)
        found.append(joined([*earlier, await waiting]))
        await pool.close()

    run_virtual(play(), VirtualLoop())
    return found[0]


def joined(parts: Sequence[Completion]) -> Completion:
    return Completion(*(np.concatenate([getattr(part, name) for part in parts])
                        for name in ("tokens", "logprobs", "entropy", "versions")), parts[-1].finish)  # fmt: skip


async def until(pool: EnginePool, engine: object, request: int, n: int, waiting: asyncio.Future[Completion]) -> None:
    """Let it run to ``n`` tokens in all, and rest."""
    handle = engine.handle  # type: ignore[attr-defined]
    while not waiting.done():
        sampled = (await pool.snapshot()).get(request)
        base = 0 if request == 0 else 12
        if sampled is not None and base + len(sampled.tokens) >= n:
            handle.pause([request])
            return
        await asyncio.sleep(0)


class Wrong:
    """Asks for one thing that can't be."""

    watches_trajectories: ClassVar[bool] = True
    action: ClassVar[PreemptionAction]

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        return [self.action] if view.trajectories else []


@pytest.mark.parametrize(("action", "says"), [
    (PreemptionAction(Preempt.RESUME, 0), "resume of trajectory 0, which runs"),
    (PreemptionAction(Preempt.PAUSE, 999), "pause of trajectory 999, which doesn't run"),
    (PreemptionAction(Preempt.MIGRATE, 0, "engine-9"), "can't move trajectory 0 to 'engine-9': .*known: engine-0"),
    (PreemptionAction(Preempt.MIGRATE, 0, "engine-0"), "moves trajectory 0 to 'engine-0', where it is"),
])  # fmt: skip
def test_what_can_not_be_done_is_one_error_that_names_rule_and_trajectory(
    tmp_path: Path, action: PreemptionAction, says: str
) -> None:
    config = configure(*SMALL)
    Wrong.action = action
    with pytest.raises(InvariantError, match=f"control.preemption.*{says}"):
        Wired(config, tmp_path, rules=replace(build_rules(config), preemption=Wrong())).run()


def test_bad_actions_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="'stop' is no verb; there are pause, evict, resume, migrate"):
        PreemptionAction("stop", 0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="migrates trajectory 0 to no engine"):
        PreemptionAction(Preempt.MIGRATE, 0)
    with pytest.raises(ConfigError, match="pause of trajectory 0 names engine 'a', and goes nowhere"):
        PreemptionAction(Preempt.PAUSE, 0, "a")
    with pytest.raises(ConfigError, match=r"control\.preemption\.margin = 1"):
        build_rules(configure("control.preemption.name=rebalance", "control.preemption.margin=1"))


class Forever:
    """The first trajectory rests, and is never resumed."""

    watches_trajectories: ClassVar[bool] = True

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        first = view.trajectories.get(0)
        return [] if first is None or first.rests or view.group_of(0) is None else [PreemptionAction(Preempt.PAUSE, 0)]


def test_one_that_rests_too_long_fails_by_its_deadline_and_says_who_kept_it(tmp_path: Path) -> None:
    _, events = simulate(tmp_path / "run", *SMALL, f"control.preemption.name={__name__}:Forever",
                         "deadlines.rollout_s=50")  # fmt: skip
    assert_clean(events)
    reasons = {e["reason"] for e in of(events, "TrajEnd") if e["ending"] == "failed"}
    assert reasons == {"timeout: deadlines.rollout_s = 50; it waited for control.preemption, which lets it rest"}


def first(events: Sequence[Event], verb: str) -> int:
    return next(i for i, e in enumerate(events) if e["e"] == "Preempted" and e["verb"] == verb)


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    return whimsical(tmp_path_factory.mktemp("restless"), 1)


@pytest.mark.parametrize(("spoil", "says"), [
    (lambda log: log.pop(first(log, "pause")), "resume but it runs"),
    (lambda log: log.insert(first(log, "evict"), log[first(log, "evict")]), "evict but it rests"),
    (lambda log: log[first(log, "migrate")].update(engine="engine-7"), "to engine-7, which serves no version now"),
    (lambda log: log[first(log, "pause")].update(engine="engine-7"), "pause on engine-7, but it is on engine-"),
    (lambda log: log[first(log, "pause")].update(traj=9999), "trajectory 9999 was never submitted"),
    (lambda log: log.insert(-1, log[first(log, "migrate")] | {"t": log[-1]["t"]}), "trajectory"),
])  # fmt: skip
def test_a_log_that_tells_it_wrongly_is_flagged(
    restless: list[Event], spoil: Callable[[list[Event]], object], says: str
) -> None:
    log = [dict(event) for event in restless]
    spoil(log)
    assert any(says in str(violation) for violation in check_events(log)), says


def test_trajectories_move_between_processes(model: Path, tmp_path: Path) -> None:
    config = configure(*tiny(model), f"out={tmp_path / 'run'}", "engine.count=2", "lag_bound=1", "max_steps=6",
                       "prompts_per_step=4", "group_size=4", f"control.preemption.name={__name__}:Whims",
                       "control.preemption.often=2")  # fmt: skip
    launch(config, "train")
    events = read_events(tmp_path / "run")
    assert_clean(events)
    assert of(events, "Preempted")
    assert len(trained(events)) == 6 * 4 * 4


def test_weights_that_came_just_now_are_no_fault_of_the_rule(tmp_path: Path) -> None:
    """An engine serves a version a moment before the log says so, and the view with it."""
    log, view = EventLog(None, lambda: 0.0), View(watch=True)

    async def play() -> None:
        handles = [Idle(f"engine-{i}") for i in range(2)]
        pool = EnginePool(handles, log)
        log.hear(deciding=[view])
        for engine in pool:
            log.emit("WorkerUp", worker=engine.name, role="engine")
            log.emit("Loaded", worker=engine.name, version=0, start=0.0)
            engine.loaded(0)
        client = RolloutClient(trajectory=0, noise_key=0, group=0, engine=pool["engine-0"], sampling=SamplingParams(),
                               seed=0, scoring=InlineScoring(), log=log)  # fmt: skip
        failed: list[BaseException] = []
        moves = Preemption(pool, log, view, InFlight.KEEP, lambda trajectory: client, failed.append)
        client.current = (next(pool.ids), None)
        client.engine.open[0] = (asyncio.get_running_loop().create_future(), 0, 0)
        go = PreemptionAction(Preempt.MIGRATE, 0, "engine-1")
        pool["engine-0"].loaded(1)
        moves.act([go])
        assert client.engine.name == "engine-0"
        log.emit("Loaded", worker="engine-0", version=1, start=0.0)
        with pytest.raises(InvariantError, match="holds version 0, and the trajectory is at version 1"):
            moves.act([go])
        await moves.close()

    asyncio.run(play())
