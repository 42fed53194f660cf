"""What things are called: versions."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from stretto.data.identity import PolicyVersion
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
