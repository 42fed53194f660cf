"""Huber contamination: with a fixed chance, what is seen has nothing to do with what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Bools, Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular import counter
from stretto.tabular.arguments import array, number

_LARGEST = 1e9  # beyond, an average's last digits are worth more than what is to be learnt
MOVES, NOISE, HITS, FAKES, START = range(60, 65)
"""Streams of random numbers of a run: what corrupts is drawn apart, so that it can't change what happens."""


@dataclass(frozen=True)
class Corruption:
    """Each step, with chance ``share`` < 1/2 and independently, the learner sees the reward -``magnitude``. ``states``:
    what else it sees then: ``none``; ``next`` state 0; or ``both``, next state 0 and a uniform current state. The
    process itself goes on as ever. The attack is [inferred]. ``ConfigError`` names what doesn't fit."""

    share: float = 0.0
    magnitude: float = 10.0
    states: Literal["none", "next", "both"] = "none"

    def __post_init__(self) -> None:
        number("Corruption", "share", self.share, 0, below=0.5)
        number("Corruption", "magnitude", self.magnitude, -_LARGEST, _LARGEST)
        if self.states not in ("none", "next", "both"):
            raise ConfigError(f"Corruption: states = {self.states!r} must be none, next or both")

    @property
    def level(self) -> int:
        """How much of the states is corrupted, for compiled loops: 0 ``none``, 1 ``next``, 2 ``both``."""
        return ("none", "next", "both").index(self.states)


def contaminate(x: ArrayLike, share: float, outlier: float, seed: int) -> tuple[Floats, Bools]:
    """``x`` [n] with each sample replaced by ``outlier`` with chance ``share`` < 1/2, and which were [n]. Sample i's
    fate is a function of (seed, i): the same as step i's of ``q_learning`` with that seed."""
    samples = array("contaminate", "x", x, (None,))
    share = number("contaminate", "share", share, 0, below=0.5)
    outlier = number("contaminate", "outlier", outlier)
    number("contaminate", "seed", seed, 0, below=2.0**63, whole=True)
    hit = counter.uniforms(np.uint64(counter.key(int(seed), HITS)), samples.size) < share
    return np.where(hit, outlier, samples), hit
