"""From a validated configuration to a finished run: builds the parts, runs the loop, sums it up.

Three modes, one wiring: ``train`` (wall clock, worker processes), ``rehearse`` (virtual clock, real sampling and
updates), ``simulate`` (virtual clock, nothing computed).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stretto.cluster.costs import Costs
from stretto.cluster.engine import ModelledEngine
from stretto.cluster.env import DelayedEnvironment, ModelledEnvironment
from stretto.cluster.learner import ModelledLearner
from stretto.config.load import to_toml
from stretto.config.schema import RunConfig
from stretto.config.sections import Component
from stretto.control.hooks import Rules, build_rules
from stretto.control.view import View
from stretto.envs.base import Environment
from stretto.envs.build import build_environment
from stretto.envs.scoring import InlineScoring, ScoringPool
from stretto.errors import CheckpointError, ConfigError, StrettoError
from stretto.observe.live import LiveView
from stretto.observe.metrics import MetricsWriter
from stretto.observe.report import write_report
from stretto.observe.samples import sample_of, write_samples
from stretto.observe.summary import summary_of
from stretto.observe.trackers import make_trackers
from stretto.rollout.types import SamplingParams
from stretto.runtime.clock import VirtualLoop, run_virtual
from stretto.runtime.evaluate import Evaluator
from stretto.runtime.events import FORMAT, Event, EventLog, read_events
from stretto.runtime.manifest import Restored, check_logs, latest, load_checkpoint, set_aside_newer
from stretto.runtime.orchestrator import Orchestrator, Outcome, Parts
from stretto.runtime.waits import Waits
from stretto.runtime.workers.base import EngineHandle, LearnerHandle, Stepped
from stretto.runtime.workers.crew import LEARNER, Crew, model_type
from stretto.runtime.workers.inline import InlineEngine, InlineLearner
from stretto.runtime.workers.modelled import ModelledEngineHandle
from stretto.runtime.workers.process import ProcessEngine, ProcessLearner
from stretto.trajectory import Group
from stretto.weights.memory import published_bytes, reserve

Says = Callable[[str], None]


def check(config: RunConfig, mode: str = "train") -> Rules:
    """Everything that can be found wrong before anything starts; raises ``ConfigError``."""
    rules = build_rules(config)
    if mode == "simulate":
        return rules
    build_environment(config)
    from stretto.objectives import REGISTRY, get, names

    objective = get(config.objective.name, **config.objective.options)
    if config.lag_bound > 0 and not objective.corrects and not config.allow_uncorrected:
        raise ConfigError(
            f"objective.name = {config.objective.name!r} ignores behaviour log-probabilities, so with lag_bound = "
            f"{config.lag_bound} stale data would go uncorrected. Choose an objective that uses them "
            f"({', '.join(n for n in names() if REGISTRY.find(n).corrects)}), set lag_bound = 0, or set "
            "allow_uncorrected = true"
        )
    if "values" in objective.needs and config.learner.critic.kind == "none":
        raise ConfigError(
            f"objective.name = {config.objective.name!r} needs a critic: set learner.critic.kind to 'head' or 'network'"
        )
    return rules


@dataclass(slots=True)
class Job:
    """One run: its configuration, mode, directory, and the checkpoint to go on from."""

    config: RunConfig
    mode: str
    rules: Rules
    out: Path
    restored: Restored | None
    says: Says
    env: Environment
    model_dir: Path | None
    eos_ids: tuple[int, ...]
    crew: Crew | None = None
    """Worker processes, if there are any."""

    @property
    def virtual(self) -> bool:
        """Does the run's clock jump?"""
        return self.mode != "train"


def launch(config: RunConfig, mode: str, *, resume: Path | None = None) -> dict[str, Any]:
    """Run to the end; returns what ``--json`` prints. ``resume``: a run directory or one of its checkpoints."""
    rules = check(config, mode)
    out = Path(config.out_dir)
    try:
        restored = _prepare(config, out, resume)
        started = time.perf_counter()
        live = LiveView(config.logging.console, config.max_steps, lag_bound=config.lag_bound, virtual=mode != "train")
        with live, _crew(config, mode, out) as crew:
            job = Job(config, mode, rules, out, restored, live.progress,
                      *_environment(config, mode, live.progress), crew)  # fmt: skip
            done = run_virtual(_run(job, live), VirtualLoop()) if job.virtual else asyncio.run(_run(job, live))
        return _result(job, *done, time.perf_counter() - started)
    except OSError as error:
        raise StrettoError(_write_failed(out, error)) from error


