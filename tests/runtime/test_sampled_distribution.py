"""A run whose turns are sampled each in its own way: the loop carries what the learner needs to score them alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stretto.data.trajectory import Trajectory
from stretto.envs.base import Task
from stretto.kernel.errors import StrettoError

from .dense import Dense, dense_reward
from .harness import assert_clean, rehearse

FLOAT32 = ("engine.dtype=float32", "learner.dtype=float32", "max_steps=2", "engine.max_model_len=32")


@dataclass
class Moody(Dense):
    """Every second task has a second turn with settings of its own."""

    async def rollout(self, client: Any, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        await client.generate(transcript)
        if task.index % 2:
            transcript.observe([5])
            await client.generate(transcript, temperature=0.5, top_k=4)
        return transcript.finish(dense_reward(transcript.tokens()))


@dataclass
class Mistaken(Dense):
    """Asks for a setting that there isn't."""

    async def rollout(self, client: Any, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        await client.generate(transcript, min_p=0.1)
        raise AssertionError


@pytest.mark.parametrize(
    "settings",
    [
        ("sampling.top_p=0.9",),
        ("sampling.temperature=0.7",),
        (
            "objective.name=decoupled-ppo",
            "objective.reference=old",
            "objective.correction=truncate",
            "learner.old_policy.route=interrupt",
            "lag_bound=1",
        ),
    ],
    ids=["top-p", "temperature", "interrupted"],
)
def test_fresh_tokens_have_ratio_one(tmp_path: Path, model: Path, settings: tuple[str, ...]) -> None:
    lag = () if "lag_bound=1" in settings else ("lag_bound=0",)
    _, events = rehearse(tmp_path / "run", model, *FLOAT32, *lag, f"env.name={__name__}:Moody", *settings)
    assert_clean(events)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "mismatch/kl" in row]
    assert len(steps) == (2 if lag else 1)  # later ones may train no fresh token
    for row in steps:
        assert row["mismatch/kl"] < 1e-9
        assert abs(row["ratio/mean@0"] - 1) < 1e-5
    fresh = steps if lag else steps[:1]
    for row in fresh:
        assert abs(row["ratio/q05"] - 1) < 1e-4
        assert abs(row["ratio/q95"] - 1) < 1e-4


def test_a_setting_that_no_engine_knows_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(StrettoError, match=r"min_p = 0\.1, which no engine knows"):
        rehearse(tmp_path / "run", model, *FLOAT32, f"env.name={__name__}:Mistaken")
