"""What a worker process does once it knows what it is: serve requests, or learn. It speaks in ``messages``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.base import Loaded
from stretto.runtime.workers.requests import unpack_requests
from stretto.runtime.workers.wire import ChildWire
from stretto.weights.staged import StagedWeights, Staging
from stretto.weights.transport import find_transport

_REPORT_SPAN_S = 0.25


def keep_cores(threads: int) -> None:
    """Run on the last ``threads`` cores only. ``ConfigError`` if that would leave none for the others."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= threads:
        raise ConfigError(
            f"workers.own_cores = true needs more than {threads} core(s), this process may use {len(cores)}; set false"
        )
    os.sched_setaffinity(0, cores[-threads:])


class WorkerProcess:
    """What both do: join the transport, tell what they are at, answer."""

    def __init__(self, wire: ChildWire, spec: say.WorkerSpec) -> None:
        self.wire = wire
        self.number: int | None = None
        """The question that is being answered."""
        import torch

        torch.set_num_threads(spec.config.workers.threads)
        name, place = spec.transport
        self.phase(f"joining the weight transport {name}")
        self.transport = find_transport(name)(place)

    def phase(self, name: str) -> None:
        """Name what this process does, for its deadline and its obituary."""
        self.wire.send(say.Phase(name))

    def answer(self, value: object) -> None:
        """Answer the question in hand."""
        self.wire.send(say.Answer(self.number, value))

    def refuse(self, error: BaseException) -> None:
        """The question failed, this process did not."""
        self.wire.send(say.Refused(self.number, error))

    def run(self) -> None:
        """Work until told to close."""
        raise NotImplementedError


class EngineProcess(WorkerProcess):
    """An engine that decodes while it has work."""

    def __init__(self, wire: ChildWire, spec: say.WorkerSpec) -> None:
        super().__init__(wire, spec)
        from stretto.rollout.build import build_engine

        config, self.began = spec.config, time.monotonic()
        self.phase(f"loading the model from {spec.model_dir}")
        self.engine = build_engine(
            spec.model_dir, config.engine, config.seed, spec.eos_ids, keep_initial=config.eval.weight_drift,
            keep_versions=spec.keep_versions,
        )  # fmt: skip
        self.steps = config.engine.decode_steps
        self.pending_load: tuple[int | None, StagedWeights, InFlight] | None = None
        self.paused = False
        self.spans: list[say.Span] = []
        self.first: list[int] = []
        self.phase("serving requests")

    def run(self) -> None:
        """Decode while there is work; look at the inbox between two advances."""
        while True:
            while self.wire.poll() or not self.has_work:
                if not self.wire.poll():
                    self.report([])  # idle from here on
                self.number, message = self.wire.receive()
                if isinstance(message, say.Close):
                    return
                self.handle(message)
            self.advance()
            if self.pending_load is not None and not self.engine.running:
                self.swap()

    @property
    def has_work(self) -> bool:
        loads = self.pending_load is not None and not self.engine.running
        return loads or (self.engine.has_work and not self.paused)

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self.began

    def advance(self) -> None:
        """At most ``steps`` decode steps; report what finished."""
        if self.paused or not self.engine.has_work:
            return
        start = self.lived_s
        report = self.engine.advance(self.steps)
        end = self.lived_s
        last = self.spans[-1] if self.spans else None
        if last is not None and start - last.until_s < 0.005 and end - last.since_s < _REPORT_SPAN_S:
            last.until_s, last.occupancy = end, report.occupancy
            last.tokens += report.decode_tokens
            last.prefill += report.prefill_tokens
            last.steps += report.decode_steps
        else:
            self.spans.append(say.Span(start, end, report.decode_tokens, report.prefill_tokens, report.decode_steps,
                                       report.occupancy))  # fmt: skip
        self.first += report.first
        if report.finished or self.first or len(self.spans) > 4:
            self.report(report.finished)

    def report(self, finished: Sequence[tuple[int, Completion]]) -> None:
        """Tell the parent what finished, what has its first token, and when this process computed: all in seconds
        since it began, as nobody else has its clock."""
        from stretto.data.columns import pack_completions

        if finished or self.spans:
            columns = pack_completions(finished) if finished else None
            self.wire.send(say.EngineReport(columns, self.spans, self.first, self.lived_s))
            self.spans, self.first = [], []

    def handle(self, message: say.Order | say.Question[object]) -> None:
        """One message of the parent."""
        from stretto.data.columns import pack_completions

        match message:
            case say.Add(requests):
                self.engine.add(unpack_requests(requests))
            case say.Abort(ids):
                self.engine.abort(ids)
            case say.Free(versions):
                self.engine.free(versions)
            case say.Snapshot(pause):
                self.paused = self.paused or pause
                self.answer(pack_completions(list(self.engine.snapshot().items())))
            case say.Pause(ids):
                self.engine.pause(ids)
            case say.Resume(ids):
                self.engine.resume(ids)
            case say.Export() | say.Import():
                self.move(message)
            case say.Distance():
                self.answer(self.engine.distance_to_initial())
            case say.Load(staged, in_flight):
                self.pending_load = (self.number, staged, in_flight)
                if in_flight == InFlight.DRAIN and self.engine.running:
                    self.engine.hold_admission(True)
                else:
                    self.swap()
            case _:
                raise AssertionError(message)

    def move(self, what: say.Export | say.Import) -> None:
        """Hand a running request over, or take one over; refuse what can't be, and go on."""
        try:
            if isinstance(what, say.Export):
                self.answer(self.engine.export(what.id))
            else:
                self.engine.import_(what.state)
                self.answer(None)
        except StrettoError as error:
            self.refuse(error)

    def swap(self) -> None:
        """Fetch the staged weights, verified, and swap them in; if they are bad the old version stays."""
        assert self.pending_load is not None
        self.number, staged, in_flight = self.pending_load
        self.pending_load = None
        start = time.monotonic()
        try:
            weights = staged.merged(self.transport.fetch(staged))
        except StrettoError as error:
            self.refuse(error)
            return
        finally:
            self.engine.hold_admission(False)
        aborted = self.engine.load(staged.version.number, weights, in_flight)
        self.paused = False
        self.report(aborted)
        assert self.engine.version is not None
        self.answer(Loaded(self.engine.version, time.monotonic() - start))


