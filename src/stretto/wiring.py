"""The parts of a run, wired: environment, sampling, workers, scoring, evaluation, samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stretto.checks import recorded, stop_ids
from stretto.cluster.costs import Costs
from stretto.cluster.engine import ModelledEngine
from stretto.cluster.env import DelayedEnvironment, ModelledEnvironment
from stretto.cluster.learner import ModelledLearner
from stretto.config.learner import LearnerConfig
from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules
from stretto.control.version import may_pin
from stretto.control.view import View
from stretto.envs.base import Environment, Task
from stretto.envs.build import build_environment, scoring_imports
from stretto.envs.scoring import InlineScoring, ScoringPool
from stretto.envs.scoring_waiting import WaitingScoring
from stretto.learner.old_policy.choice import DURING_ROLLOUT, route_of
from stretto.learner.schedule import rate_change
from stretto.models.tokenizer import LightTokenizer, light_tokenizer
from stretto.objectives import get
from stretto.observe.metrics import MetricsWriter
from stretto.observe.samples import expected, lines_of, ratios_of, sample_of, spread, write_evaluation, write_samples
from stretto.pool.scored import Scored
from stretto.rollout.types import SamplingParams
from stretto.runtime.evaluate import Evaluator
from stretto.runtime.events import EventLog
from stretto.runtime.inputs import Inputs
from stretto.runtime.late import LateRewards
from stretto.runtime.length import run_length
from stretto.runtime.manifest import Restored
from stretto.runtime.parts import Parts
from stretto.runtime.waits import Waits
from stretto.runtime.workers.base import EngineHandle, LearnerHandle, Stepped
from stretto.runtime.workers.crew import LEARNER, Crew
from stretto.runtime.workers.inline import InlineEngine, InlineLearner
from stretto.runtime.workers.modelled import ModelledEngineHandle
from stretto.runtime.workers.process import ProcessEngine, ProcessLearner
from stretto.trajectory import Group, Trajectory
from stretto.weights.memory import published_bytes, reserve

Says = Callable[[str], None]


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
    working: Callable[[str, int, int], None] = lambda what, done, total: None
    """Hears how far something long is: what, how many of how many."""
    show: Callable[[list[str]], None] = lambda lines: None
    """Shows what the policy answers."""
    inputs: Inputs = field(default_factory=dict)
    """Fingerprints of what the run depends on."""
    before: LearnerConfig | None = None
    """How the learner was configured up to the checkpoint."""

    def rates(self, steps_before: int, steps_now: int) -> tuple[float, float] | None:
        """Learning rates of the last step before a resume and of the next one, said if the schedule isn't what it was;
        else None."""
        if self.restored is None or self.before is None or self.mode == "simulate":
            return None
        version = self.restored.version
        changed = rate_change(self.before, steps_before, self.config.learner, steps_now, version)
        if changed is not None:
            now = self.config.learner
            ends = f"learner.schedule = {now.schedule!r} now ends at step {steps_now} ({steps_before} before)"
            why = ends if now == self.before else "the learner's settings were changed"
            self.says(
                f"the learning rate goes from {changed[0]:.3g} in step {version - 1} to {changed[1]:.3g} in the next: "
                f"{why}. Set learner.lr, .schedule, .warmup_steps or .final_lr_share with --resume if it shall not"
            )
        return changed

    @property
    def virtual(self) -> bool:
        """Does the run's clock jump?"""
        return self.mode != "train"


def build_parts(job: Job, log: EventLog, view: View, waits: Waits, metrics: MetricsWriter) -> Parts:
    """Everything that the orchestrator needs, built but not started."""
    config = job.config
    env, model_dir, eos_ids = job.env, job.model_dir, job.eos_ids
    max_steps, tasks_in_all = run_length(config, env.epoch_size)
    costs = _costs(config) if job.virtual else None
    scoring = _scoring(job, log)
    sampling = _sampling(job)
    engines, learner = _workers(job, log, waits, costs, model_dir, eos_ids, max_steps)
    evaluator = None
    if config.eval.tasks and job.mode != "simulate":
        tasks = env.eval_tasks(config.eval.tasks)
        if tasks:
            evaluator = Evaluator(
                env, tasks, sampling, config.eval.temperature, config.seed, scoring, log, config.deadlines.rollout_s,
                partial(_keep, job), job.working, config.eval.success_threshold,
            )  # fmt: skip
    if job.mode == "rehearse" and costs is not None:
        env = DelayedEnvironment(env, costs)
    late = None if job.mode == "simulate" else _late(config, env, log, scoring)
    return Parts(
        config=config, rules=job.rules, env=env, engines=engines, learner=learner, scoring=scoring, sampling=sampling,
        log=log, view=view, waits=waits, out=job.out, max_steps=max_steps, tasks_in_all=tasks_in_all,
        evaluator=evaluator, on_step=_recorder(job, env, log), says=job.says,
        kill=(lambda: None) if job.crew is None else job.crew.kill,
        offsets=lambda: {"metrics.jsonl": metrics.offset}, slice_size=slice_size(job), late=late,
        inputs=job.inputs, **_recorded(job),
    )  # fmt: skip


