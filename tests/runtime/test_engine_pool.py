"""The pool owns requests: what leaves together, who is answered, what the log says, where a running one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.config.sections import EngineConfig
from stretto.data.trajectory import Completion, Trajectory
from stretto.envs.base import Client, Task
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import ConfigError, StrettoError, WorkerError
from stretto.kernel.events import Event, EventLog
from stretto.rollout.types import Request, SamplingParams
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.inline import InlineEngine
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment
from stretto.weights.in_process import InProcess

from .handles import Idle
from .harness import Wired, assert_clean, configure, of
from .stubs import Bench, up


def request(pool: EnginePool, trajectory: int = 7, tokens: int = 4) -> Request:
    prompt = np.array([3, 4, 5], np.int32)
    return Request(next(pool.ids), trajectory, 0, prompt, SamplingParams(max_new_tokens=tokens),
                   noise_key=trajectory)  # fmt: skip


def done(n: int = 1) -> Completion:
    return Completion(np.ones(n, np.int32), np.zeros(n), np.zeros(n), np.zeros(n, np.int32), "stop")


def virtual(scenario: Callable[[EnginePool, Idle, list[Event]], Coroutine[Any, Any, None]]) -> None:
    """With an idle engine that holds version 0."""

    async def play() -> None:
        events: list[Event] = []
        log = EventLog(None, asyncio.get_running_loop().time)
        log.hear(recording=[events.append])
        handle = Idle("engine-0")
        pool = EnginePool([handle], log)
        pool["engine-0"].loaded(0)
        await scenario(pool, handle, events)

    run_virtual(play(), VirtualLoop())


def test_requests_of_one_turn_of_the_loop_leave_together_and_wait_for_those_that_are_coming() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        (engine,) = pool
        for _ in range(3):
            pool.submit(request(pool), engine, 0)
        assert handle.added == []
        await asyncio.sleep(0)
        assert [len(requests) for requests in handle.added] == [3]
        pool.batching_hint = lambda: True
        pool.submit(request(pool), engine, 0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(handle.added) == 1, "more are coming"
        for _ in range(127):
            pool.submit(request(pool), engine, 0)
        await asyncio.sleep(0)
        assert len(handle.added[1]) == 128, "enough of them"

    virtual(scenario)


def test_an_engine_without_weights_gets_its_requests_when_it_has_some() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        (engine,) = pool
        assert engine.died(WorkerError("killed"), returns=True)
        waiting = pool.submit(request(pool), engine, 0)
        await asyncio.sleep(0)
        assert handle.added == []
        engine.up()
        engine.loaded(1)
        assert [[r.id for r in requests] for requests in handle.added] == [[0]]
        engine.finished([(0, done())])
        assert (await waiting).finish == "stop"

    virtual(scenario)


def test_the_log_names_first_tokens_by_their_request_in_the_trajectory_and_evaluations_not_at_all() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        (engine,) = pool
        for trajectory, number in ((7, 0), (9, None), (7, 1004)):
            pool.submit(request(pool, trajectory), engine, number)
        engine.first_tokens([0, 1, 2, 3])
        (event,) = of(events, "FirstToken")
        assert (event["engine"], event["traj"], event["request"]) == ("engine-0", [7, 7], [0, 1004])
        engine.first_tokens([1])
        assert len(of(events, "FirstToken")) == 1

    virtual(scenario)


def test_a_request_that_was_given_up_is_stopped_and_its_answer_dropped() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        (engine,) = pool
        first, second = (pool.submit(request(pool), engine, k) for k in range(2))
        await asyncio.sleep(0)
        pool.cancel(0)
        pool.cancel(5)
        assert handle.aborted == [0]
        engine.finished([(0, done()), (1, done(2))])
        assert not first.done()
        assert len((await second).tokens) == 2

    virtual(scenario)


def test_whoever_waits_for_an_engine_that_is_gone_learns_why() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        (engine,) = pool
        waiting = pool.submit(request(pool), engine, 0)
        assert not engine.died(WorkerError("its server is gone\nwith all that it held"))
        assert [e["reason"] for e in of(events, "WorkerDown")] == ["its server is gone"]
        for future in (waiting, engine.failed):
            with pytest.raises(WorkerError, match="its server is gone"):
                await future

    virtual(scenario)


def test_what_a_kind_does_not_do_is_refused_by_its_name() -> None:
    async def scenario(pool: EnginePool, handle: Idle, events: list[Event]) -> None:
        assert await pool.snapshot() == {}, "it can't tell, and isn't asked"
        with pytest.raises(StrettoError, match="engine-0: an engine of kind Idle can't pause requests"):
            handle.pause([1])
        with pytest.raises(StrettoError, match="can't hand over a running request"):
            await handle.export(1)
        with pytest.raises(ConfigError, match="two engines are called 'engine-0'"):
            EnginePool([handle, handle], EventLog(None, pool.loop.time))

    virtual(scenario)


class Talkative(SimulatedEnvironment):
    """So many turns."""

    turns = 1005

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        for _ in range(self.turns):
            await client.generate(transcript, max_new_tokens=1)
        return transcript.finish(client.uniform(1))


def test_a_trajectory_may_make_any_number_of_requests(tmp_path: Path) -> None:
    config = configure("max_steps=1", "prompts_per_step=1", "group_size=2", "deadlines.group_s=1e6",
                       "deadlines.rollout_s=1e6")  # fmt: skip
    events = Wired(config, tmp_path, env=Talkative(CostModel(config.simulation, 0))).run()
    assert_clean(events)
    assert {e["turns"] for e in of(events, "TrajDone")} == {1005}
    assert {n for e in of(events, "FirstToken") for n in e["request"]} == set(range(1005))


# running requests move, pause and go on


def inline(model: Path, count: int, scenario: Callable[[EnginePool], Coroutine[Any, Any, None]]) -> None:
    from stretto.rollout.build import build_engine

    settings = EngineConfig(max_num_seqs=4, max_model_len=32, dtype="float64")

    async def play() -> None:
        loop = asyncio.get_running_loop()
        engines = [build_engine(model, settings, 0, ()) for _ in range(count)]
        handles = [InlineEngine(f"engine-{i}", engine, None, 1, InProcess()) for i, engine in enumerate(engines)]
        for handle in handles:
            handle._engine.load(0, {}, "keep")
        pool = EnginePool(handles, EventLog(None, loop.time))
        for engine in pool:
            engine.loaded(0)
        try:
            await scenario(pool)
        finally:
            await pool.close()

    run_virtual(play(), VirtualLoop())


def test_a_running_request_that_is_paused_moved_or_left_alone_gets_the_same_tokens(model: Path) -> None:
    found: dict[str, list[int]] = {}

    async def alone(pool: EnginePool) -> None:
        found["alone"] = (await pool.submit(request(pool, 7, 12), pool["engine-0"], 0)).tokens.tolist()

    async def moved(pool: EnginePool) -> None:
        here, there = pool["engine-0"], pool["engine-1"]
        waiting = pool.submit(request(pool, 7, 12), here, 0)
        while not (await pool.snapshot()):
            await asyncio.sleep(0)
        here.handle.pause([0])
        before = (await pool.snapshot())[0]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len((await pool.snapshot())[0].tokens) == len(before.tokens) < 12
        here.handle.resume([0])
        assert await pool.move(0, here, there) is there
        assert (len(here.open), len(there.open)) == (0, 1)
        found["moved"] = (await waiting).tokens.tolist()
        assert await pool.move(0, there, here) is here, "it has finished"
        assert not here.open

    inline(model, 1, alone)
    inline(model, 2, moved)
    assert found["alone"] == found["moved"]
    assert len(found["alone"]) == 12


def test_a_request_that_its_new_engine_refuses_goes_on_as_a_new_one(model: Path) -> None:
    async def scenario(pool: EnginePool) -> None:
        here, there = pool["engine-0"], pool["engine-1"]
        there.handle._engine.load(1, {}, "keep")  # type: ignore[attr-defined]
        waiting = pool.submit(request(pool, 7, 12), here, 0)
        while not (await pool.snapshot()):
            await asyncio.sleep(0)
        assert await pool.move(0, here, there) is there
        ended = await waiting
        assert ended.finish == "aborted"
        assert len(ended.tokens)

    inline(model, 2, scenario)


def test_a_process_hands_a_request_over_or_says_that_it_has_finished() -> None:
    async def scenario() -> None:
        bench = Bench()
        engine: PooledEngine = bench.engine()
        (child,) = bench.children
        await up(engine, child)
        asked = asyncio.create_task(engine.handle.export(3))
        child.answer(await child.expect(say.Export), "its state")
        assert await asked == "its state"  # type: ignore[comparison-overlap]
        asked = asyncio.create_task(engine.handle.export(4))
        child.wire.send(say.Refused(await child.expect(say.Export), StrettoError("request 4 isn't here")))
        with pytest.raises(StrettoError, match="request 4 isn't here"):
            await asked
        engine.handle.pause([5])
        await child.expect(say.Pause)
        engine.handle.resume([5])
        await child.expect(say.Resume)
        await bench.close(engine)

    asyncio.run(scenario())
