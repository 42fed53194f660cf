"""From a validated configuration to a finished run: builds the parts, runs the loop, sums it up.

Three modes, one wiring: ``train`` (wall clock, worker processes), ``rehearse`` (virtual clock, real sampling and
updates), ``simulate`` (virtual clock, nothing computed).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import time
from pathlib import Path
from typing import Any

from stretto.config.load import to_toml
from stretto.config.schema import RunConfig
from stretto.control.hooks import HOOKS, Rules, build_rules, in_order
from stretto.control.view import View
from stretto.envs.build import build_environment
from stretto.errors import CheckpointError, ConfigError, StrettoError
from stretto.observe.live import LiveView
from stretto.observe.metrics import MetricsWriter
from stretto.observe.report import write_report
from stretto.observe.summary import summary_of
from stretto.observe.trackers import make_trackers
from stretto.runtime.clock import VirtualLoop, few_collections, run_virtual
from stretto.runtime.events import FORMAT, Event, EventLog, read_events
from stretto.runtime.manifest import Restored, check_logs, latest, load_checkpoint, set_aside_newer
from stretto.runtime.orchestrator import Orchestrator
from stretto.runtime.parts import Outcome, Parts
from stretto.runtime.waits import Waits
from stretto.runtime.workers.crew import Crew, model_type
from stretto.wiring import Job, build_parts, load_environment


def check(config: RunConfig, mode: str = "train") -> Rules:
    """Everything that can be found wrong before anything starts; raises ``ConfigError``."""
    rules = build_rules(config)
    if mode == "simulate":
        return rules
    build_environment(config)
    from stretto.objectives import REGISTRY, get, names

    objective = get(config.objective.name, **config.objective.options)
    correcting = [n for n in names() if getattr(REGISTRY.find(n), "corrects", False)]
    if config.lag_bound > 0 and not objective.corrects and not config.allow_uncorrected:
        raise ConfigError(
            f"objective.name = {config.objective.name!r} ignores behaviour log-probabilities, so with lag_bound = "
            f"{config.lag_bound} stale data would go uncorrected. Choose an objective that uses them "
            f"({', '.join(correcting)}), set lag_bound = 0, or set "
            "allow_uncorrected = true"
        )
    if "values" in objective.needs and config.learner.critic.kind == "none":
        raise ConfigError(
            f"objective.name = {config.objective.name!r} needs a critic: set learner.critic.kind to 'head' or 'network'"
        )
    return rules


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
                      *load_environment(config, mode, live.progress), crew)  # fmt: skip
            if job.virtual:
                done = run_virtual(_run(job, live), VirtualLoop())
            else:
                with few_collections():
                    done = asyncio.run(_run(job, live))
        return _result(job, *done, time.perf_counter() - started)
    except OSError as error:
        raise StrettoError(_write_failed(out, error)) from error
    except asyncio.CancelledError:  # a second interrupt
        raise KeyboardInterrupt from None


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
    for hook, rule in in_order(config).items():  # what is saved says it once more, so that it can be read back
        setattr(config.control, hook, rule)
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
        job.out / "events.jsonl", loop.time, offsets.get("events.jsonl"), restored.clock_s if restored else 0.0,
        None if job.virtual else loop.call_soon,
    )  # fmt: skip
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
    log.hear(deciding=[view], recording=[metrics, live])
    waits = Waits(log, config.deadlines.warn_s)
    if isinstance(loop, VirtualLoop):
        loop.set_describe(waits.describe)
    try:
        parts = build_parts(job, log, view, waits, metrics)
        if restored is None:
            _log_start(job, log, parts)
        else:
            log.emit("Resumed", version=restored.version, step=restored.version, max_steps=parts.max_steps,
                     tasks=parts.tasks_in_all)  # fmt: skip
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


def _log_start(job: Job, log: EventLog, parts: Parts) -> None:
    c = job.config
    chosen = in_order(c)
    rules = {hook: (chosen.get(hook) or getattr(c.control, hook)).name for hook in HOOKS}
    log.emit(
        "RunStart", format=FORMAT, mode=job.mode, seed=c.seed, lag_bound=c.lag_bound, depth=c.pipeline_depth,
        prompts_per_step=c.prompts_per_step, group_size=c.group_size, max_steps=parts.max_steps,
        tasks=parts.tasks_in_all, engines=c.engine.count, slots=c.engine.slots, in_flight=c.control.in_flight,
        rules=rules, version=0, step=0,
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