def _prepare(config: RunConfig, out: Path, resume: Path | None) -> Restored | None:
    """Make the run's directory, or verify and load the checkpoint to go on from."""
    if resume is None:
        _fresh_directory(out)
        restored = None
    else:
        checkpoint = find_checkpoint(resume)
        restored = load_checkpoint(checkpoint)
        check_logs(out, restored)
        set_aside_newer(checkpoint)
    if config.order == "submission":  # what is saved says it once more, so that it can be read back
        config.control.batch = Component(name="submission")
    (out / "config.toml").write_text(to_toml(config))
    return restored


def _crew(config: RunConfig, mode: str, out: Path) -> contextlib.AbstractContextManager[Crew | None]:
    """Worker processes start before the environment and the model are there: their imports take seconds."""
    if mode != "train" or config.workers.kind == "inline":
        return contextlib.nullcontext()
    names = [f"engine-{i}" for i in range(config.engine.count)]
    return Crew(names, out / "logs", config.workers.threads, model_type(config.model))


def _write_failed(out: Path, error: OSError) -> str:
    """What to say when the run's directory can't be written (a full disk, say)."""
    where = f"{error.filename}" if error.filename else str(out)
    last = latest(out / "checkpoints")
    way = (
        f"The last complete checkpoint is {last}; then go on with: stretto train --resume {out}"
        if last is not None
        else "There is no checkpoint yet"
    )
    return f"can't read or write {where}: {error.strerror or error}. Make room (or fix what is wrong there). {way}"


def find_checkpoint(path: Path) -> Path:
    """A checkpoint directory itself, or the newest one of a run."""
    if (path / "manifest.json").exists():
        return path
    found = latest(path / "checkpoints")
    if found is None:
        raise CheckpointError(f"{path} holds no complete checkpoint (looked in {path / 'checkpoints'})")
    return found


def _fresh_directory(out: Path) -> None:
    if (out / "events.jsonl").exists():
        raise ConfigError(
            f"out = {str(out)!r} already holds a run. Go on with it (stretto train --resume {out}), choose another "
            "out=..., or remove the directory"
        )
    try:
        (out / "rollouts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out = {str(out)!r} can't be created: {error.strerror}") from error


async def _run(job: Job, live: LiveView) -> tuple[Outcome, dict[str, Any], str]:
    """How the run ended, its figures (counted as the events came), the SHA-256 of its event log."""
    config, restored = job.config, job.restored
    loop = asyncio.get_running_loop()
    offsets = restored.offsets if restored is not None else {}
    log = EventLog(
        job.out / "events.jsonl", loop.time, offsets.get("events.jsonl"), restored.clock_s if restored else 0.0
    )
    view = View()
    kept: list[Event] = read_events(job.out / "events.jsonl") if restored is not None else []
    for event in kept:
        view(event)
    metrics = MetricsWriter(
        job.out,
        trackers=make_trackers(job.out, config.logging, name=config.name, config=config.model_dump(mode="json"),
                               step=restored.version if restored else None),
        offset=offsets.get("metrics.jsonl"),
        history=kept,
    )  # fmt: skip
    live.replay(kept)
    metrics.on_row.append(live.on_row)
    log.listeners += [view, metrics, live]
    waits = Waits(log, config.deadlines.warn_s)
    if isinstance(loop, VirtualLoop):
        loop.set_describe(waits.describe)
    try:
        parts = _parts(job, log, view, waits, metrics)
        if restored is None:
            _log_start(job, log, parts.max_steps)
        else:
            log.emit("Resumed", version=restored.version, step=restored.version, max_steps=parts.max_steps)
        orchestrator = Orchestrator(parts, restored)
        for part in (parts.learner, parts.scoring):
            if hasattr(part, "hear_death"):
                part.hear_death(orchestrator.fail)
        with _signals(loop, orchestrator, job.virtual):
            outcome = await orchestrator.run()
        return outcome, summary_of(metrics.interval, metrics.rows, log.last), log.close()
    finally:
        try:
            log.close()
        finally:
            metrics.close()


