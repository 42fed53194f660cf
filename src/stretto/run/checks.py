"""What can be found wrong with a configuration before anything starts; the same before a dry run and a real one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.config.machine import core_count, has_bfloat16
from stretto.config.plugins import build_component, check_component, plugin_errors, probe_user_modules
from stretto.config.rewards import reward_names
from stretto.config.schema import RunConfig
from stretto.control.hooks import build_rules
from stretto.envs.abilities import PromisesLate, RewardsLate
from stretto.envs.base import ENVIRONMENTS, Environment
from stretto.envs.build import build_environment
from stretto.kernel.components import options_of
from stretto.kernel.errors import ConfigError, DataError
from stretto.learner.old_policy.choice import contradictions, route_of
from stretto.models.tokenizer import LightTokenizer
from stretto.rollout.types import LEAST_TEMPERATURE
from stretto.run.engine_needs import check_engine, notes, recorded, vocabulary_of
from stretto.run.spec import Checked
from stretto.runtime.workers.kinds import TORCH, find_kind
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment

if TYPE_CHECKING:  # torch is for those who compute
    from stretto.objectives.base import Objective

_ENVIRONMENT = ("bind", "task", "eval_tasks", "rollout", "text")
_OBJECTIVE = ("needs", "corrects", "advantages", "__call__")
_THREADS_PER_CORE = 4
_SMOLLM2_VOCABULARY = 49152


def check(config: RunConfig, mode: str = "train") -> Checked:
    """Raise a ``StrettoError`` that says what can't work; returns what was built on the way."""
    probe_user_modules(config, mode)
    rules = build_rules(config)
    if mode == "simulate":
        if config.epochs is not None:
            raise ConfigError(f"epochs = {config.epochs:g}: simulate reads no data, so it has no end; give max_steps, "
                              "and epochs=none if a recipe sets it")  # fmt: skip
        return Checked(config, mode, rules, SimulatedEnvironment(costs_of(config)), None, None)
    _check_threads(config, mode)
    find_kind(config, mode)
    check_component(ENVIRONMENTS, config.env, "env", _ENVIRONMENT)
    with plugin_errors("env.name", config.env.name), plugin_errors("reward", ", ".join(reward_names(config.reward))):
        env = build_environment(config)
    _refuse_idle(env, "env")
    objective = _check_objective(config)
    _check_late(config, env, objective)
    _check_rows(config, objective)
    _check_sampling(config)
    _check_whole(config, objective)
    if found := list(contradictions(route_of(config.learner.old_policy, objective), config)):
        raise ConfigError("\n".join(found))
    return Checked(config, mode, rules, env, objective, _check_model(config, mode, env, objective))


def costs_of(config: RunConfig) -> CostModel:
    """The model of hardware behind the virtual clock."""
    return CostModel(
        config.simulation.with_defaults(config.sampling.max_new_tokens, config.engine.max_model_len), config.seed
    )


def warnings(checked: Checked) -> list[str]:
    """What will work, but not as well as it might; said once at the start."""
    config, mode = checked.config, checked.mode
    threads, cores = (config.engine.count + 1) * config.workers.threads, core_count()
    found = []
    if mode != "simulate":
        found = [*_waits_in_vain(checked), *notes(config, find_kind(config, mode).capabilities)]
    if mode != "simulate" and config.learner.bf16 and has_bfloat16() is False:
        found.append(
            "learner.bf16 = true, but this processor has no bfloat16 arithmetic: steps take many times as long as with "
            "learner.bf16=false"
        )
    if mode != "train" or config.workers.kind == "inline" or config.engine.kind != TORCH or threads <= cores:
        return found
    return [
        *found,
        f"{config.engine.count} engine(s) and the learner with workers.threads = {config.workers.threads} share "
        f"{cores} core(s): they will wait for one another",
    ]


def _waits_in_vain(checked: Checked) -> list[str]:
    objective, env = checked.config.objective.name, checked.config.env.name
    if checked.objective is None or "late" not in checked.objective.needs or _promises_late(checked.env):
        return []
    return [f"objective {objective!r} takes late rewards, but env {env!r} promises none"]


