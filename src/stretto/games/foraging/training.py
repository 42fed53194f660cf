"""What a coupled run is told and what it returns; shared by the compiled loop and its plain reference.

Both read the same counter-based numbers (``stretto.tabular.counter``): episode e takes draws 2e, 2e + 1 of stream
``START``; period p draw p of ``SEASON`` and of ``ARM``, draws C p .. C p + C - 1 of ``FOOD``; step t draws 4t + 2i
(whether to explore) and 4t + 2i + 1 (which action) of ``ACT`` for forager i. So two runs that differ in the coupling
alone meet the same seasons and the same food.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.games.foraging.world import RICH, Foraging, split
from stretto.tabular.arguments import number

START, SEASON, ARM, FOOD, ACT = range(5)


@dataclass(frozen=True)
class Training:
    """``blocks`` (K) strategic updates of ``episodes`` (N_f) tactical episodes each. ``coupling``: weight of food in
    the strategic reward (lambda). ``guided`` False: assignments are uniform, the foragers neither see them nor are
    pulled towards them. ``step``, ``discount``, ``explore``: tactical; ``scale``, ``track``: strategic. ``late``: cell
    visits are counted in the last so many blocks. Defaults [inferred]. ``ConfigError`` names a bad one."""

    blocks: int = 600
    episodes: int = 20
    coupling: float = 3.0
    guided: bool = True
    step: float = 0.1
    discount: float = 0.9
    explore: float = 0.1
    scale: float = 30.0
    track: float = 0.02
    late: int = 60

    def __post_init__(self) -> None:
        for name in ("blocks", "episodes", "late"):
            number("Training", name, getattr(self, name), 1, whole=True)
        for name in ("coupling", "scale"):
            number("Training", name, getattr(self, name), 0)
        for name in ("explore", "track"):
            number("Training", name, getattr(self, name), 0, 1)
        number("Training", "step", self.step, above=0, high=1)
        number("Training", "discount", self.discount, 0, below=1)


@dataclass(frozen=True)
class Runs:
    """S runs. ``food``, ``overlap``, ``rich`` [S, K]: a block's food a step (both foragers), mean overlap of periods,
    share of steps in rich quadrants. ``theta`` [S, 2, 16]: the strategist's logits at the end. ``visits`` [S, 2, 2, C]:
    steps that ended in a cell, by season and forager, late in the run. ``values`` [S, 2, O, 5]: the foragers' Q."""

    food: Floats
    overlap: Floats
    rich: Floats
    theta: Floats
    visits: Ints
    values: Floats

    def curve(self, name: str, first: int = 20, last: int = 60) -> tuple[float, float]:
        """(early, late): means over seeds of the record ``name`` (food, overlap or rich) in the ``first`` and in the
        ``last`` blocks."""
        y = getattr(self, name)
        return float(y[:, :first].mean()), float(y[:, -last:].mean())

    def plans(self) -> list[tuple[int, int]]:
        """The quadrants of the most likely assignment, by seed and season: (quadrant of 0, quadrant of 1)."""
        return [split(int(arm)) for arm in self.theta.argmax(-1).ravel()]

    def split_share(self) -> float:
        """Share of (seed, season) pairs whose most likely assignment sends the foragers to two different quadrants."""
        return float(np.mean([a != b for a, b in self.plans()]))

    def rich_pairs(self) -> float:
        """Share of seeds x seasons whose most likely assignment is the rich pair, in either order."""
        return float(np.mean([set(plan) == set(RICH[n % 2]) for n, plan in enumerate(self.plans())]))


def empty(world: Foraging, training: Training, seeds: int) -> Runs:
    """``seeds`` runs of zeros; the loops fill them."""
    return Runs(
        food=np.zeros((seeds, training.blocks)),
        overlap=np.zeros((seeds, training.blocks)),
        rich=np.zeros((seeds, training.blocks)),
        theta=np.zeros((seeds, 2, 16)),
        visits=np.zeros((seeds, 2, 2, world.cells), np.int64),
        values=np.zeros((seeds, 2, world.observations, 5)),
    )