def _log_start(job: Job, log: EventLog, max_steps: int) -> None:
    c = job.config
    log.emit(
        "RunStart", format=FORMAT, mode=job.mode, seed=c.seed, lag_bound=c.lag_bound, depth=c.pipeline_depth,
        prompts_per_step=c.prompts_per_step, group_size=c.group_size, max_steps=max_steps, engines=c.engine.count,
        slots=c.engine.slots, in_flight=c.control.in_flight, version=0, step=0,
    )  # fmt: skip


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, orchestrator: Orchestrator, virtual: bool) -> Any:
    """First interrupt: finish the step, save, end. Second one: end now."""
    if virtual:
        yield
        return
    main = asyncio.current_task()
    asked = False

    def interrupt() -> None:
        nonlocal asked
        if asked and main is not None:
            main.cancel()
        asked = True
        orchestrator.stop()

    caught = (signal.SIGINT, signal.SIGTERM)
    for number in caught:
        loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def _parts(job: Job, log: EventLog, view: View, waits: Waits, metrics: MetricsWriter) -> Parts:
    config = job.config
    env, model_dir, eos_ids = job.env, job.model_dir, job.eos_ids
    max_steps, tasks_in_all = _steps(config, env)
    costs = Costs(config.cluster, config.seed) if job.virtual else None
    scoring: Any = (
        InlineScoring()
        if job.virtual
        else ScoringPool(
            config.workers.scoring_processes, config.deadlines.score_s, on_event=_scoring_events(log)
        )
    )
    sampling = _sampling(config, env, eos_ids)
    engines, learner = _workers(job, log, waits, costs, model_dir, eos_ids, max_steps)
    evaluator = None
    if config.eval.tasks and job.mode != "simulate":
        tasks = env.eval_tasks(config.eval.tasks)
        if tasks:
            evaluator = Evaluator(env, tasks, sampling, config.eval.temperature, config.seed, scoring, log,
                                  config.deadlines.rollout_s)  # fmt: skip
    if job.mode == "rehearse" and costs is not None:
        env = DelayedEnvironment(env, costs)
    return Parts(
        config=config, rules=job.rules, env=env, engines=engines, learner=learner, scoring=scoring, sampling=sampling,
        log=log, view=view, waits=waits, out=job.out, max_steps=max_steps, tasks_in_all=tasks_in_all,
        evaluator=evaluator, on_step=_sampler(job, env), says=job.says,
        offsets=lambda: {"metrics.jsonl": metrics.offset},
    )  # fmt: skip


def _environment(config: RunConfig, mode: str, says: Says) -> tuple[Environment, Path | None, tuple[int, ...]]:
    """The bound environment, the model's directory (built, converted or the user's) and the ids that end a text."""
    if mode == "simulate":
        return ModelledEnvironment(Costs(config.cluster, config.seed)), None, ()
    from stretto.models.resolve import resolve_model
    from stretto.models.tokenizer import light_tokenizer

    env = build_environment(config)
    model_dir = resolve_model(config, env, says)
    tokenizer = light_tokenizer(model_dir)
    env.bind(tokenizer, config.seed)
    return env, model_dir, tokenizer.eos_ids


