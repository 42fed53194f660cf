"""Samplers: whole groups or none, ranks that share what is ready, parts of nearly equal sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.schema import Field
from stretto.kernel.errors import InvariantError
from stretto.pool.balance import largest_differencing
from stretto.pool.column_store import ColumnStore
from stretto.pool.samplers import GroupComplete, LengthBalanced, Ready, Sequential, whole_groups


def ready(groups: list[int], tokens: list[int] | None = None) -> Ready:
    """Rows of these groups in order of arrival, with indices that aren't in order."""
    index = (np.arange(len(groups)) * 7 + 3) % 97
    meta = {} if tokens is None else {"tokens": np.array(tokens, np.int64)}
    return Ready(index, np.array(groups, np.int64), meta)


def test_sequential_takes_what_came_first() -> None:
    r = ready([0, 0, 1])
    found = Sequential().sample(r, 2)
    assert found is not None
    assert found.shares[0].tolist() == found.consumed.tolist() == r.index[:2].tolist()
    assert Sequential().sample(r, 4) is None


@settings(max_examples=50)
@given(st.lists(st.integers(0, 6), max_size=24), st.integers(1, 4), st.integers(1, 4))
def test_a_group_comes_whole_or_not_at_all(groups: list[int], size: int, wanted: int) -> None:
    counts = {g: groups.count(g) for g in groups}
    r = ready(groups)
    if counts and max(counts.values()) > size:
        with pytest.raises(InvariantError, match=f"groups of {size} were asked for"):
            whole_groups(r, size, size)
        return
    complete = [g for g in dict.fromkeys(groups) if counts[g] == size]
    found = GroupComplete(size).sample(r, size * wanted)
    if len(complete) < wanted:
        assert found is None
        return
    assert found is not None
    expected = [r.index[k] for g in complete[:wanted] for k in range(len(groups)) if groups[k] == g]
    assert found.shares[0].tolist() == found.consumed.tolist() == expected


def test_a_count_that_is_no_whole_number_of_groups_is_refused() -> None:
    with pytest.raises(InvariantError, match="5 rows can't be whole groups of 2: ask for a multiple of 2"):
        GroupComplete(2).sample(ready([0, 0]), 5)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), max_size=7), st.integers(1, 3))
def test_differencing_divides_all_weights_and_no_worse_than_greedy_allows(weights: list[int], parts: int) -> None:
    found = largest_differencing(weights, parts)
    assert len(found) == parts
    assert sorted(itertools.chain(*found)) == list(range(len(weights)))
    largest = max(sum(weights[k] for k in part) for part in found)
    best = min(
        (max(sum(w for w, to in zip(weights, where, strict=True) if to == p) for p in range(parts))
         for where in itertools.product(range(parts), repeat=len(weights))), default=0,
    )  # fmt: skip
    assert best <= largest <= best * 4 / 3 + 1e-9  # the bound of the longest-first rule, which differencing keeps


def test_differencing_of_the_textbook_example() -> None:
    weights = [8, 7, 6, 5, 4]
    found = largest_differencing(weights, 2)
    assert sorted(sum(weights[k] for k in part) for part in found) == [14, 16]  # Karmarkar-Karp leaves 2


@settings(max_examples=50)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(1, 4))
def test_with_equal_counts_all_parts_get_equally_many(weights: list[int], parts: int) -> None:
    many = weights * parts
    found = largest_differencing(many, parts, equal_counts=True)
    assert {len(part) for part in found} == {len(weights)}
    assert sorted(itertools.chain(*found)) == list(range(len(many)))


def test_weights_that_cannot_be_shared_equally_are_refused() -> None:
    with pytest.raises(InvariantError, match="3 weights can't be divided into 2 parts"):
        largest_differencing([1, 2, 3], 2, equal_counts=True)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 3))
def test_ranks_get_whole_groups_disjoint_and_together_all_that_is_ready(
    sizes: list[int], ranks: int, group: int
) -> None:
    per_rank = len(sizes)
    tokens = np.repeat(np.array(sizes * ranks), group)
    s = ColumnStore([Field("x", np.int64, per="row")])
    rows = s.add(len(tokens), group=np.repeat(np.arange(per_rank * ranks), group), tokens=tokens)
    s.put(rows, {"x": tokens})
    sampler = LengthBalanced(group, ranks)

    def ask(rank: int) -> list[tuple[int, int]]:
        return s.request("update", ["x"], per_rank * group, rank, 0, sampler=sampler).ids()

    shares = [ask(rank) for rank in reversed(range(ranks))][::-1]
    assert sorted(itertools.chain(*shares)) == sorted(rows.ids())
    assert shares == [ask(rank) for rank in range(ranks)]
    of = dict(zip(rows.ids(), np.repeat(np.arange(per_rank * ranks), group).tolist(), strict=True))
    assert all(len({of[row] for row in share}) == per_rank for share in shares)
    assert not len(s.ready("update", ["x"]).index)


def test_ranks_of_long_and_short_groups_get_nearly_equal_tokens() -> None:
    tokens = np.random.default_rng(1).lognormal(5, 1, 256).astype(np.int64)
    found = LengthBalanced(4, 8).sample(ready_of(tokens), 32)
    assert found is not None
    at = {int(k): int(t) for k, t in enumerate(tokens)}
    sums = [sum(at[int(k)] for k in share) for share in found.shares]
    in_order = tokens.reshape(8, 32).sum(1)
    assert max(sums) - min(sums) < 0.5 * (in_order.max() - in_order.min())


def ready_of(tokens: np.ndarray) -> Ready:
    return Ready(np.arange(len(tokens)), np.arange(len(tokens)) // 4, {"tokens": tokens})


def test_a_sampler_for_all_ranks_needs_to_know_which_batch_and_which_rank() -> None:
    s = ColumnStore([Field("x", np.int64, per="row")])
    s.put(s.add(2, tokens=np.ones(2, np.int64)), {"x": np.arange(2)})
    with pytest.raises(InvariantError, match="a sampler for 2 ranks needs a batch_index"):
        s.request("a", ["x"], 1, sampler=LengthBalanced(1, 2))
    with pytest.raises(InvariantError, match="dp_rank = 2 of a sampler for 2 ranks"):
        s.request("a", ["x"], 1, 2, 0, sampler=LengthBalanced(1, 2))
    with pytest.raises(InvariantError, match=r"no metadata 'words' to be balanced by; annotate\(words=...\)"):
        s.request("a", ["x"], 1, 0, 0, sampler=LengthBalanced(1, 2, by="words"))
