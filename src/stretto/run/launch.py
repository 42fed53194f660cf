"""From a validated configuration to a finished run: builds what it is made of, runs the loop, sums it up.

Three modes, one wiring: ``train`` (wall clock, worker processes), ``rehearse`` (virtual clock, real sampling and
updates), ``simulate`` (virtual clock, nothing computed).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from pathlib import Path

from stretto.config.load import read_source, to_toml, validate
from stretto.config.schema import RunConfig
from stretto.control.hooks import HOOKS, in_order
from stretto.control.view import View
from stretto.data.identity import POLICY
from stretto.kernel.clock import VirtualLoop, WallLoop, few_collections, run_virtual
from stretto.kernel.components import said_where
from stretto.kernel.containment import no_way_out
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.kernel.events import EventLog, Listener
from stretto.kernel.logfile import FORMAT, GZIP, PLAIN, find_log, read_blocks, stream_events
from stretto.kernel.signals import Interrupted, Signals, hear
from stretto.kernel.waits import Waits
from stretto.observe.live import LiveView
from stretto.observe.metrics import MetricsWriter
from stretto.observe.report import write_report
from stretto.observe.summary import Figures, Summary, summarize
from stretto.observe.trackers import make_trackers
from stretto.run import rundir
from stretto.run.checks import check, warnings
from stretto.run.readiness import check_ready
from stretto.run.result import Result, result_of
from stretto.run.spec import Checked, OnProgress, RunSpec
from stretto.run.wiring import build_context, load_model
from stretto.run.workers import worker_pool_of
from stretto.runtime.context import Outcome, RunContext
from stretto.runtime.failures import explained
from stretto.runtime.inputs import compare, take
from stretto.runtime.length import run_length
from stretto.runtime.manifest import Restored, check_logs, load_checkpoint, set_aside_newer
from stretto.runtime.orchestrator import Orchestrator
from stretto.runtime.stopping import stoppable


def check_start(
    config: RunConfig, mode: str, resume: Path | None = None, on_progress: OnProgress = lambda line: None
) -> None:
    """Everything that can be found wrong before anything starts, the run's directory included. Changes nothing.
    ``on_progress`` hears what a resumed run would say of its learning rate."""
    checked = _check(config, mode, resume)
    if resume is None:
        rundir.check_new(Path(config.out_dir))
        rundir.check_free(Path(config.out_dir))
    else:
        rundir.check_free(Path(config.out_dir))
        view = checked.rules.view()
        restored = _restore(config, mode, resume, view)
        if restored is not None:
            out, model_dir = Path(config.out_dir), None
            if checked.bound:
                from stretto.models.resolve import find_model

                model_dir = find_model(config, checked.env)
            compare(out, restored.inputs, take(config, checked.env, model_dir), checked.env, config.accept_changed)
            before = validate(read_source(str(out / "config.toml"))).learner
            run = RunSpec(checked, out, restored, on_progress, before=before)
            run.rates(view.max_steps, run_length(config, checked.env.epoch_size)[0])


def _check(config: RunConfig, mode: str, resume: Path | None) -> Checked:
    """What both a dry run and a start look at before the run's directory."""
    checked = check(config, mode)
    check_ready(checked)
    if config.accept_changed and resume is None:
        raise ConfigError("accept_changed is for --resume: a new run has nothing that could have changed")
    return checked


def launch(config: RunConfig, mode: str, *, resume: Path | None = None, saves: bool = True) -> Result:
    """Run to the end; returns what ``--json`` prints. ``resume``: a run directory or one of its checkpoints.

    A signal that ends commands raises ``Interrupted``; from the start-up of the workers on, the first one lets the run
    save and return, with ``signal`` in the result (``saves`` False: no, what runs here is not to be gone on with).
    """
    if not saves:
        return _launch(config, mode, resume, None)
    with hear() as signals:
        return _launch(config, mode, resume, signals)


