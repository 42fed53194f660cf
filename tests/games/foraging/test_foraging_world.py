"""The foragers' world: geometry, simultaneous moves, food, shaping, what is seen; and its PettingZoo form."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test

from stretto.games.foraging.env import ForagingEnv
from stretto.games.foraging.strategist import Strategist
from stretto.games.foraging.world import RICH, Field, Foraging, split
from stretto.kernel.errors import ConfigError

WORLD = Foraging()
STAY, UP, DOWN, LEFT, RIGHT = range(5)
ACTION = st.integers(0, 4)


def cell(row: int, column: int) -> int:
    return 8 * row + column


def field(cells: tuple[int, int], z: int = 0, arm: int = 0, food: Any = None, seed: int = 0) -> Field:
    out = Field(WORLD)
    out.begin(cells)
    out.season(z, arm, np.random.default_rng(seed).random(64))
    if food is not None:
        out.food = np.isin(np.arange(64), food)
    return out


def test_quadrants_are_numbered_by_row_half_then_column_half() -> None:
    quadrant = WORLD.tables.quadrant.reshape(8, 8)
    assert [quadrant[r, c] for r, c in ((0, 0), (3, 3), (0, 4), (4, 0), (7, 7), (4, 4))] == [0, 0, 1, 2, 3, 3]
    assert np.bincount(WORLD.tables.quadrant).tolist() == [16] * 4


def test_the_distance_to_a_quadrant_is_that_to_its_nearest_cell() -> None:
    for start, q in itertools.product(range(64), range(4)):
        r, c = divmod(start, 8)
        inside = [divmod(k, 8) for k in np.flatnonzero(WORLD.tables.quadrant == q)]
        assert WORLD.tables.distance[q, start] == min(abs(r - a) + abs(c - b) for a, b in inside)


def test_food_is_likely_in_the_rich_pair() -> None:
    for z, pair in enumerate(RICH):
        rich = np.isin(WORLD.tables.quadrant, pair)
        assert set(WORLD.tables.chance[z, rich]) == {0.5}
        assert set(WORLD.tables.chance[z, ~rich]) == {0.03}
    assert RICH == ((0, 3), (1, 2))


def test_the_edge_stops() -> None:
    assert WORLD.move((cell(0, 0), cell(7, 7)), (UP, DOWN)) == (cell(0, 0), cell(7, 7))
    assert WORLD.move((cell(0, 0), cell(7, 7)), (LEFT, RIGHT)) == (cell(0, 0), cell(7, 7))
    assert WORLD.move((cell(0, 0), cell(7, 7)), (RIGHT, UP)) == (cell(0, 1), cell(6, 7))


@pytest.mark.parametrize(
    ("cells", "actions", "after"),
    [
        pytest.param((0, 2), (RIGHT, LEFT), (0, 2), id="same target"),
        pytest.param((0, 1), (RIGHT, LEFT), (0, 1), id="swap"),
        pytest.param((0, 1), (RIGHT, STAY), (0, 1), id="into one who stays"),
        pytest.param((6, 7), (RIGHT, RIGHT), (6, 7), id="into one whom the edge stops"),
        pytest.param((0, 1), (RIGHT, RIGHT), (1, 2), id="following one who leaves"),
        pytest.param((0, 9), (RIGHT, DOWN), (1, 17), id="apart"),
    ],
)
def test_moves_are_simultaneous(cells: tuple[int, int], actions: tuple[int, int], after: tuple[int, int]) -> None:
    assert WORLD.move(cells, actions) == after


@given(st.permutations(range(64)), ACTION, ACTION)
def test_two_foragers_never_share_a_cell_nor_trade_places(order: list[int], a: int, b: int) -> None:
    before = (order[0], order[1])
    after = WORLD.move(before, (a, b))
    assert after[0] != after[1]
    assert after != (before[1], before[0])


def test_only_entering_a_cell_eats() -> None:
    f = field((cell(3, 3), cell(7, 7)), food=[cell(3, 3), cell(3, 4), cell(7, 7)])
    assert f.step((STAY, DOWN)).food == (0, 0)  # on food, but not by a move
    assert f.step((RIGHT, STAY)).food == (1, 0)
    assert f.step((LEFT, STAY)).food == (1, 0)  # now it came back to the one it started on
    assert f.step((RIGHT, STAY)).food == (0, 0)  # nothing grows again within the period


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_food_eaten_and_left_is_what_was_spawned(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = field(WORLD.start(*rng.random(2)), int(rng.integers(2)), int(rng.integers(16)), seed=seed)
    assert f.spawned == f.food.sum()
    eaten = 0
    for _ in range(WORLD.period):
        eaten += sum(f.step(rng.integers(5, size=2).tolist()).food)
        assert f.eaten == eaten
        assert f.eaten + f.food.sum() == f.spawned
    assert f.shares.sum(1).tolist() == [WORLD.period, WORLD.period]


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_shaping_telescopes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = field(WORLD.start(*rng.random(2)), arm=int(rng.integers(16)), seed=seed)
    first = [WORLD.tables.distance[f.guided(i), f.cells[i]] for i in range(2)]
    total = sum(np.array(f.step(rng.integers(5, size=2).tolist()).shaping) for _ in range(WORLD.period))
    last = [WORLD.tables.distance[f.guided(i), f.cells[i]] for i in range(2)]
    np.testing.assert_allclose(total, 0.3 * (np.array(first) - last), atol=1e-12)


def test_shaping_is_neutral_inside_the_guided_quadrant() -> None:
    f = field((cell(1, 1), cell(6, 6)), arm=3)  # forager 0 to quadrant 0, forager 1 to 3
    assert split(3) == (0, 3)
    assert f.step((DOWN, LEFT)).shaping == (0.0, 0.0)


@settings(max_examples=50)
@given(st.integers(0, 10**6), ACTION, ACTION)
def test_exchanging_the_foragers_commutes_with_a_step(seed: int, a: int, b: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = WORLD.start(*rng.random(2))
    arm = int(rng.integers(16))
    f = field((one, two), arm=arm, seed=seed)
    g = field((two, one), arm=arm % 4 * 4 + arm // 4, seed=seed)
    here, there = f.step((a, b)), g.step((b, a))
    assert g.cells == f.cells[::-1]
    assert there == (here.food[::-1], here.shaping[::-1])
    assert (f.food == g.food).all()
    assert [g.observe(1), g.observe(0)] == [f.observe(0), f.observe(1)]
    assert (g.shares[::-1] == f.shares).all()


def test_the_observation_holds_cell_guidance_and_food_next_door() -> None:
    seen = set()
    for at, q in itertools.product(range(64), range(4)):
        beside = WORLD.tables.neighbour[at]
        for bits in range(16):
            food = np.zeros(64, np.bool_)
            food[[n for d, n in enumerate(beside) if n >= 0 and bits >> d & 1]] = True
            visible = sum(1 << d for d, n in enumerate(beside) if n >= 0 and bits >> d & 1)
            assert WORLD.observe(at, q, food) == (at * 4 + q) * 16 + visible
            food[at] = True
            assert WORLD.observe(at, q, food) == (at * 4 + q) * 16 + visible  # its own cell's food can't be seen
            seen.add(WORLD.observe(at, q, food))
    assert max(seen) < WORLD.observations == 4096


def test_the_observation_never_contains_the_season() -> None:
    f = field((10, 50), z=0, arm=6, seed=3)
    seen = [f.observe(0), f.observe(1)]
    f.z = 1  # the same food under the other season
    assert [f.observe(0), f.observe(1)] == seen


def test_start_cells_are_distinct_and_uniform() -> None:
    grid = [((i + 0.5) / 64, (j + 0.5) / 63) for i in range(64) for j in range(63)]
    assert len({WORLD.start(u, v) for u, v in grid}) == 64 * 63
    assert all(a != b for a, b in (WORLD.start(u, v) for u, v in grid))


def test_the_pettingzoo_form_obeys_its_interface() -> None:
    parallel_api_test(ForagingEnv(), num_cycles=200)


def test_the_pettingzoo_form_keeps_guidance_for_a_period() -> None:
    asked: list[int] = []

    def guide(z: int, u: float) -> int:
        asked.append(z)
        return 3 if z == 0 else 6

    env = ForagingEnv(guide=guide)
    seen, infos = env.reset(seed=1)
    again, _ = env.reset(seed=1)
    assert seen == again
    asked.clear()
    seen, infos = env.reset(seed=2)
    rng, steps = np.random.default_rng(0), 0
    while env.agents:
        before = env.field.z
        guided = [infos[a]["guided"] for a in env.agents]
        assert env.state().shape == (68,)
        assert [seen[a] // 16 % 4 for a in env.agents] == list(RICH[before])
        names = list(env.agents)
        seen, rewards, ends, cuts, infos = env.step({a: int(rng.integers(5)) for a in env.agents})
        steps += 1
        assert [infos[a]["guided"] for a in names] == guided  # as the step found it
        assert rewards == {a: infos[a]["food"] + infos[a]["shaping"] for a in names}
        if steps % 12 and not any(cuts.values()):
            assert seen == {a: infos[a]["following"] for a in names}
        if steps % 12 == 0:
            infos = {a: {"guided": env.field.guided(i)} for i, a in enumerate(names)}
        assert not any(ends.values())
    assert steps == 48
    assert len(asked) == 4


def test_a_strategist_can_guide_it() -> None:
    strategist = Strategist()
    strategist.theta[:, 7] = 50.0
    env = ForagingEnv(guide=strategist.choose)
    _, infos = env.reset(seed=0)
    assert [infos[a]["guided"] for a in env.agents] == [1, 3]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ForagingEnv(guide=lambda z, u: (0, 3)).reset(seed=0), r"ForagingEnv: guide\(.* = \(0, 3\) must"),
        (lambda: ForagingEnv(guide=lambda z, u: 16).reset(seed=0), "must be a whole number >= 0 and <= 15"),
        (lambda: Foraging(side=7), "Foraging: side = 7 must be even"),
        (lambda: Foraging(rich=1.2), "Foraging: rich = 1.2"),
        (lambda: Foraging(poor=-0.1), "Foraging: poor = -0.1"),
        (lambda: Foraging(pull=float("nan")), "Foraging: pull = nan"),
        (lambda: Foraging(period=0), "Foraging: period = 0"),
        (lambda: Foraging(periods=0), "Foraging: periods = 0"),
        (lambda: Field(WORLD).begin((5, 5)), "Field.begin: cells"),
        (lambda: Field(WORLD).begin((5, 64)), r"Field.begin: cells\[1\] = 64"),
        (lambda: Field(WORLD).season(2, 0, np.zeros(64)), "Field.season: z = 2"),
        (lambda: Field(WORLD).season(0, 16, np.zeros(64)), "Field.season: arm = 16"),
        (lambda: Field(WORLD).season(0, 0, np.zeros(63)), "Field.season: uniforms"),
        (lambda: Field(WORLD).step((0,)), "Field.step: actions = .0. must be two"),
        (lambda: Field(WORLD).step((0, 5)), r"Field.step: actions\[1\] = 5"),
    ],
)
def test_bad_input_is_one_error_that_names_it(made: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made()
