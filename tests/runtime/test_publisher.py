"""When engines load: never what the learner may replace, always the newest, whoever died meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from counting import instructions
from stretto.config.deadlines import Deadlines
from stretto.control.publish import EveryK, EveryStep
from stretto.control.view import View
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import DeadlineError, StrettoError, WeightsError, WorkerError
from stretto.kernel.events import Event, EventLog
from stretto.kernel.waits import Waits
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.publish import Publisher
from stretto.runtime.workers.base import Loaded
from stretto.weights.staged import StagedWeights, Staging

from .handles import Idle, staged_weights


def staging(number: int, seconds: float = 0.0) -> Staging:
    """Of weights that nobody looks at."""
    return Staging(staged_weights(number), seconds)


class Handle(Idle):
    """Loads when told to: ``gates`` holds the loads that run."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.gates: list[tuple[int, asyncio.Future[None]]] = []

    async def load(self, weights: StagedWeights, in_flight: str) -> Loaded:
        version, gate = weights.version.number, asyncio.get_running_loop().create_future()
        self.gates.append((version, gate))
        await gate
        return Loaded(version, 0.25)


class Engine:
    """An engine of the pool and its handle, by hand."""

    def __init__(self, engine: PooledEngine) -> None:
        self.pooled = engine
        assert isinstance(engine.handle, Handle)
        self.gates = engine.handle.gates

    @property
    def loading(self) -> list[int]:
        return [version for version, gate in self.gates if not gate.done()]

    async def finish(self, error: BaseException | None = None) -> None:
        (gate,) = [gate for _, gate in self.gates if not gate.done()]
        gate.set_exception(error) if error is not None else gate.set_result(None)
        await settle()


class Desk:
    """A publisher with its engines; ``steps`` of the learner are told by hand."""

    def __init__(
        self, engines: int = 1, rule: Any = None, in_flight: str = "keep", limit: int = 2, **deadlines: float
    ) -> None:
        loop = asyncio.get_running_loop()
        self.events: list[Event] = []
        self.view = View()
        self.log = EventLog(None, loop.time)
        self.log.hear(deciding=[self.view], recording=[self.events.append])
        self.log.emit("RunStart", mode="simulate", policy="policy", lag_bound=3, depth=3, prompts_per_step=1,
                      group_size=1, engines=1, max_num_seqs=1, max_steps=5, version=0)  # fmt: skip
        pool = EnginePool([Handle(f"engine-{i}") for i in range(engines)], self.log)
        self.engines = [Engine(engine) for engine in pool]
        for engine in pool:
            engine.up()
        self.failures: list[BaseException] = []
        self.staging: dict[int, asyncio.Future[Staging]] = {}
        self.released: list[int] = []
        self.published: list[tuple[int, float]] = []
        self.publisher = Publisher(
            pool.by_name, rule or EveryStep(), self.view, self.log, Waits(self.log, 30.0),
            Deadlines(**deadlines), in_flight, limit,
            lambda staged, start: self.published.append((staged.version.number, start)),
            lambda staged: self.released.append(staged.version.number), lambda: None, self.failures.append,
        )  # fmt: skip

    async def begin(self) -> None:
        self.publisher.first(staging(0))
        await settle()
        for engine in self.engines:
            await engine.finish()

    async def step(self, version: int) -> None:
        """The learner answers; its weights aren't staged yet."""
        self.view.version = version
        self.staging[version] = asyncio.get_running_loop().create_future()
        self.publisher.offer(version, self.staging[version])
        await settle()

    async def staged(self, version: int) -> None:
        self.staging[version].set_result(staging(version))
        await settle()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def virtual(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scenario(), VirtualLoop())


def test_nobody_starts_to_load_old_weights_while_new_ones_are_staged() -> None:
    """They may be gone by then: the learner was promised room."""

    async def scenario() -> None:
        desk = Desk(2)
        await desk.begin()
        slow, quick = desk.engines
        await desk.step(1)
        await desk.staged(1)
        await quick.finish()
        await desk.step(2)
        await slow.finish()  # it has version 1 and could go on
        desk.publisher.kick()
        assert slow.loading == quick.loading == []
        assert desk.publisher.busy
        await desk.staged(2)
        assert slow.loading == quick.loading == [2]

    virtual(scenario)


def test_an_engine_that_was_slow_skips_to_the_newest_weights() -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        await desk.step(1)
        await desk.staged(1)
        await desk.step(2)
        await desk.staged(2)
        assert engine.loading == [1]
        await engine.finish()
        assert engine.loading == [2]

    virtual(scenario)


