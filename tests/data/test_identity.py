"""What things are called: versions; what trajectories draw with."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from stretto.data.identity import EVALUATIONS, GROUPS, MEMBERS, PolicyVersion, evaluation_noise_key, noise_key
from stretto.kernel.errors import InvariantError


def test_versions_are_values_ordered_within_their_policy() -> None:
    first, second = PolicyVersion(number=1), PolicyVersion(number=2)
    assert first == PolicyVersion("policy", 1)
    assert len({first, PolicyVersion("policy", 1), second, PolicyVersion("other", 1)}) == 3
    assert sorted([second, PolicyVersion("other", 7), first]) == [PolicyVersion("other", 7), first, second]
    assert str(second) == "version 2 of policy"
    with pytest.raises(FrozenInstanceError):
        first.number = 3  # type: ignore[misc]


@pytest.mark.parametrize(("policy", "number"), [("", 0), ("policy", -1)])
def test_a_version_that_can_not_be_is_refused(policy: str, number: int) -> None:
    with pytest.raises(InvariantError, match="a policy has a name"):
        PolicyVersion(policy, number)


def test_noise_keys_are_one_s_own_and_those_of_a_thousand_members_lie_side_by_side() -> None:
    assert [noise_key(0, 0), noise_key(7, 999), noise_key(8, 0)] == [0, 7999, 8000]
    groups = (0, 1, 2, 1000, 1001, GROUPS - 1)
    members = (0, 1, 999, 1000, 1001, 1999, 2000, 5000, MEMBERS - 1)
    keys = [noise_key(group, member) for group in groups for member in members]
    keys += [evaluation_noise_key(number) for number in (0, 1, 999, 1000, EVALUATIONS - 1)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 1 << 63 for key in keys)


@pytest.mark.parametrize(("group", "member"), [(GROUPS, 0), (0, MEMBERS), (-1, 0), (0, -1)])
def test_a_trajectory_beyond_all_keys_is_named(group: int, member: int) -> None:
    with pytest.raises(InvariantError, match=f"trajectory {member} of group {group} has no noise key"):
        noise_key(group, member)


@pytest.mark.parametrize("number", [EVALUATIONS, -1])
def test_an_evaluation_beyond_all_keys_is_named(number: int) -> None:
    with pytest.raises(InvariantError, match=f"evaluated trajectory {number} has no noise key"):
        evaluation_noise_key(number)
