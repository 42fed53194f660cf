"""The main loop of a worker process: an engine that decodes while it has work, or a learner that answers.

Started as ``python -m stretto.runtime.workers.child PARENT SOCKET_FD ROLE MODEL_TYPE``. It imports what the
role needs before it reads its first message, the spec. A message is (number, content): with a number it is a question,
and the answer carries the same number.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from stretto.data.identity import Role
from stretto.data.modes import InFlight
from stretto.kernel.child import die_with_parent, leave_signals_to_parent
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.runtime.workers.requests import unpack_requests
from stretto.runtime.workers.wire import ChildWire
from stretto.weights.staged import StagedWeights, Staging
from stretto.weights.transport import find_transport

_REPORT_SPAN_S = 0.25
_NICE = 2


def keep_cores(threads: int) -> None:
    """Run on the last ``threads`` cores only. ``ConfigError`` if that would leave none for the others."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= threads:
        raise ConfigError(
            f"workers.own_cores = true needs more than {threads} core(s), this process may use {len(cores)}; set false"
        )
    os.sched_setaffinity(0, cores[-threads:])


def settle() -> None:
    """Everything is loaded and lives as long as the process: let the collector leave it alone and look rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main() -> None:
    """Be what the arguments say until told to close or until the parent is gone."""
    parent, socket_fd = (int(a) for a in sys.argv[1:3])
    role, model_type = Role(sys.argv[3]), sys.argv[4]
    die_with_parent(parent)
    os.nice(_NICE)  # the orchestrator does little and everybody waits for it
    leave_signals_to_parent()
    wire = ChildWire(socket_fd)
    try:
        wire.send(("phase", "importing torch and transformers"))
        _import(role, model_type)
        wire.send(("phase", "waiting for its spec"))
        number, (_, spec) = wire.receive()
        worker = (_EngineProcess if role is Role.ENGINE else _LearnerProcess)(wire, spec)
        worker.number = number
        settle()
        worker.answer({"pid": os.getpid()})
        worker.run()
    except (EOFError, ConnectionError):
        return
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk must not hide the error from the parent
            traceback.print_exc()
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            wire.send(("error", error if isinstance(error, StrettoError) else None))
        sys.exit(1)


def _import(role: Role, model_type: str) -> None:
    """The slow imports; the parent does other things meanwhile."""
    importlib.import_module("stretto.rollout.build" if role is Role.ENGINE else "stretto.learner.build")
    importlib.import_module("transformers").AutoModelForCausalLM  # noqa: B018 (its import is lazy)
    if model_type:
        with contextlib.suppress(ImportError):  # not a name of Transformers: loading the model will say so
            importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


class _Process:
    def __init__(self, wire: ChildWire, spec: dict[str, Any]) -> None:
        self.wire = wire
        self.number: int | None = None
        """The question that is being answered."""
        import torch

        torch.set_num_threads(spec["threads"])
        name, place = spec["transport"]
        self.phase(f"joining the weight transport {name}")
        self.transport = find_transport(name)(place)

    def phase(self, name: str) -> None:
        """Name what this process does, for its deadline and its obituary."""
        self.wire.send(("phase", name))

    def answer(self, value: Any) -> None:
        """Answer the question in hand."""
        self.wire.send(("answer", (self.number, value)))

    def refuse(self, error: BaseException) -> None:
        """The question failed, this process did not."""
        self.wire.send(("refused", (self.number, error)))

    def run(self) -> None:
        """Work until told to close."""
        raise NotImplementedError


class _EngineProcess(_Process):
    def __init__(self, wire: ChildWire, spec: dict[str, Any]) -> None:
        super().__init__(wire, spec)
        from stretto.rollout.build import build_engine

        self.began = time.monotonic()
        self.phase(f"loading the model from {spec['model_dir']}")
        self.engine = build_engine(
            spec["model_dir"], spec["engine"], spec["seed"], spec["eos_ids"], keep_initial=spec["weight_drift"],
            keep_versions=spec["keep_versions"],
        )  # fmt: skip
        self.steps = spec["engine"].decode_steps
        self.pending_load: tuple[int | None, StagedWeights, InFlight] | None = None
        self.paused = False
        self.spans: list[list[Any]] = []
        self.first: list[int] = []
        self.phase("serving requests")

    def run(self) -> None:
        """Decode while there is work; look at the inbox between two advances."""
        while True:
            while self.wire.poll() or not self.has_work:
                if not self.wire.poll():
                    self.report([])  # idle from here on
                self.number, message = self.wire.receive()
                if message[0] == "close":
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
        if last is not None and start - last[1] < 0.005 and end - last[0] < _REPORT_SPAN_S:
            last[1] = end
            last[2] += report.decode_tokens
            last[3] += report.prefill_tokens
            last[4] += report.decode_steps
            last[5] = report.occupancy
        else:
            self.spans.append([start, end, report.decode_tokens, report.prefill_tokens, report.decode_steps,
                               report.occupancy])  # fmt: skip
        self.first += report.first
        if report.finished or self.first or len(self.spans) > 4:
            self.report(report.finished)

    def report(self, finished: Any) -> None:
        """Tell the parent what finished, what has its first token, and when this process computed: all in seconds
        since it began, as nobody else has its clock."""
        from stretto.data.columns import pack_completions

        if finished or self.spans:
            columns = pack_completions(finished) if finished else None
            self.wire.send(("report", (columns, self.spans, self.first, self.lived_s)))
            self.spans, self.first = [], []

    def handle(self, message: Any) -> None:
        """One message of the parent."""
        from stretto.data.columns import pack_completions

        kind = message[0]
        if kind == "add":
            self.engine.add(unpack_requests(message[1]))
        elif kind == "abort":
            self.engine.abort(message[1])
        elif kind == "free":
            self.engine.free(message[1])
        elif kind == "snapshot":
            self.paused = self.paused or message[1]
            self.answer(pack_completions(list(self.engine.snapshot().items())))
        elif kind == "pause":
            self.engine.pause(message[1])
        elif kind == "resume":
            self.engine.resume(message[1])
        elif kind in ("export", "import"):
            self.move(kind, message[1])
        elif kind == "distance":
            self.answer(self.engine.distance_to_initial())
        elif kind == "load":
            _, staged, in_flight = message
            self.pending_load = (self.number, staged, in_flight)
            if in_flight == InFlight.DRAIN and self.engine.running:
                self.engine.hold_admission(True)
            else:
                self.swap()
        else:
            raise AssertionError(kind)

    def move(self, kind: str, what: Any) -> None:
        """Hand a running request over, or take one over; refuse what can't be, and go on."""
        try:
            self.answer(self.engine.export(what) if kind == "export" else self.engine.import_(what))
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
        self.answer((self.engine.version, time.monotonic() - start))


