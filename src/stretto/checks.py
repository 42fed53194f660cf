"""What can be found wrong with a configuration before anything starts; the same before a dry run and a real one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stretto.config.plugins import build_component, check_component, foreign
from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules, build_rules
from stretto.envs.base import ENVIRONMENTS
from stretto.envs.build import build_environment
from stretto.errors import ConfigError, DataError

_ENVIRONMENT = ("bind", "task", "eval_tasks", "rollout", "text")
_OBJECTIVE = ("needs", "corrects", "advantages", "__call__")
_GREEDY_BELOW = 1e-3
"""Below this temperature sampling is greedy in all but name, and its inverse may overflow."""
_THREADS_PER_CORE = 4


def check(config: RunConfig, mode: str = "train") -> Rules:
    """Raise a ``StrettoError`` that says what can't work; returns the rules, built."""
    rules = build_rules(config)
    if mode == "simulate":
        return rules
    _check_threads(config, mode)
    check_component(ENVIRONMENTS, config.env, "env", _ENVIRONMENT)
    with foreign("env.name", config.env.name), foreign("reward", config.reward):
        env = build_environment(config)
    _check_objective(config)
    _check_sampling(config)
    _check_model(config, env)
    return rules


def remarks(config: RunConfig, mode: str) -> list[str]:
    """What will work, but not as well as it might; said once at the start."""
    threads, cores = (config.engine.count + 1) * config.workers.threads, core_count()
    if mode != "train" or config.workers.kind == "inline" or threads <= cores:
        return []
    return [
        f"{config.engine.count} engine(s) and the learner with workers.threads = {config.workers.threads} share "
        f"{cores} core(s): they will wait for one another"
    ]


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_threads(config: RunConfig, mode: str) -> None:
    processes = config.engine.count if mode == "train" and config.workers.kind == "process" else 1
    most = _THREADS_PER_CORE * core_count()
    if (threads := processes * config.workers.threads) > most:
        raise ConfigError(
            f"engine.count x workers.threads = {processes} x {config.workers.threads} = {threads} threads on "
            f"{core_count()} core(s): more than {_THREADS_PER_CORE} per core only get in each other's way. Lower one"
        )


def _check_objective(config: RunConfig) -> None:
    from stretto.objectives import REGISTRY, names

    objective: Any = build_component(REGISTRY, config.objective, "objective", _OBJECTIVE)
    name = config.objective.name
    if config.lag_bound > 0 and not objective.corrects and not config.allow_uncorrected:
        correcting = [n for n in names() if getattr(REGISTRY.find(n), "corrects", False)]
        raise ConfigError(
            f"objective.name = {name!r} ignores behaviour log-probabilities, so with lag_bound = "
            f"{config.lag_bound} stale data would go uncorrected. Choose an objective that uses them "
            f"({', '.join(correcting)}), set lag_bound = 0, or set "
            "allow_uncorrected = true"
        )
    critic = config.learner.critic.kind
    if "values" in objective.needs and critic == "none":
        raise ConfigError(f"objective.name = {name!r} needs a critic: set learner.critic.kind to 'head' or 'network'")
    if "values" not in objective.needs and critic != "none":
        raise ConfigError(
            f"learner.critic.kind = {critic!r}, but objective.name = {name!r} uses no values: set 'none', or "
            "objective.baseline = 'gae'"
        )
    baseline = getattr(objective, "baseline", None)
    if config.group_size == 1 and baseline in ("group", "leave-one-out"):
        raise ConfigError(
            f"group_size = 1 with objective.baseline = {baseline!r}: a trajectory alone is its own baseline, so every "
            "advantage is 0 and nothing trains. Set group_size >= 2, or objective.baseline = 'none'"
        )


def _check_sampling(config: RunConfig) -> None:
    temperature, top_k = config.sampling.temperature, config.sampling.top_k
    if temperature < _GREEDY_BELOW or top_k == 1:
        asked = "sampling.top_k = 1" if top_k == 1 else f"sampling.temperature = {temperature:g}"
        raise ConfigError(
            f"{asked} is greedy: all trajectories of a group are alike and nothing trains. Evaluation is greedy by "
            "itself (eval.temperature = 0)"
        )
    if 0 < config.eval.temperature < _GREEDY_BELOW:
        raise ConfigError(f"eval.temperature = {config.eval.temperature:g} is greedy in all but name: set 0")


def _check_model(config: RunConfig, env: Any) -> None:
    if config.model not in ("tiny", "smollm2"):
        from stretto.models.resolve import check_directory

        check_directory(Path(config.model).expanduser())
    if config.model == "smollm2" or not (config.engine.top_logp or config.sampling.stop):
        return  # what the tokens are is known when the model is there
    tokenizer = _tokenizer(config, env)
    stop_ids(config.sampling.stop, tokenizer)
    if config.engine.top_logp > (size := _vocabulary(config, tokenizer)):
        raise ConfigError(f"engine.top_logp = {config.engine.top_logp}: the model's vocabulary has {size} tokens")


def stop_ids(stop: Iterable[str], tokenizer: Any) -> list[int]:
    """The token of each of ``sampling.stop``; ``ConfigError`` if one isn't a token of this model."""
    found = []
    for text in stop:
        try:
            ids = tokenizer.encode(text).tolist()
        except DataError as error:
            raise ConfigError(f"sampling.stop: {text!r} is no token of this model: {error}") from error
        if len(ids) != 1:
            raise ConfigError(f"sampling.stop: {text!r} is {len(ids)} tokens for this model; a stop is one token")
        found += ids
    return found


def _tokenizer(config: RunConfig, env: Any) -> Any:
    from stretto.models.tokenizer import LightTokenizer, char_tokenizer, light_tokenizer

    if config.model != "tiny":
        return light_tokenizer(Path(config.model).expanduser())
    from stretto.models.tiny import alphabet_of

    built = char_tokenizer(alphabet_of(env))
    return LightTokenizer(built.backend_tokenizer, eos_ids=[built.eos_token_id])


def _vocabulary(config: RunConfig, tokenizer: Any) -> int:
    """Tokens that the model gives a probability."""
    if config.model == "tiny":
        return int(tokenizer.vocab_size)
    description = json.loads((Path(config.model).expanduser() / "config.json").read_text())
    size = description.get("vocab_size") or (description.get("text_config") or {}).get("vocab_size")
    return int(size or tokenizer.vocab_size)
