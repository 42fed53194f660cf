"""An engine from a configuration: loads the model and hands it over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from stretto.config.sections import EngineConfig
from stretto.models.load import load_policy
from stretto.rollout.engine import TorchEngine


def build_engine(
    model_dir: str | Path, config: EngineConfig, seed: int, eos_ids: Sequence[int], *, keep_initial: bool = False,
    keep_versions: bool = False,
) -> TorchEngine:  # fmt: skip
    """The engine that ``config`` describes, without a version until its first ``load``."""
    model = load_policy(model_dir, getattr(torch, config.dtype))
    return TorchEngine(
        model,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        eos_ids=eos_ids,
        seed=seed,
        forward=config.forward,
        keep_initial=keep_initial,
        keep_versions=keep_versions,
        kept_tokens=config.kept_tokens,
    )
