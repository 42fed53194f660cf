"""Schemas of what waits: tokens, observations and actions; packed once, selected, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stretto.data.columns import concatenate, pack, unpack
from stretto.data.schema import TOKENS, Schema, actions
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import InvariantError
from stretto.pool.group import Group
from stretto.pool.pool import Pool, columns_of

WALKER = actions((3,), (2,))


def trajectory(id: int, n: int, reward: float | None = 0.5, **more: Any) -> Trajectory:
    """Random, with a first token that wasn't sampled."""
    rng = np.random.default_rng(id)
    mask = np.r_[False, np.ones(n - 1, bool)]
    return Trajectory(
        id, id // 10, rng.integers(0, 99, n, np.int32), mask, np.full(n, 3, np.int32), rng.normal(size=n),
        rng.random(n), reward, version_complete=4, **more,
    )  # fmt: skip


def episode(id: int, n: int) -> dict[str, Any]:
    """Of a walker: three numbers seen, two joints moved."""
    rng = np.random.default_rng(id)
    return {
        "trajectory": id, "group": 0, "mask": np.ones(n, bool), "versions": np.full(n, 2, np.int32),
        "logp_behavior": rng.normal(size=n).astype(np.float32), "rewards": rng.random(n), "reward": float(n),
        "terminated": False, "truncated": True, "version_complete": 2,
        "observation": rng.normal(size=(n, 3)).astype(np.float32), "action": rng.random((n, 2), np.float32),
    }  # fmt: skip


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name])


def test_packed_trajectories_are_of_the_schema_of_tokens() -> None:
    TOKENS.check(pack([trajectory(0, 3)]))
    TOKENS.check(pack([trajectory(1, 5, None, records={"sampled_ids": np.ones((5, 4), np.int32)})]))


def test_selected_rows_are_what_they_would_be_packed_alone() -> None:
    whole = [trajectory(i, 2 + i % 4, None if i == 2 else i / 7, records={"r": np.full((2 + i % 4, 3), i)})
             for i in range(6)]  # fmt: skip
    columns = pack(whole)
    for rows in ([4, 0, 2], [3], [], [5, 5]):
        chosen = TOKENS.select(columns, rows)
        if rows:
            same(chosen, pack([whole[row] for row in rows]))
        assert all(len(column) == 0 for column in chosen.values()) or rows
        assert all(not np.shares_memory(chosen[name], columns[name]) for name in columns)


def test_a_batch_is_the_columns_of_its_groups_one_after_another() -> None:
    groups = [[trajectory(10 * g + k, 2 + (g + k) % 3) for k in range(3)] for g in range(4)]
    pool = Pool()
    for g, members in enumerate(groups):
        pool.add(Group.of(g, members, 3, 4))
    same(columns_of(pool.take([2, 0])), pack([*groups[2], *groups[0]]))


def test_observations_and_actions_wait_as_tokens_do() -> None:
    pool = Pool(WALKER)
    episodes = [[episode(10 * g + k, 2 + k) for k in range(3)] for g in range(2)]
    for g, members in enumerate(episodes):
        pool.add(Group(g, WALKER.pack(members), 2, 2, WALKER))
    first, second = pool.groups()
    assert first.ids == [0, 1, 2]
    assert first.policy_steps == 2 + 3 + 4
    assert pool.nbytes == first.nbytes + second.nbytes > sum(c.nbytes for c in first.columns.values())
    batch = columns_of(pool.take([1, 0]))
    WALKER.check(batch)
    assert batch["observation"].shape == (18, 3)
    np.testing.assert_array_equal(batch["action"][:2], episodes[1][0]["action"])
    same(WALKER.select(batch, [4]), WALKER.pack([episodes[0][1]]))
    with pytest.raises(InvariantError, match="group 0 holds actions, no tokens"):
        first.trajectories()
    with pytest.raises(InvariantError, match="group 7 holds tokens, this pool actions"):
        pool.add(Group.of(7, [trajectory(70, 3)], 0, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": None}, r"lack \['action'\]"),
        ({"entropy": np.zeros(5)}, r"have \['entropy'\], which it doesn't know"),
        ({"action": np.zeros((5, 3), np.float32)}, r"'action': expected float32 \[5, 2\] \(one per step\).*\[5, 3\]"),
        ({"observation": np.zeros((5, 3))}, "'observation': expected float32"),
        ({"mask": np.ones(5)}, "'mask': expected bool"),
        ({"reward": np.zeros(3)}, r"'reward': expected float64 \[2\] \(one per row\)"),
        ({"record.contact": np.zeros((4, 2))}, "'record.contact' has 4 entries for 5 steps"),
    ],
)
def test_columns_of_another_kind_are_named(change: dict[str, Any], message: str) -> None:
    columns = WALKER.pack([episode(0, 2), episode(1, 3)]) | change
    with pytest.raises(InvariantError, match=message):
        WALKER.check({name: column for name, column in columns.items() if column is not None})


def test_an_episode_without_a_column_is_named() -> None:
    short = episode(1, 3)
    del short["action"]
    with pytest.raises(InvariantError, match="episode 1 has no 'action'"):
        WALKER.pack([episode(0, 2), short])


def test_discrete_actions_and_image_observations() -> None:
    atari = actions((4, 4), observation_dtype=np.uint8, action_dtype=np.int64)
    e = episode(0, 3) | {"observation": np.zeros((3, 4, 4), np.uint8), "action": np.arange(3)}
    assert atari.pack([e])["action"].tolist() == [0, 1, 2]
    assert atari != WALKER
    assert atari == actions((4, 4), observation_dtype=np.uint8, action_dtype=np.int64)


def test_views_of_a_group_are_its_trajectories() -> None:
    whole = [trajectory(i, 3 + i) for i in range(3)]
    group = Group.of(0, whole, 3, 4)
    for own, view in zip(whole, group.trajectories(), strict=True):
        assert (view.id, view.reward, view.version_complete) == (own.id, own.reward, own.version_complete)
        assert np.shares_memory(view.tokens, group.columns["tokens"])
        np.testing.assert_array_equal(view.logprobs, own.logprobs)
    assert group.trajectory(1).id == unpack(group.columns)[1].id == 1


def test_schemas_do_not_mix_in_a_batch() -> None:
    assert isinstance(WALKER, Schema)
    with pytest.raises(InvariantError, match="columns differ"):
        concatenate([WALKER.pack([episode(0, 2)]), pack([trajectory(0, 2)])])