class LearnerProcess(WorkerProcess):
    """A learner that answers."""

    def __init__(self, wire: ChildWire, spec: say.WorkerSpec) -> None:
        super().__init__(wire, spec)
        from stretto.learner.build import build_learner

        if spec.config.workers.own_cores:
            keep_cores(spec.config.workers.threads)
        self.phase(f"loading the model from {spec.model_dir}")
        self.learner = build_learner(spec.model_dir, spec.config, spec.max_steps)
        self.stepped = False
        """Waits a step for room to stage its weights?"""
        self.phase("learning")

    def run(self) -> None:
        """Answer until told to close."""
        while True:
            self.number, message = self.wire.receive()
            if isinstance(message, say.Close):
                return
            try:
                value = self.handle(message)
                if isinstance(message, say.Question):
                    self.answer(value)
            except OSError as error:  # a full disk, say: the question failed, the learner did not
                if self.number is None:  # nobody would hear it
                    raise
                self.refuse(error)
            except Exception as error:
                if type(error).__name__ != "SafetensorError":  # how safetensors says OSError
                    raise
                self.refuse(OSError(str(error)))

    def handle(self, message: say.Order | say.Question[object]) -> object:
        """One message of the parent; the answer, if it is a question."""
        match message:
            case say.Step(columns):
                result = self.learner.step(columns)
                self.stepped = not result.skipped
                return result
            case say.StageStep():
                if self.stepped:  # while the parent prepares the next batch
                    self.stepped = False
                    self.wire.send(say.Staged(self.stage()))
            case say.ForwardBackward(columns, totals):
                return self.learner.forward_backward(columns, totals).plain()
            case say.OptimStep(lr):
                return self.learner.optim_step(lr).plain()
            case say.Score(columns, version):
                return self.learner.score(columns, version)
            case say.Release(before):
                self.learner.release(before)
            case say.Stage():
                return self.stage()
            case say.ReleaseWeights(staged):
                self.transport.release(staged)
            case say.Save(directory):
                self.learner.save(Path(directory))
            case say.LoadCheckpoint(directory):
                self.learner.load(Path(directory))
                return self.learner.version
            case say.SaveModel(directory):
                self.learner.save_model(Path(directory))
            case _:
                raise AssertionError(message)
        return None

    def stage(self) -> Staging:
        start = time.monotonic()
        staged = self.learner.stage(self.transport.stage)
        return Staging(staged, time.monotonic() - start)
