"""Settings that have no effect beside others, or under one of the three commands: a table of when and why.

A setting that somebody gives and that can't have an effect is an error, in a dry run, too. Who gives it matters: what
a file says may be overruled beside it without a word (``stretto train quickstart model=DIR`` leaves the recipe's warm
start idle), and a file serves all three commands. The configuration that a run saves leaves idle settings out, so
that it loads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.config.simulation import LENGTHS, Distribution
from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    from stretto.config.schema import RunConfig


@dataclass(frozen=True)
class Idle:
    """``keys`` (a section's name means all its keys) have no effect where ``why`` says so."""

    keys: tuple[str, ...]
    why: Callable[[RunConfig], str | None]
    """The reason, or None where they have an effect."""


def _of(section: str, names: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names.split())


def _distribution(section: str) -> tuple[Idle, Idle]:
    def shape(c: RunConfig) -> Distribution:
        found: Distribution = getattr(c.simulation, section) or LENGTHS
        return found

    where = f"simulation.{section}"
    return (
        Idle(_of(where, "sigma"), lambda c: None if shape(c).kind == "lognormal" else
             f"{where}.kind = {shape(c).kind!r} has no such parameter, only 'lognormal' has"),
        Idle(_of(where, "mean"), lambda c: None if shape(c).kind != "uniform" else
             f"{where}.kind = 'uniform' lies between low and high"),
    )  # fmt: skip


def _sft(c: RunConfig) -> str | None:
    return None if c.sft.accuracy > 0 else "sft.accuracy = 0 leaves random weights: there is no start"


BESIDE = (
    Idle(("sft",), lambda c: None if c.model == "tiny" else
         f"model = {c.model!r} comes with its weights; only 'tiny' is built here"),
    Idle(_of("sft", "max_steps batch lr"), _sft),
    Idle(_of("learner.lora", "alpha dropout noisy_ratio targets"), lambda c: None if c.learner.lora.rank else
         "learner.lora.rank = 0 trains all weights, without adapters"),
    Idle(_of("weights", "parts"), lambda c: None if c.learner.lora.rank else
         "learner.lora.rank = 0: there is no adapter that could be published"),
    Idle(_of("learner.lora", "noisy_ratio"), lambda c: None if c.learner.lora.dropout or not c.learner.lora.rank else
         "learner.lora.dropout = 0 makes no noise"),
    Idle(_of("learner", "final_lr_share"), lambda c: None if c.learner.schedule != "constant" else
         "learner.schedule = 'constant' keeps the learning rate"),
    Idle(_of("learner", "max_skipped"), lambda c: None if c.learner.on_nonfinite == "skip" else
         "learner.on_nonfinite = 'stop' ends the run at the first one"),
    Idle(_of("learner.critic", "lr coefficient warmup_steps updates frozen"), lambda c:
         None if c.learner.critic.kind != "none" else "learner.critic.kind = 'none': no critic"),
    Idle(_of("engine", "dtype decode_steps forward"), lambda c: None if c.engine.kind == "torch" else
         f"engine.kind = {c.engine.kind!r} has its own way; only 'torch' is set up so"),
    Idle(_of("workers", "max_restarts"), lambda c: None if c.workers.on_engine_crash == "restart" else
         "workers.on_engine_crash = 'stop' restarts nothing"),
    Idle(_of("deadlines", "startup_s shutdown_s"), lambda c:
         None if c.workers.kind == "process" or c.engine.kind != "torch" else
         "workers.kind = 'inline' starts and ends no worker"),
    Idle(_of("weights", "transport"), lambda c:
         None if c.workers.kind == "process" or c.engine.kind != "torch" else
         "workers.kind = 'inline' keeps learner and engines in one process, and weights with them"),
    Idle(_of("eval", "every temperature at_start weight_drift"), lambda c: None if c.eval.tasks else
         "eval.tasks = 0: no evaluation takes place"),
    Idle(_of("logging", "wandb_project"), lambda c: None if c.logging.wandb else
         "logging.wandb = false sends nothing to Weights & Biases"),
    Idle(_of("simulation", "forgetting"), lambda c: None if c.control.pool.name not in ("keep", "drop-oldest") else
         f"control.pool.name = {c.control.pool.name!r} doesn't ask how far the policy has moved"),
    *_distribution("env"), *_distribution("late"), *_distribution("lengths"),
)  # fmt: skip
"""Idle beside other settings, whatever the command."""

_PROCESSES = (*_of("workers", "kind own_cores on_engine_crash max_restarts"), *_of("deadlines", "startup_s shutdown_s"),
              "weights.transport")  # fmt: skip
_SAMPLED = _of("simulation", "turns lengths prompt_tokens reward_probability forgetting")
_NO_TOKENS = (
    "model", "reward", "reward_options", "env", "objective", "learner", "sft", "eval", "save_partial",
    *_of("workers", "threads scoring_processes"), *_of("sampling", "temperature top_p top_k stop"),
    *_of("engine", "kind options dtype decode_steps forward top_logprobs sampled_logprobs"),
    *_of("deadlines", "score_s late_s"), "logging.rollouts_per_step", "weights.parts",
)  # fmt: skip

COMMANDS: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "train": {
        ("simulation",): "`stretto train` runs on real hardware; simulation.* models it for rehearse and simulate"
    },
    "rehearse": {
        _PROCESSES: "`stretto rehearse` computes in one process",
        _SAMPLED: "`stretto rehearse` samples; only `stretto simulate` reads it",
    },
    "simulate": {
        _PROCESSES: "`stretto simulate` computes nothing and has no workers",
        _NO_TOKENS: "`stretto simulate` computes nothing: no model, no tokens, no rewards but sampled ones",
        ("simulation.late",): "`stretto simulate` has no late rewards",
    },
}
"""Idle under a command: keys and why."""


