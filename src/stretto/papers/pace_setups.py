"""Settings of the runs in ``stretto.papers.pace``: more is made than trains [inferred]."""

from __future__ import annotations

import math
from statistics import NormalDist

CROWDED_BATCH, _SLOTS, _SIGMA, _TOKEN_S = 64, 128, 0.9, 0.005
_MEAN = 200
"""Tokens: fine enough to stand for continuous lengths."""
_SOFT = ("control.admission.name=slots", "control.batch.name=fifo")
_UNFILTERED = ("control.pool.name=drop-oldest", "control.pool.capacity=1e9")
"""A queue that never overflows."""
_LENGTHS = ("simulation.lengths.kind=lognormal", f"simulation.lengths.sigma={_SIGMA}", "simulation.lengths.low=1")


def crowded(load: float, target: float | None, gamma: float, forgetting: str, seed: int, steps: int) -> tuple[str, ...]:
    """128 slots, groups of one, lognormal lengths, B = 64: ``load`` completions for each that trains. ``target``
    occupancy in batches; None: nothing is rejected."""
    pool = _UNFILTERED if target is None else (
        "control.pool.name=pace", f"control.pool.target_occupancy={target}", f"control.pool.gamma={gamma}",
        f"simulation.forgetting={forgetting}",
    )  # fmt: skip
    return (
        *_SOFT, *_LENGTHS, *pool, f"seed={seed}", f"max_steps={steps}", f"prompts_per_step={CROWDED_BATCH}",
        "group_size=1", "lag_bound=100000", f"engine.max_num_seqs={_SLOTS}", f"simulation.lengths.mean={_MEAN}",
        "simulation.lengths.high=1000000", "simulation.prompt_tokens=1", "simulation.publish_s=0",
        "simulation.prefill_token_s=0", f"simulation.decode_base_s={_TOKEN_S}", "simulation.decode_row_s=0",
        "simulation.step_token_s=0", f"simulation.step_base_s={load * CROWDED_BATCH / _SLOTS * _MEAN * _TOKEN_S}",
    )  # fmt: skip


_STEP_S = 26.19
"""Of an unfiltered step, as reported: the one published figure that sets the scale."""
_PROMPTS, _GROUP, _CAP, _UNCAPPED, _LOAD, _PROMPT = 32, 4, 8192, 2400, 1.2, 200


def paper_scale(arm: str, seed: int, steps: int) -> tuple[str, ...]:
    """A slot for each of a batch's 128 trajectories; answers of about 2,300 tokens, cut at 8,192; 1.2 times as many
    are made as train. Training takes 26.19 s: half of it forward and backward per token, half what doesn't grow with
    it here (old and reference log-probabilities, optimizer, transfer)."""
    rows, mean = _PROMPTS * _GROUP, _capped_mean()
    token_s = _STEP_S / (_LOAD * mean)
    rules = {
        "synchronous": ("lag_bound=0",),
        "unfiltered": (*_SOFT, *_UNFILTERED, "lag_bound=100000"),
        "PACE": (*_SOFT, "control.pool.name=pace", "lag_bound=100000"),
    }
    return (
        *rules[arm], *_LENGTHS, f"seed={seed}", f"max_steps={steps}", f"prompts_per_step={_PROMPTS}",
        f"group_size={_GROUP}", f"engine.max_num_seqs={rows}", f"simulation.lengths.mean={_UNCAPPED}",
        f"simulation.lengths.high={_CAP}", f"simulation.prompt_tokens={_PROMPT}", "simulation.publish_s=0.5",
        "simulation.prefill_token_s=1e-5", f"simulation.decode_base_s={0.8 * token_s}",
        f"simulation.decode_row_s={0.2 * token_s / rows}", f"simulation.step_base_s={_STEP_S / 2}",
        f"simulation.step_token_s={_STEP_S / 2 / (rows * (mean + _PROMPT))}",
    )  # fmt: skip


def _capped_mean() -> float:
    """E[min(L, cap)] of the lognormal L."""
    phi, mu = NormalDist().cdf, math.log(_UNCAPPED) - _SIGMA**2 / 2
    z = (math.log(_CAP) - mu) / _SIGMA
    return _UNCAPPED * phi(z - _SIGMA) + _CAP * (1 - phi(z))