class _LearnerProcess(_Process):
    def __init__(self, wire: ChildWire, spec: dict[str, Any]) -> None:
        super().__init__(wire, spec)
        from stretto.learner.build import build_learner

        if spec["own_cores"]:
            keep_cores(spec["threads"])
        self.phase(f"loading the model from {spec['model_dir']}")
        self.learner = build_learner(spec["model_dir"], spec["config"], spec["max_steps"])
        self.stepped = False
        """Waits a step for room to stage its weights?"""
        self.phase("learning")

    def run(self) -> None:
        """Answer until told to close."""
        while True:
            self.number, message = self.wire.receive()
            kind = message[0]
            try:
                if kind == "close":
                    return
                if kind == "step":
                    result = self.learner.step(message[1])
                    self.stepped = not result.skipped
                    self.answer(result)
                elif kind == "stage_step":
                    if self.stepped:  # while the parent prepares the next batch
                        self.stepped = False
                        self.wire.send(("staged", self.stage()))
                elif kind == "forward_backward":
                    self.answer(self.learner.forward_backward(message[1], message[2]).plain())
                elif kind == "optim_step":
                    self.answer(self.learner.optim_step(message[1]).plain())
                elif kind == "score":
                    self.answer(self.learner.score(message[1], message[2]))
                elif kind == "release":
                    self.learner.release(message[1])
                elif kind == "stage":
                    self.answer(self.stage())
                elif kind == "release_weights":
                    self.transport.release(message[1])
                elif kind == "save":
                    self.learner.save(Path(message[1]))
                    self.answer(None)
                elif kind == "load_checkpoint":
                    self.learner.load(Path(message[1]))
                    self.answer(self.learner.version)
                elif kind == "save_model":
                    self.learner.save_model(Path(message[1]))
                    self.answer(None)
                else:
                    raise AssertionError(kind)
            except OSError as error:  # a full disk, say: the question failed, the learner did not
                if self.number is None:  # nobody would hear it
                    raise
                self.refuse(error)
            except Exception as error:
                if type(error).__name__ != "SafetensorError":  # how safetensors says OSError
                    raise
                self.refuse(OSError(str(error)))

    def stage(self) -> Staging:
        start = time.monotonic()
        staged = self.learner.stage(self.transport.stage)
        return Staging(staged, time.monotonic() - start)


if __name__ == "__main__":
    main()