def _launch(config: RunConfig, mode: str, resume: Path | None, signals: Signals | None) -> Result:
    """``launch``; ``signals``: those that end it in order."""
    checked = _check(config, mode, resume)
    out = Path(config.out_dir)
    if resume is None:
        rundir.check_new(out)
        rundir.check_free(out)
        rundir.make(out)
    try:
        with rundir.hold(out):
            return _held(checked, out, resume, signals)
    except OSError as error:
        if error.errno is None:  # no file's fault: a TimeoutError that a timer of the user's code raised, say
            raise StrettoError(
                f"{said_where(error)}. If a timer raised it (signal.alarm, signal.setitimer): an environment must "
                "clear its timers before it returns, and can call what may hang by client.call. "
                f"{rundir.what_next(out)}"
            ) from error
        where = f"{error.filename}" if error.filename else str(out)
        raise StrettoError(
            f"can't read or write {where}: {error.strerror or error}. Make room (or fix what is wrong there). "
            f"{rundir.what_next(out)}"
        ) from error
    except asyncio.CancelledError:  # a second signal, or the first one's deadline
        if signals is None or not signals.came:
            raise
        why = f"deadlines.stop_s = {config.deadlines.stop_s:g} s is over" if signals.expired else ""
        raise Interrupted(signals.came[0], why) from None


def _held(checked: Checked, out: Path, resume: Path | None, signals: Signals | None) -> Result:
    """``launch``, in a directory that is ours alone."""
    config, mode, view, figures = checked.config, checked.mode, checked.rules.view(), Figures()
    live = LiveView(
        config.logging.console, config.max_steps, lag_bound=config.lag_bound, virtual=mode != "train",
        max_new_tokens=config.sampling.max_new_tokens, health=figures.health,
    )  # fmt: skip
    restored = _restore(config, mode, resume, view, figures, live.recall) if resume is not None else None
    figures.health.fresh()  # what was found before was said before
    if restored is not None and (over := _finished(config, mode, out, restored)) is not None:
        with live:
            live.progress(
                f"{out} has trained all its {restored.version} steps: nothing to do (a higher max_steps goes on)"
            )
        return over
    again = resume is not None and restored is None
    started = time.perf_counter()
    try:
        with live, worker_pool_of(config, mode, out) as worker_pool:
            if again:
                live.progress(f"{out} had trained nothing yet: it begins again")
            for line in warnings(checked):
                live.progress(line)
            run = RunSpec(checked, out, restored, live.progress, *load_model(checked, live.progress), worker_pool,
                          live.working, live.samples)  # fmt: skip
            run.inputs = take(config, run.env, run.model_dir)
            if restored is not None:
                for line in compare(out, restored.inputs, run.inputs, run.env, config.accept_changed):
                    live.progress(line)
                run.before = validate(read_source(str(out / "config.toml"))).learner
            _prepare(config, out, restored, again)
            if run.virtual:
                done = run_virtual(_run(run, live, view, figures, again, signals), VirtualLoop())
            else:
                with few_collections(), asyncio.Runner(loop_factory=WallLoop) as runner:
                    done = runner.run(_run(run, live, view, figures, again, signals))
    except Exception as error:
        if not (begun := find_log(out) is not None) and isinstance(error, StrettoError):
            raise
        if begun and config.logging.report:
            with contextlib.suppress(Exception):  # what ended the run matters more
                write_report(out)
        if (told := explained(error, config, out)) is None:
            raise
        if begun:
            told.add_note(rundir.what_next(out))
        raise told from (None if told is error else error)
    outcome, summary, sha256 = done
    if config.logging.report:
        write_report(out)
    result = result_of(mode, out, outcome.reason, summary, sha256, time.perf_counter() - started)
    if signals is not None and signals.first is not None:
        result["signal"] = str(signals.first)
    return result


def _restore(config: RunConfig, mode: str, resume: Path, *hear: Listener) -> Restored | None:
    """The checkpoint to go on from, verified; ``hear`` hears of the events up to it. None if the run ended before it
    had trained anything. Changes nothing."""
    out = Path(config.out_dir)
    rundir.check_mode(out, mode)
    checkpoint = rundir.find_checkpoint(resume)
    if checkpoint is None:
        return None
    restored = load_checkpoint(checkpoint)
    if config.max_steps < restored.version:
        raise ConfigError(
            f"max_steps = {config.max_steps} is below the {restored.version} steps that {out} has trained. It counts "
            f"from the run's beginning: for 100 more steps give max_steps={restored.version + 100}, or leave it out. "
            "To go back, resume from an earlier checkpoint"
        )
    check_logs(out, restored)
    for event in stream_events(out, restored.log_bytes, strict=True):
        for listener in hear:
            listener(event)
    return restored


