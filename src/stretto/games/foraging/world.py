"""The foragers' world: a square grid of four quadrants, two of them rich in food, and two foragers.

"CHMAS: A Coupled Hierarchical Framework for Multi-Agent Reinforcement Learning" publishes an abstract only, so every
constant and rule here is [inferred]. A period has ``period`` steps; at its start a hidden season z in {0, 1} makes the
quadrants ``RICH[z]`` rich, food is scattered anew, and a joint assignment ``arm`` sends forager 0 to quadrant
``arm // 4`` and forager 1 to ``arm % 4``. An episode has ``periods`` of them and starts at random distinct cells.

    moves      both at once; the edge stops; the same target, or a swap, leaves both in place
    food       entering a cell that has some eats it: +1
    shaping    pull * (L1 distance to the guided quadrant before - after), 0 inside: potential-based
    tactical   reward = food + shaping; observation = own cell, own guided quadrant, food in the four neighbours
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stretto.data.arrays import Bools, Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number

FORAGERS, QUADRANTS, ARMS, SEASONS = 2, 4, 16, 2
ACTIONS = ("stay", "up", "down", "left", "right")
RICH = ((0, 3), (1, 2))
BITS = 16  # patterns of food in the four neighbours
_SHIFTS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))


class Tables(NamedTuple):
    """The grid as arrays, cells numbered row by row. ``quadrant`` [C]: 2 (row half) + (column half). ``distance``
    [4, C]: L1 distance to a quadrant. ``target`` [C, 5]: where an action leads. ``neighbour`` [C, 4]: the cell above,
    below, left, right; -1 beyond the edge. ``chance`` [2, C]: that a cell gets food, by season."""

    quadrant: Ints
    distance: Ints
    target: Ints
    neighbour: Ints
    chance: Floats


@dataclass(frozen=True)
class Foraging:
    """The world. ``side``: cells a side, even. ``period``: steps a period. ``periods``: periods an episode. ``rich``,
    ``poor``: chance of food in a cell of a rich or of another quadrant. ``pull``: weight of the shaping. All
    [inferred]. ``ConfigError`` names a bad one."""

    side: int = 8
    period: int = 12
    periods: int = 4
    rich: float = 0.5
    poor: float = 0.03
    pull: float = 0.3
    tables: Tables = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        number("Foraging", "side", self.side, 2, 64, whole=True)
        if self.side % 2:
            raise ConfigError(f"Foraging: side = {self.side} must be even, to have four equal quadrants")
        number("Foraging", "period", self.period, 1, whole=True)
        number("Foraging", "periods", self.periods, 1, whole=True)
        number("Foraging", "rich", self.rich, 0, 1)
        number("Foraging", "poor", self.poor, 0, 1)
        number("Foraging", "pull", self.pull, 0)
        object.__setattr__(self, "tables", _tables(self.side, self.rich, self.poor))

    @property
    def cells(self) -> int:
        """C, the number of cells of the grid."""
        return self.side * self.side

    @property
    def observations(self) -> int:
        """How many tactical observations there are: cells x guided quadrants x patterns of food next door."""
        return self.cells * QUADRANTS * BITS

    @property
    def steps(self) -> int:
        """Steps of an episode: ``period`` times ``periods``."""
        return self.period * self.periods

    def start(self, first: float, second: float) -> tuple[int, int]:
        """Two distinct cells, uniform over all pairs, from two uniforms on [0, 1)."""
        a, b = int(first * self.cells), int(second * (self.cells - 1))
        return a, b + (b >= a)

    def scatter(self, season: int, uniforms: Floats) -> Bools:
        """Where food grows at the start of a period of ``season``, bool [C], from ``uniforms`` [C]."""
        return uniforms < self.tables.chance[season]

    def move(self, cells: Sequence[int], actions: Sequence[int]) -> tuple[int, int]:
        """The cells of both foragers after they take ``actions`` at once from ``cells``; the same target, or a swap,
        leaves both in place."""
        a, b = (int(self.tables.target[cell, action]) for cell, action in zip(cells, actions, strict=True))
        if a == b or (a == cells[1] and b == cells[0]):
            return cells[0], cells[1]
        return a, b

    def observe(self, cell: int, quadrant: int, food: Bools) -> int:
        """The tactical observation's number: (cell * 4 + guided quadrant) * 16 + sum of 2^d over the directions d (up,
        down, left, right) in which there is food next door. The season is no argument: it can't be seen."""
        bits = 0
        for d, next_door in enumerate(self.tables.neighbour[cell]):
            bits += int(next_door >= 0 and food[next_door]) << d
        return (cell * QUADRANTS + quadrant) * BITS + bits


class Step(NamedTuple):
    """What a step gave the two foragers: ``food`` eaten (0 or 1) and ``shaping`` reward, one each."""

    food: tuple[int, int]
    shaping: tuple[float, float]


