"""The objectives by name. Importing this is light: the methods (and torch) load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.kernel.components import Registry

if TYPE_CHECKING:
    from stretto.objectives.base import Objective

METHODS = (
    "reinforce",
    "grpo",
    "ppo",
    "decoupled_ppo",
    "tis",
    "mis",
    "klpo",
    "dr_grpo",
    "rloo",
    "dual_clip_ppo",
    "icepop",
    "gspo",
    "cispo",
    "topr",
    "sapo",
    "m2po",
    "dppo",
    "kimi_pmd",
    "a3po",
    "gmc_grpo",
    "tic_grpo",
    "entr",
    "sat",
    "sat_gspo",
    "asympo",
    "spo",
    "ppo_ewma",
    "asyncwebrl",
    "rac",
    "copc",
    "brace",
    "vtrace",
    "sao",
)
"""One module a method, in this package."""

REGISTRY: Registry[Objective] = Registry("objective", tuple(f"stretto.objectives.{name}" for name in METHODS))
