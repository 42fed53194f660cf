"""A rollout on simulated engines in synchronous turns: what PEARL's eq. 1 (arXiv 2609.35158) predicts, played."""

from __future__ import annotations

import numpy as np

from stretto.config.simulation import Simulation
from stretto.control.pearl import RolloutProfile
from stretto.rollout.types import Request, SamplingParams
from stretto.simulation.engine import SimulatedEngine


def rollout_s(profile: RolloutProfile, batch: int, workers: int) -> float:
    """Seconds until ``batch`` trajectories are done on ``workers`` colocated engines that share them as evenly as whole
    numbers can. A turn prefills the new prompt tokens of all rows, decodes, and then takes its overhead; turns and
    tokens are rounded to whole numbers."""
    most = -(-batch // workers)
    return _engine_s(profile, most) + profile.environment_s


def _engine_s(profile: RolloutProfile, rows: int) -> float:
    """All turns of ``rows`` trajectories on one engine; each begins when the one before is over."""
    simulation = Simulation(
        decode_base_s=profile.decode_base_s,
        decode_row_s=profile.decode_row_s,
        prefill_token_s=profile.prefill_token_s,
    )
    engine = SimulatedEngine(simulation, rows, "keep")
    engine.load(0.0, 0, 0.0)
    prompt = np.zeros(round(profile.turn_prompt_tokens), np.int32)
    sampling = SamplingParams(max_new_tokens=round(profile.turn_tokens))
    now_s = 0.0
    for turn in range(round(profile.turns)):
        ids = range(turn * rows, (turn + 1) * rows)
        engine.add(now_s, [Request(i, i % rows, i % rows, prompt, sampling, noise_key=i) for i in ids])
        engine.start_waiting()
        while (end_s := engine.next_finish()) is not None:
            engine.finished(end_s)
            now_s = end_s
        now_s += profile.turn_overhead_s
    return now_s
