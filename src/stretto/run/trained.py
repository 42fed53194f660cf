"""What a run has trained: played on held-out tasks, or talked to. The parts are those of a run; nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from stretto.config.load import load_config, load_resumed
from stretto.config.plugins import plugin_errors
from stretto.config.schema import RunConfig
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Environment, Task
from stretto.envs.build import build_environment, scoring_imports
from stretto.envs.scoring import ScoringPool
from stretto.kernel.errors import CheckpointError, ConfigError, DataError
from stretto.kernel.events import EventLog
from stretto.kernel.logfile import Event
from stretto.models.resolve import check_directory, check_vocabulary, resolve_model
from stretto.models.tokenizer import LightTokenizer, light_tokenizer
from stretto.observe.samples import by_role
from stretto.rollout.types import Request, SamplingParams
from stretto.run import rundir
from stretto.run.checks import stop_ids
from stretto.run.wiring import bind
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.evaluate import Evaluator, succeeded
from stretto.runtime.failures import Failures, readable
from stretto.runtime.manifest import latest, load_checkpoint
from stretto.runtime.workers.inline import InlineEngine
from stretto.weights.in_process import InProcess

if TYPE_CHECKING:
    from stretto.models.forward import Weights
    from stretto.rollout.engine import TorchEngine

OnProgress = Callable[[str], None]
_CHAT_TOKENS = 4096


@dataclass(frozen=True)
class Trained:
    """A policy: ``directory`` in Transformers format, or, of a run that hasn't saved its model, ``checkpoint`` over the
    model that it began with. ``version``: of the weights, None if it isn't known."""

    config: RunConfig
    directory: Path
    checkpoint: Path | None
    version: int | None


def find(path: Path, settings: Sequence[str], recipe: str | None = None, on_progress: OnProgress = print) -> Trained:
    """The policy at ``path``: a run, one of its checkpoints, or a model's directory, which needs a ``recipe`` for the
    environment and how to sample. ``settings`` overrule the run's or the recipe's. Raises ``StrettoError``."""
    is_checkpoint = (path / "manifest.json").exists()
    if not path.exists():
        raise DataError(f"{path}: no such directory; give a run, one of its checkpoints, or a model's directory")
    if not is_checkpoint and not (path / "config.toml").exists():
        if not (path / "config.json").exists():
            raise DataError(f"{path}: neither a run (config.toml) nor a model in Transformers format (config.json)")
        check_directory(path)
        if recipe is None:
            raise ConfigError(f"{path} is a model without a run: --recipe NAME says what it is played on")
        return Trained(load_config(recipe, [*settings, f"model={path}"], "train"), path, None, None)
    if recipe is not None:
        raise ConfigError(f"--recipe is for a model without a run; {path} has its own")
    run = rundir.run_of(path)
    if rundir.mode_of(run) == "simulate":
        raise ConfigError(f"{run} was simulated: it has no model")
    config = load_resumed(str(run / "config.toml"), settings, None)
    if not is_checkpoint and (run / "model" / "config.json").exists():
        return Trained(config, run / "model", None, None)
    checkpoint = path if is_checkpoint else latest(run / "checkpoints")
    if checkpoint is None:
        raise CheckpointError(f"{run} has neither a model/ nor a complete checkpoint yet")
    restored = load_checkpoint(checkpoint)
    return Trained(config, resolve_model(config, build_environment(config), on_progress), restored.learner_dir,
                   restored.version)  # fmt: skip


class Answered(TypedDict):
    """One answer. ``answer``: the expected one; ``reward``: None if it is absent."""

    task: int
    answer: str | float | None
    reward: float | None
    text: str
    prompt: str
    completion: str


class Evaluation(TypedDict):
    """What ``evaluate`` found; rates are shares of all answers (``solved``: of tasks)."""

    tasks: int
    samples: int
    temperature: float
    version: int | None
    accuracy: float
    reward: float
    solved: float
    failed: int
    faults: list[str]
    answers: list[Answered]