def _finished(config: RunConfig, mode: str, out: Path, restored: Restored) -> Result | None:
    """What the run printed at its end, if there is nothing left to do."""
    if restored.version < config.max_steps:
        return None
    summary = summarize(stream_events(out, strict=True))
    if summary["reason"] != "done":
        return None  # it was killed in the middle of its end
    log = find_log(out)
    assert log is not None
    digest = hashlib.sha256()
    for text in read_blocks(log):
        digest.update(text)
    return result_of(mode, out, "done", summary, digest.hexdigest(), 0.0)


def _prepare(config: RunConfig, out: Path, restored: Restored | None, again: bool) -> None:
    """Make the directory ready for what comes; ``again``: it held a run that had trained nothing."""
    if restored is None and not again:
        rundir.check_contents(out)  # once more, now that nobody else can come between
    elif restored is not None:
        set_aside_newer(restored.learner_dir.parent)
    for hook, rule in in_order(config).items():  # what is saved says it once more, so that it can be read back
        setattr(config.control, hook, rule)
    # what was accepted once is no licence for the next time
    part = out / "config.toml.part"
    part.write_text(to_toml(config.model_copy(update={"accept_changed": []})))
    part.replace(out / "config.toml")  # whole or not at all: a run goes on from it


async def _run(
    run: RunSpec, live: LiveView, view: View, figures: Figures, again: bool, signals: Signals | None
) -> tuple[Outcome, Summary, str]:
    """How the run ended, its figures (counted as the events came), the SHA-256 of its event log. The listeners have
    heard of the events up to the checkpoint; ``again``: logs of an earlier beginning step aside."""
    config, restored = run.config, run.restored
    loop = asyncio.get_running_loop()
    offsets = restored.offsets if restored is not None else {"metrics.jsonl": 0} if again else {}
    metrics = MetricsWriter(
        run.out,
        trackers=make_trackers(run.out, config.logging, name=config.name, config=config.model_dump(mode="json"),
                               step=restored.version if restored else None),
        offset=offsets.get("metrics.jsonl"),
        figures=figures,
    )  # fmt: skip
    path = find_log(run.out) or run.out / (GZIP if config.logging.events == "gzip" else PLAIN)
    begin = 0 if again else None
    log = EventLog(
        path, loop.time, restored.log_bytes if restored else begin, restored.clock_s if restored else 0.0,
        None if run.virtual else loop.call_soon,
    )  # fmt: skip
    metrics.on_row.append(live.on_row)
    log.hear(deciding=[view], recording=[metrics, live])
    waits = Waits(log, config.deadlines.warn_s)
    if isinstance(loop, VirtualLoop):
        loop.set_describe(waits.describe)
    try:
        context = build_context(run, log, view, waits, metrics)
        if restored is None:
            _log_start(run, log, context)
        else:
            rates = run.rates(view.max_steps, context.max_steps)
            log.emit("Resumed", version=restored.version, step=restored.version, max_steps=context.max_steps,
                     tasks=context.tasks_in_all, **({} if rates is None else {"lr": rates}))  # fmt: skip
        orchestrator = Orchestrator(context, restored, figures.evaluated)
        for part in (context.learner, context.scoring, context.late):
            if part is not None and hasattr(part, "hear_death"):
                part.hear_death(orchestrator.fail)
        with no_way_out(), stoppable(orchestrator, live.progress, config.deadlines.stop_s, signals):
            outcome = await orchestrator.run()
        return outcome, figures.summary(log.last), log.close()
    finally:
        try:
            log.close()
        finally:
            metrics.close()


def _log_start(run: RunSpec, log: EventLog, context: RunContext) -> None:
    c = run.config
    chosen = in_order(c)
    rules = {hook: (chosen.get(hook) or getattr(c.control, hook)).name for hook in HOOKS}
    log.emit(
        "RunStart", format=FORMAT, mode=run.mode, policy=POLICY, seed=c.seed, lag_bound=c.lag_bound,
        depth=c.pipeline_depth, prompts_per_step=c.prompts_per_step, group_size=c.group_size,
        max_steps=context.max_steps, tasks=context.tasks_in_all, drop_last=c.drop_last, engines=c.engine.count,
        max_num_seqs=c.engine.max_num_seqs, in_flight=c.control.in_flight, rules=rules,
        guarantees=run.rules.guarantees, version=0, step=0,
        **({} if context.late is None else {"late_lifetime": context.late.queue.lifetime}),
    )  # fmt: skip
