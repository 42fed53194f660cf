"""The conversation with the learner's process: what is lost, late, out of order or said by the dying."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stretto.config.simulation import Simulation
from stretto.data.identity import PolicyVersion
from stretto.data.totals import Totals
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import DeadlineError, InvariantError, WeightsError, WorkerError
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.learner.result import StepResult
from stretto.observe.live import LiveView
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.inline import InlineLearner
from stretto.runtime.workers.serving import LearnerProcess
from stretto.simulation.costs import CostModel
from stretto.simulation.learner import SimulatedLearner
from stretto.weights.in_process import InProcess
from stretto.weights.staged import Staging

from .stubs import Bench, up


def stepped(version: int, skipped: bool = False) -> StepResult:
    return StepResult(version, skipped, {})


async def room(after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)


def staging(what: Any) -> Staging:
    """Its contents don't matter here."""
    return Staging(what, 0.5)


def test_a_step_its_staging_and_a_checkpoint_reach_the_learner_in_this_order() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        await up(learner, child)
        step = asyncio.create_task(learner.step({}, room(0.1)))
        number = await child.expect(say.Step)
        child.answer(number, stepped(1))
        await asyncio.sleep(0.05)
        assert not step.done(), "there is no room yet"
        assert child.silent
        _, staged = await step
        save = asyncio.create_task(learner.save("here"))  # type: ignore[arg-type]
        assert (await child.next())[1] == say.StageStep()
        saving = await child.expect(say.Save)
        child.wire.send(say.Staged(staging("one")))
        child.answer(saving, None)
        await save
        assert staged is not None
        assert await staged == staging("one")
        await bench.close(learner)

    asyncio.run(scenario())


def test_room_that_takes_long_is_not_counted_as_the_learners_step() -> None:
    """A slow engine is to load an older version (drain): its load has its own deadline."""

    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(step_s=0.1), bench.children
        await up(learner, child)
        step = asyncio.create_task(learner.step({}, room(0.3)))
        child.answer(await child.expect(say.Step), stepped(1))
        _, staged = await step
        await child.expect(say.StageStep)
        assert staged is not None
        with pytest.raises(DeadlineError, match=r"waited 0.1 s for the learner: staging version 1; deadlines.step_s"):
            await staged
        await bench.close(learner)

    asyncio.run(scenario())


def test_a_skipped_step_stages_nothing_and_the_next_one_gets_its_own_weights() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        await up(learner, child)
        found = []
        for version, skipped in ((1, False), (1, True), (2, False)):
            step = asyncio.create_task(learner.step({}, room()))
            child.answer(await child.expect(say.Step), stepped(version, skipped))
            await child.expect(say.StageStep)
            _, staged = await step
            if skipped:
                assert staged is None
            else:
                found.append(staged)
                # the second one's message comes late, together with the first one's
                if version == 2:
                    child.wire.send(say.Staged(staging("version 1")))
                    child.wire.send(say.Staged(staging("version 2")))
        assert [await s for s in found if s is not None] == [staging("version 1"), staging("version 2")]
        await bench.close(learner)

    asyncio.run(scenario())


def test_a_learner_that_dies_before_its_weights_are_staged_tells_whoever_waits_for_them() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        deaths: list[BaseException] = []
        learner.hear_death(deaths.append)
        await up(learner, child)
        step = asyncio.create_task(learner.step({}, room()))
        child.answer(await child.expect(say.Step), stepped(1))
        _, staged = await step
        child.die()
        assert staged is not None
        with pytest.raises(WorkerError, match="learner was killed by SIGKILL"):
            await staged
        assert [str(d).splitlines()[0] for d in deaths] == [e["reason"] for e in bench.events if e["e"] == "WorkerDown"]
        with pytest.raises(WorkerError, match="SIGKILL"):
            await learner.step({}, room())
        await bench.close(learner)

    asyncio.run(scenario())