def build_engine(policy: Trained, eos_ids: Sequence[int], max_model_len: int, max_num_seqs: int) -> TorchEngine:
    """A passive engine that serves this policy as version 0."""
    from stretto.learner.build import build_learner
    from stretto.rollout.build import build_engine as build

    config = policy.config
    own = config.engine.model_copy(update={"max_model_len": max_model_len, "max_num_seqs": max_num_seqs})
    engine = build(policy.directory, own, config.seed, eos_ids)
    weights: Weights = {}
    if policy.checkpoint is not None:
        learner = build_learner(policy.directory, config, config.max_steps)
        learner.load(policy.checkpoint)
        weights = learner.weights()
    engine.load(0, weights)
    return engine


def sampling_of(config: RunConfig, tokenizer: LightTokenizer) -> SamplingParams:
    """How the run sampled."""
    s = config.sampling
    stop = (*tokenizer.eos_ids, *stop_ids(s.stop, tokenizer))
    return SamplingParams(s.temperature, s.top_p, s.top_k, s.max_new_tokens, stop)


def evaluate(policy: Trained, *, samples: int = 1, on_progress: OnProgress = print) -> Evaluation:
    """Play the run's held-out tasks, ``samples`` times each: how many, accuracy (share whose reward reaches
    ``eval.success_threshold``), mean reward, the share of tasks solved at least once,
    rewards by task, failures. ``ConfigError`` if that can't be."""
    config = policy.config
    if samples > 1 and config.eval.temperature == 0:
        raise ConfigError(f"--samples {samples} with temperature 0: all answers to a task are alike; set --temperature")
    with plugin_errors("env.name", config.env.name):
        env = build_environment(config)
        tokenizer = light_tokenizer(policy.directory)
        check_vocabulary(policy.directory, tokenizer)
        bind(config, env, tokenizer, on_progress)
        tasks = env.eval_tasks(config.eval.tasks)
    if not tasks:
        raise ConfigError(
            f"env.name = {config.env.name!r} has no held-out tasks (eval.tasks = {config.eval.tasks}): nothing to play"
        )
    on_progress(f"playing {len(tasks)} held-out tasks, {samples} answer{'s' * (samples > 1)} each")
    engine = build_engine(policy, tokenizer.eos_ids, config.engine.max_model_len, config.engine.max_num_seqs)
    played, faults = asyncio.run(_play(config, env, tokenizer, engine, tasks, samples))
    rewards: dict[int, list[float | None]] = {task.index: [] for task in tasks}
    for task, trajectory in played:
        rewards[task.index].append(trajectory.reward)
    every = [r for of in rewards.values() for r in of if r is not None]
    text = readable(env, Failures(None), on_progress)
    decode = partial(tokenizer.decode, special=True)
    total, bar = len(tasks) * samples, config.eval.success_threshold
    return {
        "tasks": len(tasks), "samples": samples, "temperature": config.eval.temperature, "version": policy.version,
        "accuracy": sum(succeeded(r, bar) for r in every) / total, "reward": sum(every) / total,
        "solved": sum(any(succeeded(r, bar) for r in of) for of in rewards.values()) / len(tasks),
        "failed": total - len(every), "faults": faults,
        "answers": [
            _answered(task, trajectory, text(trajectory), decode) for task, trajectory in played
        ],
    }  # fmt: skip


def _answered(task: Task, trajectory: Trajectory, text: str, decode: Callable[[Sequence[int]], str]) -> Answered:
    given, sampled = by_role(trajectory, decode)
    return {"task": task.index, "answer": _plain(task.answer), "reward": trajectory.reward, "text": text,
            "prompt": given, "completion": sampled}  # fmt: skip


def _plain(value: object) -> str | float | None:
    return value if isinstance(value, str | int | float | bool | None) else str(value)