def _steps(config: RunConfig, env: Environment) -> tuple[int, int | None]:
    """Learner steps in all, and tasks in all (None: unbounded): min(max_steps, epochs x batches per epoch)."""
    size = env.epoch_size
    if config.epochs is None:
        return config.max_steps, None
    if size is None:
        raise ConfigError(f"epochs = {config.epochs:g}: environment {config.env.name!r} has no end; use max_steps")
    tasks = math.floor(config.epochs * size)
    if tasks < config.prompts_per_step:
        raise ConfigError(
            f"epochs = {config.epochs:g} of {size} tasks is less than one batch of prompts_per_step = "
            f"{config.prompts_per_step}"
        )
    return min(config.max_steps, tasks // config.prompts_per_step), tasks


def _sampling(config: RunConfig, env: Environment, eos_ids: tuple[int, ...]) -> SamplingParams:
    stop = list(eos_ids)
    for text in config.sampling.stop:
        ids = env.tokenizer.encode(text).tolist()  # type: ignore[attr-defined]
        if len(ids) != 1:
            raise ConfigError(f"sampling.stop: {text!r} is {len(ids)} tokens for this model; a stop is one token")
        stop += ids
    s = config.sampling
    return SamplingParams(s.temperature, s.top_p, s.top_k, s.max_new_tokens, tuple(stop))


def _workers(
    job: Job, log: EventLog, waits: Waits, costs: Costs | None, model_dir: Path | None, eos_ids: tuple[int, ...],
    max_steps: int,
) -> tuple[list[EngineHandle], LearnerHandle]:  # fmt: skip
    config = job.config
    names = [f"engine-{i}" for i in range(config.engine.count)]
    if job.mode == "simulate":
        assert costs is not None
        in_flight = config.control.in_flight
        engines: list[EngineHandle] = [
            ModelledEngineHandle(n, ModelledEngine(config.cluster, config.engine.slots, in_flight), log, costs,
                                 in_flight)
            for n in names
        ]  # fmt: skip
        return engines, InlineLearner(ModelledLearner(), costs)
    assert model_dir is not None
    spec: dict[str, Any] = {
        "model_dir": str(model_dir), "threads": config.workers.threads, "seed": config.seed, "eos_ids": eos_ids,
        "engine": config.engine, "config": config, "max_steps": max_steps, "canary": config.eval.canary,
    }  # fmt: skip
    if job.virtual or config.workers.kind == "inline":
        import torch

        from stretto.learner.build import build_learner
        from stretto.rollout.build import build_engine

        torch.set_num_threads(config.workers.threads)
        job.says("loading the model")
        inline: list[EngineHandle] = [
            InlineEngine(n, build_engine(model_dir, config.engine, config.seed, eos_ids,
                                         keep_initial=config.eval.canary), log, costs,
                         config.engine.steps_per_advance)
            for n in names
        ]  # fmt: skip
        return inline, InlineLearner(build_learner(model_dir, config, max_steps), costs)
    assert job.crew is not None
    crew, d = job.crew, config.deadlines
    slot_bytes = published_bytes(model_dir, 8 if config.learner.dtype == "float64" else 4)
    spec["slot_bytes"] = slot_bytes
    reserve(crew.memory_fd, slot_bytes)
    shared: dict[str, Any] = {"startup_s": d.startup_s, "shutdown_s": d.shutdown_s}
    restarts = config.workers.max_restarts if config.workers.on_engine_crash == "restart" else 0
    processes: list[EngineHandle] = [
        ProcessEngine(n, spec, log, waits, hatch=partial(crew.hatch, n), publish_s=d.publish_s, drain_s=d.rollout_s,
                      max_restarts=restarts, **shared)
        for n in names
    ]  # fmt: skip
    learner = ProcessLearner(spec, log, waits, hatch=partial(crew.hatch, LEARNER), step_s=d.step_s, **shared)
    return processes, learner


def _scoring_events(log: EventLog) -> Callable[[str, str, str], None]:
    def hear(kind: str, worker: str, reason: str) -> None:
        if kind == "up":
            log.emit("WorkerUp", worker=worker)
        else:
            log.emit("WorkerDown", worker=worker, reason=reason)

    return hear


def _sampler(job: Job, env: Environment) -> Callable[[int, list[Group], Stepped], None]:
    """Writes a few trajectories of each step in full."""
    n = job.config.logging.rollouts_per_step
    if job.mode == "simulate" or not n:
        return lambda version, groups, stepped: None

    def write(version: int, groups: list[Group], stepped: Stepped) -> None:
        chosen = [group.trajectories[k % len(group.trajectories)] for k, group in enumerate(groups[:n])]
        decode = env.tokenizer.decode  # type: ignore[attr-defined]
        samples, ratios = [], _ratios(groups, stepped)
        for trajectory in chosen:
            (group,) = (g for g in groups if g.id == trajectory.group)
            rewards = [t.reward for t in group.trajectories if t.reward is not None]
            advantage = None if trajectory.reward is None else trajectory.reward - sum(rewards) / len(rewards)
            samples.append(
                sample_of(trajectory, step=version, version=version, decode=lambda ids: decode(ids, special=True),
                          advantage=advantage, ratio=ratios.get(trajectory.id))
            )  # fmt: skip
        write_samples(job.out, version, samples)

    return write


def _ratios(groups: list[Group], stepped: Stepped) -> dict[int, Any]:
    """Current over behaviour probability of each token, by trajectory; empty if the learner didn't record it."""
    if stepped.ratio is None:
        return {}
    out, at = {}, 0
    for group in groups:
        for trajectory in group.trajectories:
            out[trajectory.id] = stepped.ratio[at : at + len(trajectory.tokens)]
            at += len(trajectory.tokens)
    return out


def _weights_sha256(model: Path) -> str:
    """SHA-256 over the saved weights; empty if there are none (simulate)."""
    digest = hashlib.sha256()
    files = sorted(model.glob("*.safetensors"))
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else ""


def _result(
    job: Job, outcome: Outcome, summary: dict[str, Any], events_sha256: str, wall_s: float
) -> dict[str, Any]:
    if job.config.logging.report:
        write_report(job.out)
    return {
        "run": str(job.out),
        "steps": summary["steps"],
        "version": summary["version"],
        "eval": summary["eval"],
        "staleness": summary["staleness"],
        "ledger": summary["ledger"],
        "wall_s": round(wall_s, 3),
        "virtual_s": summary["clock_s"] if job.virtual else None,
        "weights_sha256": _weights_sha256(job.out / "model"),
        "events_sha256": events_sha256,
        "reason": outcome.reason,
    }