class Field:
    """A world in motion; the caller says the numbers that decide. ``begin(cells)`` an episode, ``season(z, arm,
    uniforms)`` a period, ``step(actions)`` a step. ``eaten`` and ``spawned`` count this period's food; ``shares``
    [2, 4]: steps of this period that each forager ended in each quadrant."""

    def __init__(self, world: Foraging) -> None:
        self.world = world
        self.cells: tuple[int, int] = (0, 1)
        self.z = self.arm = 0
        self.food: Bools = np.zeros(world.cells, np.bool_)
        self.eaten = self.spawned = 0
        self.shares: Ints = np.zeros((FORAGERS, QUADRANTS), np.int64)

    def begin(self, cells: Sequence[int]) -> None:
        """Begin an episode with the foragers on two distinct ``cells``; else ``ConfigError``."""
        for i, cell in enumerate(cells):
            number("Field.begin", f"cells[{i}]", cell, 0, self.world.cells - 1, whole=True)
        if len(cells) != FORAGERS or cells[0] == cells[1]:
            raise ConfigError(f"Field.begin: cells = {list(cells)} must be two distinct cells")
        self.cells = (int(cells[0]), int(cells[1]))

    def season(self, z: int, arm: int, uniforms: Floats) -> None:
        """Begin a period: season ``z``, joint assignment ``arm``, food from ``uniforms`` [C]; what was left is gone."""
        number("Field.season", "z", z, 0, SEASONS - 1, whole=True)
        number("Field.season", "arm", arm, 0, ARMS - 1, whole=True)
        if np.shape(uniforms) != (self.world.cells,):
            raise ConfigError(
                f"Field.season: uniforms has shape {list(np.shape(uniforms))} but must have [{self.world.cells}]"
            )
        self.z, self.arm = z, arm
        self.food = self.world.scatter(z, uniforms)
        self.spawned, self.eaten = int(self.food.sum()), 0
        self.shares = np.zeros((FORAGERS, QUADRANTS), np.int64)

    def guided(self, i: int) -> int:
        """The quadrant, 0 .. 3, that this period's assignment sends forager ``i`` to."""
        return split(self.arm)[i]

    def observe(self, i: int, guided: bool = True) -> int:
        """The tactical observation of forager ``i``; unguided foragers see quadrant 0 always."""
        return self.world.observe(self.cells[i], self.guided(i) if guided else 0, self.food)

    def step(self, actions: Sequence[int]) -> Step:
        """Move both, eat, measure. ``actions``: one of ``ACTIONS``, by number, for each."""
        if len(actions) != FORAGERS:
            raise ConfigError(f"Field.step: actions = {list(actions)} must be two, one for each forager")
        for i, action in enumerate(actions):
            number("Field.step", f"actions[{i}]", action, 0, len(ACTIONS) - 1, whole=True)
        world, before = self.world, self.cells
        self.cells = world.move(before, actions)
        food, shaping = [0, 0], [0.0, 0.0]
        for i, (old, new) in enumerate(zip(before, self.cells, strict=True)):
            food[i] = int(new != old and self.food[new])
            self.food[new] &= not food[i]
            closer = world.tables.distance[self.guided(i), old] - world.tables.distance[self.guided(i), new]
            shaping[i] = world.pull * float(closer)
            self.shares[i, world.tables.quadrant[new]] += 1
        self.eaten += sum(food)
        return Step((food[0], food[1]), (shaping[0], shaping[1]))


def split(arm: int) -> tuple[int, int]:
    """The quadrants (of forager 0, of forager 1) that the joint assignment ``arm`` in 0 .. 15 stands for."""
    return arm // QUADRANTS, arm % QUADRANTS


def _tables(side: int, rich: float, poor: float) -> Tables:
    half, cells = side // 2, range(side * side)
    at = [(c // side, c % side) for c in cells]
    quadrant = np.array([2 * (r >= half) + (c >= half) for r, c in at])

    def axis_distance(x: int, upper: int) -> int:
        return max(0, half - x) if upper else max(0, x - half + 1)

    def inside(r: int, c: int) -> bool:
        return 0 <= r < side and 0 <= c < side

    distance = [[axis_distance(r, q // 2) + axis_distance(c, q % 2) for r, c in at] for q in range(QUADRANTS)]
    beside = [[(r + dr) * side + c + dc if inside(r + dr, c + dc) else -1 for dr, dc in _SHIFTS] for r, c in at]
    target = [[n if n >= 0 else cell for n in row] for cell, row in enumerate(beside)]
    chance = np.where([[q in RICH[z] for q in quadrant] for z in range(SEASONS)], rich, poor)
    return Tables(quadrant, np.array(distance), np.array(target), np.array(beside)[:, 1:].copy(), chance)
