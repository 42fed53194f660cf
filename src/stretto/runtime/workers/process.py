"""Engine and learner in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from stretto.data.columns import unpack_completions
from stretto.data.identity import Role
from stretto.data.modes import InFlight
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.data.trajectory import Completion
from stretto.kernel.errors import InvariantError, WorkerError
from stretto.kernel.events import EventLog
from stretto.kernel.supervised import Child
from stretto.kernel.waits import Waits
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.rollout.capabilities import OWN_PROCESS
from stretto.rollout.types import ExportedRequest, Request
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.runtime.workers.requests import pack_requests
from stretto.runtime.workers.spawn import ChildProcess
from stretto.runtime.workers.worker_pool import LEARNER
from stretto.runtime.workers.worker_time import WorkerTime
from stretto.weights.staged import Room, StagedWeights, Staging

T = TypeVar("T")


class ProcessEngine(EngineHandle):
    """An engine in a child process; it decodes on its own while it has work and reports what finished.

    ``acquire`` starts a process. ``max_restarts`` > 0: a dead process is replaced, the newest weights are loaded again,
    and its requests go on. Otherwise its death fails the run.
    """

    capabilities = OWN_PROCESS

    def __init__(
        self,
        name: str,
        spec: say.WorkerSpec,
        waits: Waits,
        *,
        acquire: Callable[[], Child],
        startup_s: float,
        publish_s: float,
        shutdown_s: float,
        max_restarts: int,
        slice_size: int | None,
    ) -> None:
        super().__init__(name)
        self._spec = spec
        self._startup_s, self._publish_s, self._shutdown_s = startup_s, publish_s, shutdown_s
        self._restarts_left = max_restarts
        self._acquire, self._waits = acquire, waits
        self._child = self._make()
        self._restarting: asyncio.Task[None] | None = None
        self._away = False
        """Is its process being replaced, or does the new one hold no weights yet?"""
        self._arrived: deque[tuple[int, Completion]] = deque()
        self._handing = False
        self._slice = slice_size

    async def start(self) -> None:
        """Start the process."""
        self._time = WorkerTime()
        await self._child.start(self._spec, self._startup_s)

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        self._child.post(say.Add(pack_requests(requests)))

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._child.post(say.Abort(ids))

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions."""
        self._child.post(say.Free(versions))

    def pause(self, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them."""
        self._child.post(say.Pause(ids))

    def resume(self, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        self._child.post(say.Resume(ids))

    async def export(self, id: int) -> ExportedRequest:
        """Take a running request out."""
        return await self._ask(say.Export(id), f"request {id} with its cache")

    async def import_(self, state: ExportedRequest) -> None:
        """Go on with a request of another engine."""
        await self._ask(say.Import(state), f"taking over request {state.request.id}")

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Swap weights between two steps; verified by the child against the checksum."""
        child, asked = self._child, weights.version.number
        loaded = await child.call(say.Load(weights, in_flight))
        if child.error is not None:  # it died right after its answer: nothing may be sent to it
            raise child.error
        if loaded.version != asked:
            raise InvariantError(f"{self.name} was asked for version {asked} and loaded {loaded.version}")
        self._away = False
        return loaded

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far; nothing while the process is being replaced. ``settle``: all
        that came before is delivered; ``pause``: it goes on after ``load``."""
        found = await self._partial(pause)
        while settle and self._arrived:
            await asyncio.sleep(0)
        return found

    async def _partial(self, pause: bool) -> dict[int, Completion]:
        if self._away and not pause:
            return {}
        try:
            columns = await self._ask(say.Snapshot(pause), "its partial rollouts")
        except WorkerError:
            if self._away and not pause:
                return {}
            raise
        return dict(unpack_completions(columns))

    async def distance(self) -> float:
        """Relative L2 distance of its weights to the first ones."""
        return await self._ask(say.Distance(), "its distance")

    def _ask(self, question: say.Question[T], what: str) -> Awaitable[T]:
        return self._child.ask(question, what, self._publish_s, "publish_s")

    async def close(self) -> None:
        """End the process."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._child.close(self._shutdown_s)

    def _message(self, message: say.EngineReport | say.Staged) -> None:
        if isinstance(message, say.EngineReport):
            self._time.heard(asyncio.get_running_loop().time(), message.said_s)
            for span in message.spans:
                began, ended = self._time.span(span.since_s, span.until_s)
                self.sink.busy(began, ended, span.tokens, span.prefill, span.steps, occupancy=span.occupancy)
            self.sink.first_tokens(message.first)
            if message.completions is not None:
                self._arrived.extend(unpack_completions(message.completions))
                self._hand_over()

    def _hand_over(self) -> None:
        """Deliver a slice and let the loop look around: what a whole report sets off takes tens of milliseconds, and
        the learner's answer must not wait for it."""
        if self._handing:
            return
        n = len(self._arrived) if self._slice is None else self._slice
        self.sink.finished([self._arrived.popleft() for _ in range(min(n, len(self._arrived)))])
        if self._arrived:
            self._handing = True
            asyncio.get_running_loop().call_soon(self._hand_over_more)

    def _hand_over_more(self) -> None:
        self._handing = False
        self._hand_over()

    def _died(self, error: BaseException) -> None:
        self.sink.finished(list(self._arrived))
        self._arrived.clear()
        returns = self._restarts_left > 0 and isinstance(error, WorkerError)
        if self.sink.died(error, returns=returns):
            self._restarts_left -= 1
            self._away = True
            self._restarting = asyncio.get_running_loop().create_task(self._restart())

    def _make(self) -> ChildProcess:
        return ChildProcess(self.name, self._acquire(), self._waits, on_message=self._message, on_death=self._died)

    async def _restart(self) -> None:
        try:
            await self._child.close(self._shutdown_s)
            self._child = self._make()
            await self.start()
            self.sink.up()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._restarting is asyncio.current_task():  # else it died while it came up, and the next one comes up
                self.sink.died(error)


class ProcessLearner:
    """A learner in a child process."""

    def __init__(
        self,
        spec: say.WorkerSpec,
        log: EventLog,
        waits: Waits,
        *,
        acquire: Callable[[], Child],
        startup_s: float,
        step_s: float,
        shutdown_s: float,
    ) -> None:
        self._log, self._spec, self._waits = log, spec, waits
        self._startup_s, self._step_s, self._shutdown_s = startup_s, step_s, shutdown_s
        self._on_death: Callable[[BaseException], None] = lambda error: None
        self._child = ChildProcess(LEARNER, acquire(), waits, on_message=self._message, on_death=self._died)
        self._staging: deque[asyncio.Future[Staging]] = deque()

    def hear_death(self, on_death: Callable[[BaseException], None]) -> None:
        """Who is told when the process dies."""
        self._on_death = on_death

    def _died(self, error: BaseException) -> None:
        with contextlib.suppress(OSError):  # a full disk, say: whoever waits for it must learn of it all the same
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._log.emit("WorkerDown", worker=LEARNER, role=Role.LEARNER, reason=reason)
        for staged in self._staging:
            if not staged.done():
                staged.set_exception(error)
            staged.exception()  # marks it as seen: whoever waits for it may have ended
        self._staging.clear()
        self._on_death(error)

    def _message(self, message: say.EngineReport | say.Staged) -> None:
        if isinstance(message, say.Staged):
            if not self._staging:
                raise WorkerError("learner: it staged weights of no step")
            staged = self._staging.popleft()
            if not staged.done():
                staged.set_result(message.staging)

    async def start(self) -> None:
        """Start the process."""
        await self._child.start(self._spec, self._startup_s)
        self._log.emit("WorkerUp", worker=LEARNER, role=Role.LEARNER)

    async def step(self, columns: Columns, room: Room) -> tuple[StepResult, Awaitable[Staging] | None]:
        """Train on a batch."""
        staged: asyncio.Future[Staging] = asyncio.get_running_loop().create_future()
        self._staging.append(staged)  # now: its message may come together with the answer
        with contextlib.closing(room), contextlib.closing(self._child.call(say.Step(columns))) as answering:
            await room
            self._child.post(say.StageStep())
            # how long that took is the engines' affair, and has its own deadline
            answer = await self._waits.wait_with_deadline(
                answering, "the loop", "learner: a learner step", self._step_s, "step_s"
            )
        if answer.skipped:
            self._staging.remove(staged)
            return answer, None
        what = f"the learner: staging version {answer.version}"
        return answer, self._waits.wait_with_deadline(staged, "the weight update", what, self._step_s, "step_s")

    async def forward_backward(
        self, columns: Columns, totals: Totals | None = None
    ) -> ForwardBackwardResult[Mapping[str, float]]:
        """Accumulate."""
        return await self._ask(say.ForwardBackward(columns, totals), "forward and backward")

    async def optim_step(self, lr: float | None = None) -> OptimResult[Mapping[str, float]]:
        """Update."""
        return await self._ask(say.OptimStep(lr), "an optimizer step")

    async def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Score segments."""
        return await self._ask(say.Score(columns, version), "scoring segments")

    def release(self, before: int) -> None:
        """Older versions have ended."""
        self._child.post(say.Release(before))

    async def stage(self) -> Staging:
        """Stage the current weights."""
        return await self._ask(say.Stage(), "staging weights")

    def release_weights(self, staged: StagedWeights) -> None:
        """Nobody will fetch these."""
        self._child.post(say.ReleaseWeights(staged.version))

    async def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        await self._ask(say.Save(str(directory)), "saving a checkpoint")

    async def load(self, directory: Path) -> int:
        """Restore."""
        return await self._ask(say.LoadCheckpoint(str(directory)), "loading a checkpoint")

    async def save_model(self, directory: Path) -> None:
        """Write the policy."""
        await self._ask(say.SaveModel(str(directory)), "saving the model")

    async def close(self) -> None:
        """End the process."""
        await self._child.close(self._shutdown_s)

    def _ask(self, question: say.Question[T], what: str) -> Awaitable[T]:
        """Sends at once; the answer can be awaited later."""
        return self._child.ask(question, what, self._step_s, "step_s", "the loop")
