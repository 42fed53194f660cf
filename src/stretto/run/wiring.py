"""The parts of a run, wired: environment, sampling, workers, scoring, evaluation, samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stretto.config.schema import RunConfig
from stretto.control.placement import placement, redirection
from stretto.control.version_pinning import may_pin
from stretto.control.view import View
from stretto.data.identity import Role
from stretto.data.trajectory import Trajectory
from stretto.envs.abilities import ChecksPrompts
from stretto.envs.base import Environment, Task
from stretto.envs.build import scoring_imports
from stretto.envs.scoring import InlineScoring, ScoringPool
from stretto.envs.scoring_waiting import WaitingScoring
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.learner.old_policy.choice import DURING_ROLLOUT, route_of
from stretto.learner.result import StepResult
from stretto.models.tokenizer import LightTokenizer, light_tokenizer
from stretto.observe.metrics import MetricsWriter
from stretto.observe.samples import expected, lines_of, ratios_of, sample_of, spread, write_evaluation, write_samples
from stretto.pool.group import Group
from stretto.pool.old_logprobs import OldLogprobs
from stretto.rollout.types import SamplingParams
from stretto.run.checks import costs_of, stop_ids
from stretto.run.engine_needs import recorded
from stretto.run.spec import Checked, OnProgress, RunSpec
from stretto.run.workers import build_workers, slice_size
from stretto.runtime.context import RunContext
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.evaluate import Evaluator
from stretto.runtime.failures import Failures, readable
from stretto.runtime.late import LateRewards
from stretto.runtime.length import run_length
from stretto.simulation.env import DelayedEnvironment

if TYPE_CHECKING:  # torch is for those who compute
    from stretto.objectives.interface import AwaitsRewards


def build_context(run: RunSpec, log: EventLog, view: View, waits: Waits, metrics: MetricsWriter) -> RunContext:
    """Everything that the orchestrator needs, built but not started."""
    config = run.config
    env = run.env
    max_steps, tasks_in_all = run_length(config, env.epoch_size)
    costs = costs_of(config) if run.virtual else None
    scoring = _scoring(run, log)
    sampling = _sampling(run)
    handles, learner = build_workers(run, log, waits, costs, max_steps)
    engines = EnginePool(
        handles,
        log,
        keeps=may_pin(config),
        placement=placement(run.rules.router, view),
        redirection=redirection(run.rules.router, view),
    )
    evaluator = None
    if config.eval.tasks and run.mode != "simulate":
        tasks = env.eval_tasks(config.eval.tasks)
        if tasks:
            evaluator = Evaluator(
                env, tasks, sampling, config.eval.temperature, config.seed, scoring, log, config.deadlines.rollout_s,
                partial(_keep, run, _texts(run, log)), run.working, config.eval.success_threshold,
            )  # fmt: skip
    if run.mode == "rehearse" and costs is not None:
        env = DelayedEnvironment(env, costs)
    late = None if run.mode == "simulate" else _late(run, env, log, scoring)
    return RunContext(
        config=config, rules=run.rules, env=env, engines=engines, learner=learner, scoring=scoring, sampling=sampling,
        log=log, view=view, waits=waits, out=run.out, max_steps=max_steps, tasks_in_all=tasks_in_all,
        evaluator=evaluator, on_step=_recorder(run, env, log), on_progress=run.on_progress,
        kill=(lambda: None) if run.worker_pool is None else run.worker_pool.kill,
        offsets=lambda: {"metrics.jsonl": metrics.offset}, slice_size=slice_size(run), late=late,
        inputs=run.inputs, **_recorded(run),
    )  # fmt: skip


def _texts(run: RunSpec, log: EventLog) -> Callable[[Trajectory], str]:
    return readable(run.env, Failures(run.out), lambda what: log.emit("Fault", where="env.text", what=what))


def _keep(run: RunSpec, text: Callable[[Trajectory], str], version: int, played: list[tuple[Task, Trajectory]]) -> None:
    """Writes what an evaluation gave, and shows some of it."""
    decode = partial(run.env.tokenizer.decode, special=True)  # type: ignore[attr-defined]
    run.show(lines_of(write_evaluation(run.out, version, played, text=text, decode=decode)))


def _late(run: RunSpec, env: Environment, log: EventLog, scoring: Any) -> LateRewards | None:
    """Late rewards, where the objective takes them."""
    if "late" not in run.objective.needs:
        return None
    objective = cast("AwaitsRewards", run.objective)
    late = LateRewards(env, lifetime=objective.lifetime, log=log, scoring=scoring, seed=run.config.seed,
                       late_s=run.config.deadlines.late_s)  # fmt: skip
    log.hear(deciding=[late])
    return late


def _recorded(run: RunSpec) -> dict[str, Any]:
    """What is recorded of each sampled token: alternatives to it by the engines, old log-probabilities by whom."""
    if run.model_dir is None:  # simulated: no tokens, only numbers of them
        return {}
    top_logprobs, sampled_logprobs = recorded(run.config, run.objective, run.model_dir)
    route = route_of(run.config.learner.old_policy, run.objective)
    old_logprobs = OldLogprobs() if route in DURING_ROLLOUT else None
    return {
        "top_logprobs": top_logprobs,
        "sampled_logprobs": sampled_logprobs,
        "old_route": route,
        "old_logprobs": old_logprobs,
    }


def load_model(checked: Checked, on_progress: OnProgress) -> tuple[Path | None, tuple[int, ...]]:
    """The model's directory (built, converted or the user's; None: a simulation has none) and the ids that end a text.
    The environment is bound then."""
    if checked.mode == "simulate":
        return None, ()
    from stretto.models.resolve import check_vocabulary, resolve_model

    model_dir = resolve_model(checked.config, checked.env, on_progress)
    if checked.tokenizer is None:
        checked.tokenizer = light_tokenizer(model_dir)
    check_vocabulary(model_dir, checked.tokenizer)
    if not checked.bound:
        bind(checked.config, checked.env, checked.tokenizer, checked.notes.append)
        checked.bound = True
    for note in checked.notes:
        on_progress(note)
    return model_dir, checked.tokenizer.eos_ids


def bind(config: RunConfig, env: Environment, tokenizer: LightTokenizer, on_progress: OnProgress) -> None:
    """Give the environment its tokenizer and let it check its prompts."""
    env.bind(tokenizer, config.seed)
    if isinstance(env, ChecksPrompts):
        for note in env.check_prompts(config.engine.max_model_len - 1) or ():
            on_progress(f"note: {note}")
    if not tokenizer.eos_ids and not config.sampling.stop:
        on_progress(
            "note: neither generation_config.json nor config.json nor the tokenizer names an end token: each answer "
            "goes on to sampling.max_new_tokens; name one there, or set sampling.stop"
        )


def _sampling(run: RunSpec) -> SamplingParams:
    s, stop = run.config.sampling, list(run.eos_ids)
    if s.stop and run.mode != "simulate":  # there are no tokens then, only numbers of them
        stop += stop_ids(s.stop, run.env.tokenizer)  # type: ignore[attr-defined]
    return SamplingParams(s.temperature, s.top_p, s.top_k, s.max_new_tokens, tuple(stop))


def _scoring(run: RunSpec, log: EventLog) -> Any:
    """Where rewards and tools run: never in this process."""
    if run.mode == "simulate":
        return InlineScoring()
    score_s, imports, on_event = run.config.deadlines.score_s, scoring_imports(run.env), _scoring_events(log)
    if run.virtual:
        return WaitingScoring(score_s, imports=imports, on_event=on_event)
    return ScoringPool(run.config.workers.scoring_processes, score_s, imports=imports, on_event=on_event)


def _scoring_events(log: EventLog) -> Callable[[str, str, str], None]:
    def hear(kind: str, worker: str, reason: str) -> None:
        if kind == "up":
            log.emit("WorkerUp", worker=worker, role=Role.SCORING)
        else:
            log.emit("WorkerDown", worker=worker, role=Role.SCORING, reason=reason)

    return hear


def _recorder(run: RunSpec, env: Environment, log: EventLog) -> Callable[[int, list[Group], StepResult], None]:
    """Notes what a step's learner warned of, and samples of what it trained on."""
    sample = _sampler(run, env)

    def record(version: int, groups: list[Group], stepped: StepResult) -> None:
        if stepped.reason and not stepped.skipped:  # the reason of a skipped step is in the log already
            log.emit("Fault", where="learner", what=stepped.reason)
        sample(version, groups, stepped)

    return record


def _sampler(run: RunSpec, env: Environment) -> Callable[[int, list[Group], StepResult], None]:
    """Writes a few trajectories of each step in full."""
    n = run.config.logging.rollouts_per_step
    if run.mode == "simulate" or not n:
        return lambda version, groups, stepped: None

    def write(version: int, groups: list[Group], stepped: StepResult) -> None:
        chosen = spread(groups, n)
        decode = env.tokenizer.decode  # type: ignore[attr-defined]
        samples, ratios = [], ratios_of(groups, stepped.ratio)
        for group, row in chosen:
            trajectory, rewards = group.trajectory(row), group.columns["reward"].tolist()
            advantage = None if trajectory.reward is None else trajectory.reward - sum(rewards) / len(rewards)
            samples.append(
                sample_of(trajectory, step=version, version=version, decode=lambda ids: decode(ids, special=True),
                          advantage=advantage, ratio=ratios.get(trajectory.id), answer=expected(env.task(group.id)))
            )  # fmt: skip
        write_samples(run.out, version, samples)

    return write