def _costs(config: RunConfig) -> Costs:
    return Costs(config.cluster.drawn(config.sampling.max_new_tokens, config.engine.max_tokens), config.seed)


def _keep(job: Job, version: int, played: list[tuple[Task, Trajectory]]) -> None:
    """Writes what an evaluation gave, and shows some of it."""
    decode = partial(job.env.tokenizer.decode, special=True)  # type: ignore[attr-defined]
    job.show(lines_of(write_evaluation(job.out, version, played, text=job.env.text, decode=decode)))


def _late(config: RunConfig, env: Environment, log: EventLog, scoring: Any) -> LateRewards | None:
    """Late rewards, where the objective takes them."""
    objective: Any = get(config.objective.name, **config.objective.options)
    if "late" not in objective.needs:
        return None
    late = LateRewards(env, lifetime=objective.lifetime, log=log, scoring=scoring, seed=config.seed,
                       late_s=config.deadlines.late_s)  # fmt: skip
    log.hear(deciding=[late])
    return late


def _recorded(job: Job) -> dict[str, Any]:
    """What is recorded of each sampled token: alternatives to it by the engines, old log-probabilities by whom."""
    if job.model_dir is None:  # simulated: no tokens, only numbers of them
        return {}
    objective = get(job.config.objective.name, **job.config.objective.options)
    top_logp, draws = recorded(job.config, objective, job.model_dir)
    route = route_of(job.config.learner.old_policy, objective)
    scored = Scored() if route in DURING_ROLLOUT else None
    return {"top_logp": top_logp, "draws": draws, "old_route": route, "scored": scored}


def slice_size(job: Job) -> int | None:
    """How many trajectories one turn of the event loop starts or takes in at most; see ``Parts``."""
    return None if job.virtual or job.config.lag_bound == 0 else 8


def load_environment(config: RunConfig, mode: str, says: Says) -> tuple[Environment, Path | None, tuple[int, ...]]:
    """The bound environment, the model's directory (built, converted or the user's) and the ids that end a text."""
    if mode == "simulate":
        return ModelledEnvironment(_costs(config)), None, ()
    from stretto.models.resolve import check_vocabulary, resolve_model

    env = build_environment(config)
    model_dir = resolve_model(config, env, says)
    tokenizer = light_tokenizer(model_dir)
    check_vocabulary(model_dir, tokenizer)
    return env, model_dir, bind(config, env, tokenizer, says)


def peek_environment(config: RunConfig, mode: str) -> tuple[Environment, Path | None]:
    """The environment, bound if the model's directory (the second result) is there; builds no model."""
    if mode == "simulate":
        return ModelledEnvironment(_costs(config)), None
    from stretto.models.resolve import find_model

    env = build_environment(config)
    model_dir = find_model(config, env)
    if model_dir is not None:
        bind(config, env, light_tokenizer(model_dir))
    return env, model_dir


def bind(
    config: RunConfig, env: Environment, tokenizer: LightTokenizer, says: Says = lambda line: None
) -> tuple[int, ...]:
    """Give the environment its tokenizer and let it check its prompts; the ids that end a text."""
    env.bind(tokenizer, config.seed)
    if hasattr(env, "check_prompts"):
        for note in env.check_prompts(config.engine.max_tokens - 1) or ():
            says(f"note: {note}")
    if not tokenizer.eos_ids and not config.sampling.stop:
        says(
            "note: neither generation_config.json nor config.json nor the tokenizer names an end token: each answer "
            "goes on to sampling.max_new_tokens; name one there, or set sampling.stop"
        )
    return tokenizer.eos_ids