def idle(config: RunConfig, mode: str | None = None) -> dict[str, str]:
    """Keys (or whole sections) without effect in this configuration, with the reason. ``mode``: of the command; None:
    whatever the command."""
    found = {key: why for row in reversed(BESIDE) if (why := row.why(config)) for key in row.keys}
    if mode == "simulate":  # lengths follow the recipe's limits unless they are given
        if config.simulation.lengths is not None:
            found["sampling.max_new_tokens"] = "simulation.lengths says which lengths are sampled"
        if config.simulation.prompt_tokens is not None:
            found["engine.max_model_len"] = "simulation.prompt_tokens says how long prompts are"
    return found | {key: why for keys, why in COMMANDS.get(mode or "", {}).items() for key in keys}


def check_idle(
    table: Mapping[str, object], alone: RunConfig | None, overrides: Mapping[str, object], config: RunConfig,
    mode: str | None,
) -> None:  # fmt: skip
    """``ConfigError`` that names each setting given in vain. ``table``: what the file says (``alone``: the
    configuration that it makes by itself, None if it makes none); ``overrides``: what was given beside it; ``config``:
    both together."""
    now, before, with_mode = idle(config), idle(alone) if alone is not None else {}, idle(config, mode)
    found = [(key, value, now[rule]) for key, value in _asked(table)
             if (rule := _rule(key, now)) is not None and _rule(key, before) is not None]  # fmt: skip
    found += [(key, value, with_mode[rule]) for key, value in _asked(overrides)
              if (rule := _rule(key, with_mode)) is not None]  # fmt: skip
    if found:
        raise ConfigError(
            "\n".join(f"{key} = {value!r} has no effect: {why}. Leave it out" for key, value, why in found)
        )


def _asked(table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What a table asks for: not what it turns off, nor workers in the only process that there is."""
    return ((key, value) for key, value in leaves(table) if value and (key, value) != ("workers.kind", "inline"))


def without_idle(table: dict[str, object], config: RunConfig) -> dict[str, object]:
    """The configuration as a table, without what has no effect in it."""
    rules = idle(config)

    def kept(inner: dict[str, object], prefix: str) -> dict[str, object]:
        out = {}
        for name, value in inner.items():
            if _rule(prefix + name, rules) is None:
                out[name] = kept(value, f"{prefix}{name}.") if isinstance(value, dict) else value
        return out

    return kept(table, "")


def leaves(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """(dotted key, value) of everything that a table sets."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _rule(key: str, rules: Mapping[str, str]) -> str | None:
    """The entry that covers this key: its own, or its section's."""
    parts = key.split(".")
    return next((name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in rules), None)
