"""Engines and learner of a run, built but not started: in simulation, in this process, in processes, or of a kind from
outside."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.control.version_pinning import may_pin
from stretto.data.identity import Role
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.run.spec import RunSpec, engine_names
from stretto.runtime.workers.base import EngineHandle, LearnerHandle
from stretto.runtime.workers.foreign import ForeignEngine
from stretto.runtime.workers.inline import InlineEngine, InlineLearner
from stretto.runtime.workers.kinds import TORCH, EngineSpec, find_kind
from stretto.runtime.workers.messages import WorkerSpec
from stretto.runtime.workers.process import ProcessEngine, ProcessLearner
from stretto.runtime.workers.simulated import SimulatedEngineHandle
from stretto.runtime.workers.worker_pool import LEARNER, WorkerPool
from stretto.simulation.costs import CostModel
from stretto.simulation.engine import SimulatedEngine
from stretto.simulation.learner import SimulatedLearner
from stretto.weights.in_process import InProcess
from stretto.weights.layout import published_bytes
from stretto.weights.transport import Transport, find_transport

Workers = tuple[list[EngineHandle], LearnerHandle]


def slice_size(run: RunSpec) -> int | None:
    """How many trajectories one turn of the event loop starts or takes in at most; see ``RunContext``."""
    return None if run.virtual or run.config.lag_bound == 0 else 8


def worker_pool_of(config: RunConfig, mode: str, out: Path) -> contextlib.AbstractContextManager[WorkerPool | None]:
    """The worker processes of a run, if it has any. They start before the environment and the model are there: their
    imports take seconds."""
    own_engines, processes = config.engine.kind == TORCH, config.workers.kind == "process"
    if mode != "train" or (own_engines and not processes):
        return contextlib.nullcontext()
    roles = dict.fromkeys(engine_names(config), Role.ENGINE) if own_engines else {}
    return WorkerPool(config, {LEARNER: Role.LEARNER, **roles} if processes else {}, out)


def build_workers(run: RunSpec, log: EventLog, waits: Waits, costs: CostModel | None, max_steps: int) -> Workers:
    """The handles of a run's workers. ``costs``: of the virtual clock, where it has one."""
    if run.mode == "simulate":
        assert costs is not None
        return _simulated(run, waits, costs)
    if run.virtual or (run.config.workers.kind == "inline" and run.config.engine.kind == TORCH):
        return _inline(run, waits, costs, max_steps)
    return _apart(run, log, waits, max_steps)


def _simulated(run: RunSpec, waits: Waits, costs: CostModel) -> Workers:
    config = run.config
    engines: list[EngineHandle] = [
        SimulatedEngineHandle(
            name,
            SimulatedEngine(
                config.simulation, config.engine.max_num_seqs, config.control.in_flight, config.engine.kept_tokens
            ),
            costs,
        )
        for name in engine_names(run.config)
    ]
    return engines, InlineLearner(SimulatedLearner(costs), costs, waits, config.deadlines.step_s, InProcess())


def _inline(run: RunSpec, waits: Waits, costs: CostModel | None, max_steps: int) -> Workers:
    from stretto.rollout.build import build_engine

    config, here = run.config, InProcess()
    _set_threads(run)
    build = partial(build_engine, _model_dir(run), config.engine, config.seed, run.eos_ids,
                    keep_initial=config.eval.weight_drift, keep_versions=may_pin(config))  # fmt: skip
    engines: list[EngineHandle] = [
        InlineEngine(name, build(), costs, config.engine.decode_steps, here) for name in engine_names(run.config)
    ]
    return engines, _inline_learner(run, waits, costs, max_steps, here)


def _set_threads(run: RunSpec) -> None:
    import torch

    torch.set_num_threads(run.config.workers.threads)
    run.on_progress("loading the model")


def _inline_learner(
    run: RunSpec, waits: Waits, costs: CostModel | None, max_steps: int, transport: Transport
) -> LearnerHandle:
    from stretto.learner.build import build_learner

    learner = build_learner(_model_dir(run), run.config, max_steps, run.objective)
    return InlineLearner(learner, costs, waits, run.config.deadlines.step_s, transport)


def _apart(run: RunSpec, log: EventLog, waits: Waits, max_steps: int) -> Workers:
    """Where at least something isn't in this process: weights travel by a transport."""
    assert run.worker_pool is not None
    config, d, worker_pool, model_dir = run.config, run.config.deadlines, run.worker_pool, _model_dir(run)
    transport = worker_pool.transport
    nbytes = published_bytes(model_dir, 8 if config.learner.dtype == "float64" else 4)
    transport.reserve(nbytes, config.weights.staged_versions)
    spec = WorkerSpec(config, str(model_dir), run.eos_ids, max_steps, (config.weights.transport, transport.place),
                      keep_versions=may_pin(config))  # fmt: skip
    shared: dict[str, Any] = {"startup_s": d.startup_s, "shutdown_s": d.shutdown_s}
    restarts = config.workers.max_restarts if config.workers.on_engine_crash == "restart" else 0
    if config.engine.kind == TORCH:
        engines: list[EngineHandle] = [
            ProcessEngine(name, spec, waits, acquire=partial(worker_pool.acquire, name), publish_s=d.publish_s,
                          max_restarts=restarts, slice_size=slice_size(run), **shared)
            for name in engine_names(run.config)
        ]  # fmt: skip
    else:
        engines = _foreign(run, waits, transport)
    if config.workers.kind == "inline":
        _set_threads(run)
        return engines, _inline_learner(run, waits, None, max_steps, transport)
    learner = ProcessLearner(spec, log, waits, acquire=partial(worker_pool.acquire, LEARNER), step_s=d.step_s, **shared)
    return engines, learner


def _foreign(run: RunSpec, waits: Waits, transport: Transport) -> list[EngineHandle]:
    """Engines of a kind from outside, each behind the run's deadlines."""
    config, model_dir = run.config, _model_dir(run)
    kind: Any = find_kind(config, run.mode)
    joined = find_transport(config.weights.transport)(transport.place)
    return [
        ForeignEngine(
            kind(
                EngineSpec(name, model_dir, config.engine, config.seed, run.eos_ids, run.out / "logs", joined.fetch),
                **config.engine.options,
            ),
            waits,
            config.deadlines,
            config.engine.max_num_seqs,
        )
        for name in engine_names(run.config)
    ]


def _model_dir(run: RunSpec) -> Path:
    assert run.model_dir is not None, "only a simulation has no model"
    return run.model_dir