def _sampling(job: Job) -> SamplingParams:
    s, stop = job.config.sampling, list(job.eos_ids)
    if s.stop and job.mode != "simulate":  # there are no tokens then, only numbers of them
        stop += stop_ids(s.stop, job.env.tokenizer)  # type: ignore[attr-defined]
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
        return engines, InlineLearner(ModelledLearner(), costs, waits, config.deadlines.step_s)
    assert model_dir is not None
    spec: dict[str, Any] = {
        "model_dir": str(model_dir), "threads": config.workers.threads, "seed": config.seed, "eos_ids": eos_ids,
        "engine": config.engine, "config": config, "max_steps": max_steps, "canary": config.eval.canary,
        "own_cores": config.workers.own_cores, "keep_versions": may_pin(config),
    }  # fmt: skip
    if job.virtual or config.workers.kind == "inline":
        import torch

        from stretto.learner.build import build_learner
        from stretto.rollout.build import build_engine

        torch.set_num_threads(config.workers.threads)
        job.says("loading the model")
        inline: list[EngineHandle] = [
            InlineEngine(n, build_engine(model_dir, config.engine, config.seed, eos_ids,
                                         keep_initial=config.eval.canary, keep_versions=may_pin(config)), log, costs,
                         config.engine.steps_per_advance)
            for n in names
        ]  # fmt: skip
        learner = build_learner(model_dir, config, max_steps)
        return inline, InlineLearner(learner, costs, waits, config.deadlines.step_s)
    assert job.crew is not None
    crew, d = job.crew, config.deadlines
    slot_bytes = published_bytes(model_dir, 8 if config.learner.dtype == "float64" else 4)
    spec["slot_bytes"] = slot_bytes
    reserve(crew.memory_fd, slot_bytes)
    shared: dict[str, Any] = {"startup_s": d.startup_s, "shutdown_s": d.shutdown_s}
    restarts = config.workers.max_restarts if config.workers.on_engine_crash == "restart" else 0
    processes: list[EngineHandle] = [
        ProcessEngine(n, spec, log, waits, hatch=partial(crew.hatch, n), publish_s=d.publish_s,
                      max_restarts=restarts, slice_size=slice_size(job), **shared)
        for n in names
    ]  # fmt: skip
    process = ProcessLearner(spec, log, waits, hatch=partial(crew.hatch, LEARNER), step_s=d.step_s, **shared)
    return processes, process


def _scoring(job: Job, log: EventLog) -> Any:
    """Where rewards and tools run: never in this process."""
    if job.mode == "simulate":
        return InlineScoring()
    score_s, imports, on_event = job.config.deadlines.score_s, scoring_imports(job.env), _scoring_events(log)
    if job.virtual:
        return WaitingScoring(score_s, imports=imports, on_event=on_event)
    return ScoringPool(job.config.workers.scoring_processes, score_s, imports=imports, on_event=on_event)


def _scoring_events(log: EventLog) -> Callable[[str, str, str], None]:
    def hear(kind: str, worker: str, reason: str) -> None:
        if kind == "up":
            log.emit("WorkerUp", worker=worker)
        else:
            log.emit("WorkerDown", worker=worker, reason=reason)

    return hear


def _recorder(job: Job, env: Environment, log: EventLog) -> Callable[[int, list[Group], Stepped], None]:
    """Notes what a step's learner warned of, and samples of what it trained on."""
    sample = _sampler(job, env)

    def record(version: int, groups: list[Group], stepped: Stepped) -> None:
        if stepped.reason and not stepped.skipped:  # the reason of a skipped step is in the log already
            log.emit("Fault", where="learner", what=stepped.reason)
        sample(version, groups, stepped)

    return record


def _sampler(job: Job, env: Environment) -> Callable[[int, list[Group], Stepped], None]:
    """Writes a few trajectories of each step in full."""
    n = job.config.logging.rollouts_per_step
    if job.mode == "simulate" or not n:
        return lambda version, groups, stepped: None

    def write(version: int, groups: list[Group], stepped: Stepped) -> None:
        chosen = spread(groups, n)
        decode = env.tokenizer.decode  # type: ignore[attr-defined]
        samples, ratios = [], ratios_of(groups, stepped.ratio)
        for trajectory in chosen:
            (group,) = (g for g in groups if g.id == trajectory.group)
            rewards = [t.reward for t in group.trajectories if t.reward is not None]
            advantage = None if trajectory.reward is None else trajectory.reward - sum(rewards) / len(rewards)
            samples.append(
                sample_of(trajectory, step=version, version=version, decode=lambda ids: decode(ids, special=True),
                          advantage=advantage, ratio=ratios.get(trajectory.id), answer=expected(env.task(group.id)))
            )  # fmt: skip
        write_samples(job.out, version, samples)

    return write