def test_a_learner_that_dies_while_there_is_no_room_ends_the_step() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        await up(learner, child)
        step = asyncio.create_task(learner.step({}, room(0.2)))
        await child.expect(say.Step)
        child.die()
        with pytest.raises(WorkerError, match="SIGKILL"):
            await step
        await bench.close(learner)

    asyncio.run(scenario())


def test_weights_that_never_come_are_named_on_the_console_while_everybody_waits() -> None:
    async def scenario() -> None:
        printed = io.StringIO()
        live = LiveView("plain", 10, console=Console(file=printed, width=200), every_s=1000)
        bench = Bench(warn_s=0.1, listener=live)
        learner, (child,) = bench.learner(step_s=0.4), bench.children
        await up(learner, child)
        step = asyncio.create_task(learner.step({}, room()))
        child.answer(await child.expect(say.Step), stepped(1))
        _, staged = await step
        assert staged is not None
        with pytest.raises(DeadlineError):
            await staged
        assert "waiting 0s: the weight update waits for the learner: staging version 1" in printed.getvalue()
        await bench.close(learner)

    asyncio.run(scenario())


def test_an_error_in_taking_in_a_message_is_not_lost() -> None:
    """A full disk under the log, say: the listener must not end in silence."""

    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        deaths: list[BaseException] = []
        learner.hear_death(deaths.append)
        await up(learner, child)
        child.wire.send(say.Staged(staging("of no step")))
        saving = asyncio.create_task(learner.save("here"))  # type: ignore[arg-type]
        with pytest.raises(WorkerError, match="staged weights of no step"):
            await saving
        assert len(deaths) == 1
        await bench.close(learner)

    asyncio.run(scenario())


def test_a_death_that_cannot_be_logged_is_told_all_the_same() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        deaths: list[BaseException] = []
        learner.hear_death(deaths.append)
        await up(learner, child)

        def full(*args: object, **fields: object) -> float:
            raise OSError(28, "No space left on device")

        bench.log.emit = full  # type: ignore[method-assign]
        saving = asyncio.create_task(learner.save("here"))  # type: ignore[arg-type]
        await child.expect(say.Save)
        child.die()
        with pytest.raises(WorkerError, match="SIGKILL"):
            await saving
        assert len(deaths) == 1
        await bench.close(learner)

    asyncio.run(scenario())


class Script:
    """A wire with prepared messages (questions are numbered from 0); keeps what is said."""

    def __init__(self, *messages: Any) -> None:
        numbers = count()
        self._left = [(next(numbers) if isinstance(m, say.Question) else None, m) for m in messages]
        self.said: list[Any] = []

    def receive(self) -> Any:
        return self._left.pop(0)

    def send(self, message: Any) -> None:
        self.said.append(message)

    @property
    def kinds(self) -> list[type]:
        return [type(message) for message in self.said]


def learner_process(wire: Script, step: Callable[[Any], Any]) -> LearnerProcess:
    process = LearnerProcess.__new__(LearnerProcess)
    process.wire, process.stepped = wire, False  # type: ignore[assignment]
    process.learner = SimpleNamespace(step=step, stage=lambda put: put(1, {}), save=lambda path: None)
    process.transport = SimpleNamespace(stage=lambda version, weights: (version, weights))  # type: ignore[assignment]
    return process


def result(columns: Any, skipped: bool = False) -> Any:
    return SimpleNamespace(version=1, skipped=skipped, metrics={}, reason=None, ratio=None, fill_s=0.0)


def test_the_learner_process_answers_a_step_then_stages_it_then_saves() -> None:
    wire = Script(say.Step({}), say.StageStep(), say.Save("x"), say.Close())
    learner_process(wire, result).run()
    assert wire.kinds == [say.Answer, say.Staged, say.Answer]
    assert wire.said[1].staging.staged == (1, {})
    assert wire.said[2] == say.Answer(1, None)


