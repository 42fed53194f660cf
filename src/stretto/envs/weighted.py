"""Several reward functions: each runs where it belongs, the reward is the weighted sum of their values."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from stretto.envs.base import LateClient
from stretto.envs.verifiers import Score, Verifier, score
from stretto.kernel.errors import WorkerError


@dataclass(frozen=True)
class Part:
    """One function: its ``label`` in the metrics, its ``weight``, and whether the reward needs it (``required``)."""

    label: str
    verifier: Verifier
    weight: float
    required: bool


@dataclass(frozen=True)
class Weighted:
    """All functions of a run. Those that can hang run side by side, each in a process that can be killed."""

    parts: tuple[Part, ...]
    cheap = False

    @property
    def imports(self) -> tuple[str, ...]:
        """What a scoring process loads before its first call."""
        found = [module for part in self.parts for module in getattr(part.verifier, "imports", ())]
        return tuple(dict.fromkeys(found))

    def check(self, answer: object) -> str:
        """Why ``answer`` can't be what a required function expects (empty: it can)."""
        for part in self.parts:
            check = getattr(part.verifier, "check", None)
            if check is None or not part.required or getattr(part.verifier, "unreadable", "") == "absent":
                continue
            if problem := check(answer):
                return f"{part.label}: {problem}"
        return ""

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> NoReturn:
        raise NotImplementedError("score() calls the parts")

    async def score(self, client: LateClient, text: str, answer: object, info: Mapping[str, object]) -> Score:
        """The weighted sum, with each function's own value in ``parts`` (None: absent)."""
        results = await asyncio.gather(
            *(score(part.verifier, client, text, answer, info) for part in self.parts), return_exceptions=True
        )
        total, values, missing = 0.0, {}, Score(None)
        for part, result in zip(self.parts, results, strict=True):
            if isinstance(result, WorkerError) or (
                isinstance(result, BaseException) and not isinstance(result, Exception)
            ):
                raise result  # the scoring process or this task ended
            found = Score(None, str(result), error=result) if isinstance(result, Exception) else result
            assert isinstance(found, Score)
            values[part.label] = found.reward
            if found.reward is not None:
                total += part.weight * found.reward
            elif part.required and not missing.reason:
                missing = found
        if missing.reason or all(value is None for value in values.values()):
            return Score(None, missing.reason or "every reward function is absent", values, missing.error)
        if not math.isfinite(total):
            return Score(None, f"the weighted sum is {total}, which is not a finite number", values)
        return Score(total, parts=values)
