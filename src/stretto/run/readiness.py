"""What a start would find out later: is everything there, can the tasks be made and encoded, is there an end?

A dry run and a start ask the same. Nothing is built: of the tiny model only the tokenizer, of SmolLM2 nothing unless
it was converted before.
"""

from __future__ import annotations

import copy
import importlib.util

from stretto.config.machine import core_count
from stretto.config.plugins import plugin_errors
from stretto.config.schema import RunConfig
from stretto.envs.base import Environment
from stretto.kernel.errors import ConfigError
from stretto.models.protocols import Demonstrates
from stretto.run.spec import Checked
from stretto.run.wiring import bind
from stretto.runtime.length import run_length
from stretto.runtime.workers.kinds import TORCH
from stretto.weights.transport import find_transport

_MOST_TRAJECTORIES = 1 << 24
_MOST_TASKS = 1_000_000


def check_ready(checked: Checked) -> None:
    """Raise a ``StrettoError`` that says what this machine, the data or the tasks lack for a run. Binds the environment
    if the tokenizer is there."""
    config, mode, env = checked.config, checked.mode, checked.env
    _check_sizes(config)
    _check_packages(config)
    if mode == "simulate":
        run_length(config, env.epoch_size)
        return
    _check_weights(config, mode)
    if mode == "train" and config.workers.own_cores and core_count() <= config.workers.threads:
        raise ConfigError(
            f"workers.own_cores = true needs more than workers.threads = {config.workers.threads} core(s), this "
            f"process may use {core_count()}: set false"
        )
    with plugin_errors("env.name", config.env.name):
        _check_worked(config, env)
        if checked.tokenizer is None:
            return
        bind(config, env, checked.tokenizer, checked.notes.append)
        checked.bound = True
        run_length(config, env.epoch_size)
        env.task(0)
        if config.eval.tasks:
            env.eval_tasks(1)
        _try_worked(config, env)


def _check_sizes(config: RunConfig) -> None:
    trajectories = config.prompts_per_step * config.group_size
    if trajectories > _MOST_TRAJECTORIES:
        raise ConfigError(
            f"prompts_per_step x group_size = {config.prompts_per_step} x {config.group_size} = {trajectories} "
            f"trajectories in one step; at most {_MOST_TRAJECTORIES} can be. Lower one"
        )
    if config.eval.tasks > _MOST_TASKS:
        raise ConfigError(
            f"eval.tasks = {config.eval.tasks}: each is played at every evaluation; at most {_MOST_TASKS} can be"
        )


def _check_weights(config: RunConfig, mode: str) -> None:
    """Is there such a transport?"""
    if mode == "train" and (config.workers.kind == "process" or config.engine.kind != TORCH):
        with plugin_errors("weights.transport", config.weights.transport):
            find_transport(config.weights.transport)


def _check_packages(config: RunConfig) -> None:
    if config.logging.wandb and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "logging.wandb = true, but wandb isn't installed: pip install wandb, or leave logging.wandb off"
        )


def _check_worked(config: RunConfig, env: Environment) -> None:
    if config.model == "tiny" and config.sft.accuracy > 0 and not isinstance(env, Demonstrates):
        raise ConfigError(
            f"environment {type(env).__name__} has no worked answers for a warm start: set sft.accuracy = 0 "
            "(random weights) or give another model"
        )


def _try_worked(config: RunConfig, env: Environment) -> None:
    """A worked answer must be text of the tiny model's alphabet."""
    if config.model == "tiny" and config.sft.accuracy > 0 and isinstance(env, Demonstrates):
        copy.copy(env).demonstration(0)