def _check_threads(config: RunConfig, mode: str) -> None:
    own = mode == "train" and config.workers.kind == "process" and config.engine.kind == TORCH
    processes = config.engine.count if own else 1
    most = _THREADS_PER_CORE * core_count()
    if (threads := processes * config.workers.threads) > most:
        raise ConfigError(
            f"engine.count x workers.threads = {processes} x {config.workers.threads} = {threads} threads on "
            f"{core_count()} core(s): more than {_THREADS_PER_CORE} per core only get in each other's way. Lower one"
        )


def _check_objective(config: RunConfig) -> Objective:
    from stretto.objectives import REGISTRY, names

    objective = build_component(REGISTRY, config.objective, "objective", _OBJECTIVE)
    name = config.objective.name
    if config.lag_bound > 0 and not objective.corrects and not config.allow_uncorrected:
        correcting = [n for n in names() if getattr(REGISTRY.find(n), "corrects", False)]
        raise ConfigError(
            f"objective.name = {name!r} ignores behaviour log-probabilities, so with lag_bound = "
            f"{config.lag_bound} stale data would go uncorrected. Choose an objective that uses them "
            f"({', '.join(correcting)}), set lag_bound = 0, or set "
            "allow_uncorrected = true"
        )
    _refuse_idle(objective, "objective")
    if "late" in objective.needs and not hasattr(objective, "lifetime"):
        raise ConfigError(
            f"objective.name = {name!r}: its needs name 'late', but it has no attribute `lifetime`: for how many steps?"
        )
    if "late" not in objective.needs:
        for key, section in (("deadlines.late_s", config.deadlines), ("simulation.late", config.simulation)):
            field = type(section).model_fields[key.rpartition(".")[2]]
            value = getattr(section, key.rpartition(".")[2])
            if value != field.get_default(call_default_factory=True):
                raise ConfigError(
                    f"{key} = {value!r} has no effect: objective.name = {name!r} takes no late rewards. Leave it out"
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
    return objective


def _refuse_idle(component: Any, where: str) -> None:
    """Raise ``ConfigError`` for an option that has no effect beside the component's others."""
    for option, why in getattr(component, "idle", {}).items():
        value = getattr(component, option)
        if value != options_of(type(component))[option].default:
            raise ConfigError(f"{where}.{option} = {value!r} has no effect: {why}. Leave it out")


def _promises_late(env: object) -> bool:
    return isinstance(env, PromisesLate) and env.promises_late


def _check_late(config: RunConfig, env: Environment, objective: Objective) -> None:
    """Rewards that arrive after their trajectory need an objective that takes them."""
    if not _promises_late(env):
        return
    if "late" not in objective.needs:
        raise ConfigError(
            f"env.name = {config.env.name!r} promises rewards that arrive after their trajectory, but objective.name = "
            f"{config.objective.name!r} takes none: use 'rac', or let the environment tell the whole reward at once"
        )
    if not isinstance(env, RewardsLate):
        raise ConfigError(f"env.name = {config.env.name!r} promises late rewards, but has no method `late_reward`")


def _check_rows(config: RunConfig, objective: Objective) -> None:
    """What a row of one turn can't tell."""
    if config.learner.rows != "turn":
        return
    name, baseline = config.objective.name, getattr(objective, "baseline", None)
    if getattr(objective, "whole", False):
        raise ConfigError(f"learner.rows = 'turn': objective.name = {name!r} trains complete trajectories only")
    if "values" in objective.needs or baseline not in ("group", "leave-one-out", None):
        raise ConfigError(
            f"learner.rows = 'turn' with objective.name = {name!r}, baseline = {baseline!r}: returns and values run "
            "along a row, and would end with each turn. Use rows = 'trajectory', or a baseline of groups"
        )
    if config.control.loss_mask.name != "all":
        raise ConfigError(
            f"learner.rows = 'turn' counts the turns of a trajectory, but control.loss_mask.name = "
            f"{config.control.loss_mask.name!r} leaves tokens out: set 'all'"
        )


def _check_whole(config: RunConfig, objective: Objective) -> None:
    """Some objectives weigh whole trajectories by what the sampler might have said instead."""
    if not getattr(objective, "whole", False):
        return
    name, sampling, mask = config.objective.name, config.sampling, config.control.loss_mask.name
    if sampling.top_k or sampling.top_p < 1:
        raise ConfigError(
            f"objective.name = {name!r} compares policies over the whole vocabulary, but sampling.top_k = "
            f"{sampling.top_k}, top_p = {sampling.top_p:g} cuts the sampler's: set sampling.top_k = 0 and top_p = 1"
        )
    if mask != "all":
        raise ConfigError(
            f"objective.name = {name!r} trains complete trajectories, but control.loss_mask.name = {mask!r} leaves "
            "tokens out: set 'all'"
        )


def _check_sampling(config: RunConfig) -> None:
    temperature, top_k = config.sampling.temperature, config.sampling.top_k
    if temperature < LEAST_TEMPERATURE or top_k == 1:
        asked = "sampling.top_k = 1" if top_k == 1 else f"sampling.temperature = {temperature:g}"
        raise ConfigError(
            f"{asked} is greedy: all trajectories of a group are alike and nothing trains. Evaluation is greedy by "
            "itself (eval.temperature = 0)"
        )
    if 0 < config.eval.temperature < LEAST_TEMPERATURE:
        raise ConfigError(f"eval.temperature = {config.eval.temperature:g} is greedy in all but name: set 0")


def _check_model(config: RunConfig, mode: str, env: Environment, objective: Objective) -> LightTokenizer | None:
    """Also the model's tokenizer, if it is there."""
    own = None if config.model in ("tiny", "smollm2") else Path(config.model).expanduser()
    if own is not None:
        from stretto.models.resolve import check_directory

        check_directory(own)
    tokenizer = _tokenizer_of(config, env)
    if own is not None and tokenizer is not None:
        from stretto.models.resolve import check_vocabulary

        check_vocabulary(own, tokenizer)
    from stretto.models.fit import check_fit

    check_fit(config)
    size = None
    if config.engine.top_logprobs or "top" in objective.needs:
        size = _vocabulary(config, tokenizer)
    check_engine(config, mode, objective, recorded(config, objective, size))
    if config.sampling.stop and tokenizer is not None:
        stop_ids(config.sampling.stop, tokenizer)
    return tokenizer


def stop_ids(stop: Iterable[str], tokenizer: LightTokenizer) -> list[int]:
    """The ids that each of ``sampling.stop`` is the text of; ``ConfigError`` if one isn't a token of this model."""
    found: list[int] = []
    for text in stop:
        ids = tokenizer.ids_of(text)
        if not ids:
            try:
                parts = len(tokenizer.encode(text))
            except DataError as error:
                raise ConfigError(f"sampling.stop: {text!r} is no token of this model: {error}") from error
            raise ConfigError(
                f"sampling.stop: {text!r} is {parts} tokens for this model; a stop is one token"
                if parts > 1 else f"sampling.stop: {text!r} is no token of this model inside a text"
            )  # fmt: skip
        found += ids
    return found


def _tokenizer_of(config: RunConfig, env: Environment) -> LightTokenizer | None:
    """The tokenizer that a run would have; None for SmolLM2 as long as it isn't converted (``ConfigError`` if it can't
    be)."""
    from stretto.models.tokenizer import alphabet_of, light_char_tokenizer, light_tokenizer

    if config.model == "smollm2":
        from stretto.models.smollm2 import find_gguf, smollm2_path

        if (smollm2_path() / "model.safetensors").is_file():
            return light_tokenizer(smollm2_path())
        find_gguf()
        return None
    if config.model != "tiny":
        return light_tokenizer(Path(config.model).expanduser())
    return light_char_tokenizer(alphabet_of(env))


def _vocabulary(config: RunConfig, tokenizer: LightTokenizer | None) -> int:
    """Tokens that the model gives a probability."""
    if config.model == "smollm2" or tokenizer is None:
        return _SMOLLM2_VOCABULARY
    if config.model == "tiny":
        return tokenizer.vocab_size
    return vocabulary_of(Path(config.model).expanduser())