async def _play(
    config: RunConfig,
    env: Environment,
    tokenizer: LightTokenizer,
    engine: TorchEngine,
    tasks: Sequence[Task],
    samples: int,
) -> tuple[list[tuple[Task, Trajectory]], list[str]]:
    loop = asyncio.get_running_loop()
    log, played, faults = EventLog(None, loop.time), [], []

    def hear(event: Event) -> None:
        if event["e"] == "Fault":
            faults.append(f"{event['where']}: {event['what']}")

    def keep(version: int, found: list[tuple[Task, Trajectory]]) -> None:
        played.extend(found)

    log.hear(deciding=[hear])
    handle = InlineEngine("engine-0", engine, None, config.engine.decode_steps, InProcess())
    engines = EnginePool([handle], log)
    engines["engine-0"].loaded(0)
    scoring = ScoringPool(config.workers.scoring_processes, config.deadlines.score_s, imports=scoring_imports(env))
    evaluator = Evaluator(
        env, [task for task in tasks for _ in range(samples)], sampling_of(config, tokenizer), config.eval.temperature,
        config.seed, scoring, log, config.deadlines.rollout_s, keep,
    )  # fmt: skip
    try:
        await evaluator.run(list(engines), loop.time)
    finally:
        await engines.close()
        await scoring.close()
    return played, faults


def _positions(directory: Path) -> int:
    """How long a text the model takes."""
    description = json.loads((directory / "config.json").read_text())
    return int(description.get("max_position_embeddings") or _CHAT_TOKENS)


class Conversation:
    """Messages to and fro. With a chat template the policy sees them all; without one each text stands alone."""

    def __init__(self, policy: Trained, *, temperature: float, max_new_tokens: int, system: str | None = None) -> None:
        self._tokenizer = light_tokenizer(policy.directory)
        self.has_template = self._tokenizer.chat_template is not None
        if system is not None and not self.has_template:
            raise ConfigError("--system needs a chat template, and this model has none")
        sampling = sampling_of(policy.config, self._tokenizer)
        self._sampling = replace(sampling, temperature=temperature, max_new_tokens=max_new_tokens)
        room = max(policy.config.engine.max_model_len, min(_CHAT_TOKENS, _positions(policy.directory)))
        self._engine = build_engine(policy, self._tokenizer.eos_ids, room, 1)
        self._room = room
        self._messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self._turn = 0

    def say(self, text: str) -> Iterator[str]:
        """The answer to ``text``, piece by piece as it is sampled."""
        messages = [*self._messages, {"role": "user", "content": text}]
        ids = self._tokenizer.chat(messages) if self.has_template else self._tokenizer.encode_prompt(text)
        if len(ids) + self._sampling.max_new_tokens > self._room:
            raise DataError(f"the conversation has {len(ids)} tokens; with {self._sampling.max_new_tokens} new ones it "
                            f"is longer than {self._room}: start a new one, or lower --max-tokens")  # fmt: skip
        self._turn += 1
        turn = self._turn
        request = Request(turn, turn, turn, np.asarray(ids, np.int32), self._sampling, noise_key=turn)
        self._engine.add([request])
        shown, answer = "", None
        while answer is None:
            finished = dict(self._engine.advance(1).finished)
            answer = finished.get(request.id)
            partial = answer if answer is not None else self._engine.snapshot().get(request.id)
            now = "" if partial is None else self._tokenizer.decode(partial.tokens)
            if answer is None:
                now = now.removesuffix("\ufffd")  # half of a character
            if now.startswith(shown) and len(now) > len(shown):
                yield now[len(shown) :]
                shown = now
        self._messages = [*messages, {"role": "assistant", "content": self._tokenizer.decode(answer.tokens)}]

    def close(self) -> None:
        """Forget what was said."""
        with contextlib.suppress(IndexError):
            self._messages = self._messages[:1] if self._messages[0]["role"] == "system" else []