def test_the_learner_process_stages_nothing_for_a_skipped_or_refused_step() -> None:
    def full(columns: Any) -> Any:
        raise OSError(28, "No space left on device")

    for step, kind in ((lambda c: result(c, skipped=True), say.Answer), (full, say.Refused)):
        wire = Script(say.Step({}), say.StageStep(), say.Close())
        learner_process(wire, step).run()
        assert wire.kinds == [kind]


def test_the_learner_process_closes_while_it_waits_for_room() -> None:
    wire = Script(say.Step({}), say.Close())
    learner_process(wire, result).run()
    assert wire.kinds == [say.Answer]


def test_an_error_that_nobody_asked_for_ends_the_learner_process() -> None:
    def full(version: Any, weights: Any) -> Any:
        raise OSError(28, "No space left on device")

    wire = Script(say.Step({}), say.StageStep(), say.Close())
    process = learner_process(wire, result)
    process.transport = SimpleNamespace(stage=full)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        process.run()


def test_the_learner_process_answers_each_verb_with_numbers_that_need_no_torch() -> None:
    """The answers are read in the loop's process."""
    columns = {"length": np.array([2, 1])}
    wire = Script(
        say.ForwardBackward(columns, Totals(3, 2, 2)), say.OptimStep(None), say.Release(1), say.Stage(),
        say.ReleaseWeights(PolicyVersion(number=1)), say.OptimStep(None),
    )  # fmt: skip
    process = learner_process(wire, result)
    process.learner = SimulatedLearner()  # type: ignore[assignment]
    process.transport = InProcess()
    with pytest.raises(InvariantError, match="optim_step at version 1: there is no gradient"):
        process.run()
    assert wire.kinds == [say.Answer] * 3
    passed, done, staged = (answer.value for answer in wire.said)
    assert type(passed.metrics) is type(done.metrics) is dict
    assert (len(passed.logp), done.version, staged.staged.version.number) == (3, 1, 1)
    with pytest.raises(WeightsError, match="isn't staged here"):
        process.transport.fetch(staged.staged)


def test_verbs_reach_the_learner_in_the_order_of_the_calls() -> None:
    async def scenario() -> None:
        bench = Bench()
        learner, (child,) = bench.learner(), bench.children
        await up(learner, child)
        totals = Totals(3, 2, 2)
        calls = [asyncio.create_task(call) for call in (learner.forward_backward({}, totals), learner.optim_step())]
        await asyncio.sleep(0)
        learner.release(1)
        calls.append(asyncio.create_task(learner.score({}, 1)))
        got = [await child.next() for _ in range(4)]
        assert [message for _, message in got] == [
            say.ForwardBackward({}, totals), say.OptimStep(None), say.Release(1), say.Score({}, 1)
        ]  # fmt: skip
        asked = [number for number, _ in got if number is not None]
        for number, answer in zip(asked, "abc", strict=True):
            child.answer(number, answer)
        assert [await call for call in calls] == ["a", "b", "c"]
        await bench.close(learner)

    asyncio.run(scenario())


def test_in_virtual_time_the_verbs_of_a_step_take_as_long_as_the_step() -> None:
    async def scenario() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        waits = Waits(EventLog(None, loop.time), 30)
        costs = CostModel(Simulation(step_base_s=2, step_token_s=0.5), 0)
        one, other = (InlineLearner(SimulatedLearner(), costs, waits, 1000, InProcess()) for _ in range(2))
        columns = {"length": np.array([5, 3])}
        start = loop.time()
        await one.step(columns, room())
        stepped_s, start = loop.time() - start, loop.time()
        for length in (5, 3):
            await other.forward_backward({"length": np.array([length])}, Totals(8, 2, 2))
        passed_s = loop.time() - start
        assert (await other.optim_step()).version == 1
        return stepped_s, passed_s, loop.time() - start

    assert run_virtual(scenario(), VirtualLoop()) == (6.0, 4.0, 6.0)
