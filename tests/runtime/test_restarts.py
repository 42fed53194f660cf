"""An engine's process that dies and comes up again, message by message: nothing is sent to the dead, nothing lost."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from stretto.data.columns import pack_completions
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.rollout.types import Request, SamplingParams
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.base import Loaded
from stretto.runtime.workers.process import ProcessEngine

from .handles import staged_weights
from .stubs import Bench, up


def request(id: int) -> Request:
    return Request(id, id, id, np.array([3, 4, 5], np.int32), SamplingParams(max_new_tokens=4), noise_key=id)


STAGED = staged_weights(0)


def test_an_engine_that_answers_a_load_and_dies_at_once_gets_no_requests_and_the_next_one_all() -> None:
    async def scenario() -> None:
        bench = Bench(2)
        engine, (first, second) = bench.engine(max_restarts=1), bench.children
        back = asyncio.Event()
        engine.pool.on_return = lambda e: back.set()
        await up(engine, first)
        load = asyncio.create_task(engine.load(STAGED, "keep"))
        engine.pool.submit(request(1), engine, 0)
        number = await first.expect(say.Load)
        assert number is not None
        handle = engine.handle
        assert isinstance(handle, ProcessEngine)
        handle._child._questions[number].set_result(Loaded(0, 0.0))  # answer and end in one turn of the event loop
        first.die()
        handle._child._gone(WorkerError("engine-0 was killed by SIGKILL"))
        with pytest.raises(WorkerError, match="SIGKILL"):
            await load
        assert engine.version is None
        assert engine.restarting
        waiting = engine.pool.submit(request(2), engine, 1)  # its client asks again
        await second.come_up()
        await back.wait()
        load = asyncio.create_task(engine.load(STAGED, "keep"))
        second.answer(await second.expect(say.Load), Loaded(0, 0.0))
        await load
        _, added = await second.next()
        _, _, rows = added.requests
        assert 2 in [row[0] for row in rows]
        assert not waiting.done()
        assert not engine.restarting
        await bench.close(engine)

    asyncio.run(scenario())


def test_a_restarting_engine_has_no_partial_rollouts_and_nobody_waits_for_them() -> None:
    """Its imports take longer than a weight update may."""

    async def scenario() -> None:
        bench = Bench(2)
        engine, (first, second) = bench.engine(max_restarts=1, publish_s=0.05), bench.children
        await up(engine, first)
        partial_completions = asyncio.create_task(engine.handle.snapshot())
        await first.expect(say.Snapshot)
        first.die()  # with the question open
        assert await partial_completions == {}
        number = await second.expect(say.WorkerSpec)  # and while the next one imports
        assert await asyncio.wait_for(engine.handle.snapshot(), 0.04) == {}
        second.answer(number, second.pid)
        await asyncio.sleep(0.02)
        assert await engine.handle.snapshot() == {}, "it is up and holds no weights"
        load = asyncio.create_task(engine.load(STAGED, "keep"))
        second.answer(await second.expect(say.Load), Loaded(0, 0.0))
        await load
        partial_completions = asyncio.create_task(engine.handle.snapshot())
        second.answer(await second.expect(say.Snapshot), pack_completions([]))
        assert await partial_completions == {}
        await bench.close(engine)

    asyncio.run(scenario())


def test_an_engine_that_dies_while_it_comes_up_again_has_its_further_restarts() -> None:
    async def scenario() -> None:
        bench = Bench(4)
        engine, children = bench.engine(max_restarts=2), bench.children
        back = asyncio.Event()
        engine.pool.on_return = lambda e: back.set()
        await up(engine, children[0])
        children[0].die()
        await children[1].expect(say.WorkerSpec)
        children[1].die()
        await children[2].come_up()
        await back.wait()
        assert not engine.failed.done()
        assert [e["e"] for e in bench.events] == ["WorkerUp", "WorkerDown", "WorkerDown", "WorkerUp"]
        children[2].die()
        with pytest.raises(StrettoError, match="SIGKILL"):
            await engine.failed
        await bench.close(engine)

    asyncio.run(scenario())