@pytest.mark.parametrize("limit", [2, 3, 6])
def test_a_version_waits_for_the_readers_of_one_that_is_so_much_older_and_the_wait_names_them(limit: int) -> None:
    async def scenario() -> None:
        desk = Desk(2, publish_s=10, limit=limit)
        await desk.begin()
        slow, quick = desk.engines
        await desk.step(1)
        await desk.staged(1)
        await quick.finish()
        for version in range(2, limit + 1):
            await desk.publisher.room(version)
            await desk.step(version)
            await desk.staged(version)
            await quick.finish()
        assert desk.released == [0, *range(2, limit)], "the slow engine reads version 1, the quick one is at the newest"
        wait = asyncio.create_task(desk.publisher.room(limit + 1))
        await asyncio.sleep(5)
        assert not wait.done()
        named = desk.publisher._waits.describe()
        assert (
            f"the learner waits for room to stage version {limit + 1}: engine-0 loads version 1 or an older one "
            f"(weights.staged_versions = {limit})" in named
        )
        await slow.finish()
        await wait
        assert desk.released == [0, *range(2, limit), 1]

    virtual(scenario)


def test_an_engine_that_came_up_again_while_weights_are_staged_loads_these() -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        await desk.step(1)
        engine.pooled.version = None
        desk.publisher.reload(engine.pooled)
        await settle()
        assert engine.loading == []
        await desk.staged(1)
        assert engine.loading == [1]

    virtual(scenario)


def test_an_engine_that_came_up_again_before_the_first_weights_loads_the_first_ones() -> None:
    async def scenario() -> None:
        desk = Desk()
        (engine,) = desk.engines
        desk.publisher.reload(engine.pooled)
        await desk.begin()
        assert engine.pooled.version == 0
        assert len(engine.gates) == 1

    virtual(scenario)


def test_a_run_begins_when_an_engine_has_weights_though_the_first_load_met_a_death() -> None:
    async def scenario() -> None:
        desk = Desk()
        (engine,) = desk.engines
        desk.publisher.first(staging(0))
        await settle()
        engine.pooled.restarting = True
        serving = asyncio.create_task(desk.publisher.serving())
        await engine.finish(WorkerError("engine-0 was killed"))
        await asyncio.sleep(100)
        assert not serving.done()
        desk.publisher.reload(engine.pooled)
        await settle()
        await engine.finish()
        await serving
        assert not desk.failures

    virtual(scenario)


@pytest.mark.parametrize("error", [WeightsError("corrupt"), DeadlineError("late")])
def test_what_else_goes_wrong_in_the_first_load_of_a_restarted_engine_ends_the_run(error: StrettoError) -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        engine.pooled.restarting, engine.pooled.version = True, None
        desk.publisher.reload(engine.pooled)
        await settle()
        await engine.finish(error)
        assert desk.failures == [error]

    virtual(scenario)


def test_staging_that_fails_ends_the_run() -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        await desk.step(1)
        error = WorkerError("the learner was killed")
        desk.staging[1].set_exception(error)
        await settle()
        assert desk.failures == [error]
        assert not desk.publisher.busy

    virtual(scenario)


def test_the_end_waits_for_weights_that_are_staged_and_loaded() -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        await desk.step(1)
        await desk.staged(1)
        await desk.step(2)
        end = asyncio.create_task(desk.publisher.settled())
        await engine.finish()
        await desk.staged(2)
        assert not end.done()
        await engine.finish()
        await end
        assert engine.pooled.version == 2

    virtual(scenario)


def test_every_kth_version_is_loaded_and_the_last_one() -> None:
    async def scenario() -> None:
        desk = Desk(rule=EveryK(2))
        await desk.begin()
        (engine,) = desk.engines
        for version in range(1, 6):
            await desk.step(version)
            await desk.staged(version)
            if engine.loading:
                await engine.finish()
        assert [version for version, _ in engine.gates] == [0, 2, 4, 5]

    virtual(scenario)


def test_an_evaluation_holds_loads_back_but_for_an_engine_without_weights() -> None:
    async def scenario() -> None:
        desk = Desk(2)
        await desk.begin()
        desk.publisher.hold()
        await desk.step(1)
        await desk.staged(1)
        first, second = desk.engines
        first.pooled.version = None
        desk.publisher.reload(first.pooled)
        await settle()
        assert (first.loading, second.loading) == ([1], [])
        desk.publisher.let_go()
        await settle()
        assert second.loading == [1]

    virtual(scenario)


