"""Prefixes of trajectories that span versions, and how far a policy has moved away from them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.data.columns import pack
from stretto.data.trajectory import Trajectory
from stretto.pool.segments import forgetting, prefix


def trajectory(versions: list[int], mask: list[int], logprobs: list[float] | None = None) -> Trajectory:
    n = len(versions)
    return Trajectory(3, 1, np.arange(n, dtype=np.int32), np.array(mask, bool), np.array(versions, np.int32),
                      np.array(logprobs or [-1.0] * n), np.zeros(n), 1.0, version_complete=7)  # fmt: skip


def test_a_prefix_ends_with_the_last_token_older_than_the_last_one() -> None:
    found = prefix(trajectory([0, 0, 4, 5, 0, 5, 6, 6], [0, 0, 1, 1, 0, 1, 1, 1]))
    assert found is not None
    assert found.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert found.mask.tolist() == [False, False, True, True, False, True]
    assert (found.id, found.version_complete) == (3, 7)


@pytest.mark.parametrize("mask", [[0, 1, 1, 1], [0, 0, 0, 0]])
def test_one_version_has_no_prefix(mask: list[int]) -> None:
    assert prefix(trajectory([0, 4, 4, 4], mask)) is None


def test_forgetting_is_a_mean_over_policy_tokens() -> None:
    first = prefix(trajectory([0, 4, 4, 5], [0, 1, 1, 1], [np.nan, -1.0, -2.0, -3.0]))
    second = prefix(trajectory([0, 4, 5], [0, 1, 1], [0.0, -0.5, -1.0]))
    assert first is not None
    assert second is not None
    columns = pack([first, second])
    logp = np.array([0.0, -1.5, -1.0, 0.0, -0.25])
    assert forgetting(columns, logp, absolute=False).tolist() == [0.25, 0.0]
    assert forgetting(columns, logp, absolute=True).tolist() == [0.75, 0.25]
