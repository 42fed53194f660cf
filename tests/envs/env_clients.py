"""A client for environment tests: the policy is a script of texts or id lists, the clock is a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stretto.data.counter import mix
from stretto.data.trajectory import Completion, Transcript
from stretto.envs.scoring import InlineScoring


class ScriptedClient:
    """``turns``: what the policy samples, one entry a turn: ids, or a function of the transcript's ids."""

    def __init__(
        self, turns: Sequence[Any], eos: Sequence[int] = (1,), scoring: Any = None, trajectory: int = 0
    ) -> None:
        self.turns = list(turns)
        self.eos = set(eos)
        self.scoring = scoring or InlineScoring()
        self.record, self.noise_key = Transcript(trajectory, 0), trajectory
        self.sleeps: list[float] = []
        self.overrides: list[dict[str, Any]] = []

    def transcript(self) -> Transcript:
        return self.record

    async def generate(self, transcript: Transcript, **overrides: Any) -> Completion:
        self.overrides.append(overrides)
        turn = self.turns.pop(0)
        ids = turn(transcript.tokens().tolist()) if callable(turn) else turn
        stops = self.eos | set(overrides.get("stop", ()))
        finish = "stop" if ids and ids[-1] in stops else "length"
        n = len(ids)
        completion = Completion(
            np.array(ids, np.int32),
            np.full(n, -1.0, np.float32),
            np.ones(n, np.float32),
            np.full(n, 3, np.int32),
            finish,
        )
        transcript.sample(completion)
        return completion

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any:
        return await self.scoring.call(function, *args, deadline_s=deadline_s)

    async def sleep(self, seconds: float, what: str) -> None:
        self.sleeps.append(seconds)

    def uniform(self, *counter: int) -> float:
        return (mix(7, self.noise_key, *counter) + 0.5) / 2.0**64