@pytest.mark.parametrize(("in_flight", "seconds"), [("keep", 10), ("drain", 110)])
def test_a_load_has_its_deadline_and_draining_has_the_rollouts_besides(in_flight: str, seconds: float) -> None:
    async def scenario() -> None:
        desk = Desk(in_flight=in_flight, publish_s=10, rollout_s=100)
        desk.publisher.first(staging(0))
        await asyncio.sleep(seconds - 1)
        assert not desk.failures
        await asyncio.sleep(2)
        (error,) = desk.failures
        assert f"waited {seconds} s for engine-0: loading version 0; deadlines.publish_s" in str(error)
        assert not [e for e in desk.events if e["e"] == "Waiting"], "simulated time: a long load is no news"

    virtual(scenario)


def test_a_version_is_staged_while_it_is_the_newest_or_an_engine_loads_it() -> None:
    async def scenario() -> None:
        desk = Desk(2)
        await desk.begin()
        slow, quick = desk.engines
        assert desk.released == []
        await desk.step(1)
        assert desk.released == [], "an engine that comes up again would load it"
        await desk.staged(1)
        assert desk.released == [0]
        await quick.finish()
        assert desk.released == [0], "the slow one still loads version 1"
        await desk.step(2)
        await desk.staged(2)
        await quick.finish()
        await slow.finish(WorkerError("it was killed"))
        assert desk.released == [0, 1]

    virtual(scenario)


def test_as_many_versions_are_alive_as_engines_read_and_each_goes_with_its_last_reader() -> None:
    async def scenario() -> None:
        desk = Desk(4, limit=6)
        await desk.begin()
        for version in range(1, 5):
            await desk.publisher.room(version)
            await desk.step(version)
            await desk.staged(version)
            for engine in desk.engines[version:]:
                await engine.finish()
        assert [engine.loading for engine in desk.engines] == [[1], [2], [3], [4]]
        assert desk.released == [0]
        for slow in (2, 0, 1):
            await desk.engines[slow].finish()
        assert desk.released == [0, 3, 1, 2]

    virtual(scenario)


def test_room_for_the_next_version_takes_the_place_of_the_newest_while_one_is_being_staged() -> None:
    """Two places: in one version 2 is being written, the other one is promised to version 3."""

    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        await desk.step(1)
        await desk.staged(1)
        await engine.finish()
        await desk.step(2)
        await desk.publisher.room(3)
        assert desk.released == [0, 1]
        engine.pooled.version = None
        desk.publisher.reload(engine.pooled)
        await settle()
        assert engine.loading == [], "version 1 is gone"
        await desk.staged(2)
        assert engine.loading == [2]

    virtual(scenario)


def test_at_the_end_nobody_waits_for_room_and_what_is_read_stays() -> None:
    async def scenario() -> None:
        desk = Desk()
        await desk.begin()
        (engine,) = desk.engines
        for version in (1, 2):
            await desk.step(version)
            await desk.staged(version)
        room = asyncio.create_task(desk.publisher.room(3))
        await settle()
        assert not room.done()
        desk.publisher.stop()
        await room
        assert engine.loading == [1]
        assert desk.released == [0]
        await engine.finish()
        assert desk.released == [0, 1]

    virtual(scenario)


def test_what_workers_took_is_placed_on_the_loops_own_clock() -> None:
    async def scenario() -> None:
        desk = Desk()
        await asyncio.sleep(7)
        await desk.begin()
        await desk.step(1)
        await asyncio.sleep(3)
        desk.staging[1].set_result(staging(1, seconds=2.0))
        await settle()
        await asyncio.sleep(1)
        (engine,) = desk.engines
        await engine.finish()
        assert desk.published == [(0, 7.0), (1, 8.0)]
        assert [(e["t"], e["start"]) for e in desk.events if e["e"] == "Loaded"] == [(7.0, 6.75), (11.0, 10.75)]

    virtual(scenario)


def test_an_update_costs_each_engine_the_same_however_many_there_are() -> None:
    async def update(engines: int) -> None:
        desk = Desk(engines)
        desk.publisher.first(staging(0))
        await settle()
        for engine in desk.engines:  # in one turn of the event loop, as in a simulation
            engine.gates[0][1].set_result(None)
        await settle()
        assert not desk.publisher.busy

    few, many = (instructions(lambda n=n: virtual(lambda: update(n))) / n for n in (50, 400))
    assert many < 1.2 * few
