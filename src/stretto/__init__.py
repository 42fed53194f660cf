"""Stretto: asynchronous reinforcement learning whose staleness is exact, bounded, visible and corrected.

What a user imports is named here, and loaded when it is asked for: ``import stretto`` alone costs nothing. Objectives
are had by name: ``stretto.objectives.get("grpo")``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stretto.config.load import load_config as load_config
    from stretto.config.schema import RunConfig as RunConfig
    from stretto.data.batch import TokenBatch as TokenBatch
    from stretto.data.totals import Totals as Totals
    from stretto.data.trajectory import Completion as Completion
    from stretto.data.trajectory import Trajectory as Trajectory
    from stretto.data.trajectory import Transcript as Transcript
    from stretto.envs.base import Client as Client
    from stretto.envs.base import Environment as Environment
    from stretto.envs.base import LateClient as LateClient
    from stretto.envs.base import Task as Task
    from stretto.kernel.errors import ConfigError as ConfigError
    from stretto.kernel.errors import DataError as DataError
    from stretto.kernel.errors import StrettoError as StrettoError
    from stretto.kernel.events import read_events as read_events
    from stretto.objectives.base import Objective as Objective
    from stretto.objectives.loss import Loss as Loss
    from stretto.observe.checker import check_run as check_run
    from stretto.observe.metrics import read_metrics as read_metrics
    from stretto.run.launch import launch as launch

__version__ = "0.1.0"

_HOME = {
    "Client": "envs.base",
    "Completion": "data.trajectory",
    "ConfigError": "kernel.errors",
    "DataError": "kernel.errors",
    "Environment": "envs.base",
    "LateClient": "envs.base",
    "Loss": "objectives.loss",
    "Objective": "objectives.base",
    "RunConfig": "config.schema",
    "StrettoError": "kernel.errors",
    "Task": "envs.base",
    "TokenBatch": "data.batch",
    "Totals": "data.totals",
    "Trajectory": "data.trajectory",
    "Transcript": "data.trajectory",
    "check_run": "observe.checker",
    "launch": "run.launch",
    "load_config": "config.load",
    "read_events": "kernel.events",
    "read_metrics": "observe.metrics",
}
"""The module of each name."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
