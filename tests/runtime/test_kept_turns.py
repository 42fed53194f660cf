"""Prefill is linear in the turns of a trajectory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.data.trajectory import Trajectory
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import Client, Task

from .harness import assert_clean, of, rehearse, simulate


class Talk(Arithmetic):
    """So many turns, each of up to four tokens and three more that are observed."""

    turns = 12

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        for _ in range(self.turns):
            await client.generate(transcript)
            transcript.observe(np.array([4, 5, 6], np.int32))
        return transcript.finish(client.uniform(1))


def talk(out: Path, model: Path, *settings: str) -> tuple[int, int, list[str]]:
    """Tokens prefilled, tokens of all texts, and checksums of the weights that were learnt."""
    _, events = rehearse(out, model, f"env.name={__name__}:Talk", "lag_bound=0", "max_steps=3",
                         "engine.max_model_len=128", *settings)  # fmt: skip
    assert_clean(events)
    texts = sum(e["length"] for e in of(events, "TrajDone"))
    return sum(e["prefill"] for e in of(events, "Busy")), texts, [e["checksum"] for e in of(events, "Published")]


def test_each_token_is_prefilled_about_once_and_the_same_is_learnt(model: Path, tmp_path: Path) -> None:
    prefilled, texts, learnt = talk(tmp_path / "kept", model)
    again, same, other = talk(tmp_path / "not", model, "engine.kept_tokens=0")
    assert texts == same
    assert prefilled < 1.2 * texts < 4 * texts < again
    assert len(learnt) == len(other) == 4


@pytest.mark.parametrize("turns", [8, 32])
def test_so_it_is_in_simulation(tmp_path: Path, turns: int) -> None:
    _, events = simulate(tmp_path / "run", f"simulation.turns={turns}", "lag_bound=0", "max_steps=2",
                         "prompts_per_step=2", "group_size=2", "simulation.prompt_tokens=10",
                         "simulation.lengths.kind=constant", "simulation.lengths.mean=20")  # fmt: skip
    assert_clean(events)
    prefilled = sum(e["prefill"] for e in of(events, "Busy"))
    texts = sum(e["length"] for e in of(events, "TrajDone"))
    assert prefilled < texts
