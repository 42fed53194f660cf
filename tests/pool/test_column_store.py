"""Rows come when all that is asked for is there, once to each task; what is released can't be written or read again."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.arrays import Array
from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.kernel.errors import InvariantError
from stretto.pool.column_store import ColumnStore
from stretto.pool.rows import Rows
from stretto.pool.samplers import GroupComplete, Ready, Sampled

FIELDS = (
    Field("prompt", np.int32), Field("response", np.int32), Field("logp", np.floating),
    Field("reward", np.float64, per="row"), Field("image", np.uint8, (2, 2), per="row"),
)  # fmt: skip
lengths = st.lists(st.integers(0, 5), min_size=1, max_size=12)


def store() -> ColumnStore:
    return ColumnStore(FIELDS)


def tokens(numbers: list[int], seed: int = 0) -> Ragged:
    """Ragged rows of these lengths, no two entries alike."""
    return Ragged(np.arange(sum(numbers), dtype=np.int32) + 1000 * seed, np.array(numbers, np.int64))


def ragged(cells: Ragged) -> list[list[int]]:
    return [row.tolist() for row in cells.rows()]


@settings(max_examples=50)
@given(lengths, st.randoms(use_true_random=False))
def test_get_returns_what_was_put_in_any_order_of_rows(numbers: list[int], random: object) -> None:
    s = store()
    rows = s.add(len(numbers))
    given_tokens, rewards = tokens(numbers), np.arange(len(numbers), dtype=np.float64)
    s.put(rows, {"response": given_tokens, "reward": rewards})
    order = list(range(len(numbers)))
    random.shuffle(order)  # type: ignore[attr-defined]
    found = s.get(rows[order], ["reward", "response"])
    assert ragged(found["response"]) == [given_tokens.rows()[k].tolist() for k in order]
    assert np.array_equal(found["reward"].values, rewards[order])


def test_entries_of_long_rows_in_many_chunks_come_back_whole_and_shuffled() -> None:
    s = ColumnStore([Field("response", np.int32)])
    generator = np.random.default_rng(0)
    parts, kept = [], []
    for k in range(40):
        lengths_k = generator.integers(0, 3000, 16)
        parts.append(tokens(lengths_k.tolist(), k))
        kept.append(s.add(16))
        s.put(kept[-1], {"response": parts[-1]})
    everything = [row for part in parts for row in part.rows()]
    rows = Rows.join(kept)
    for order in (np.arange(len(rows)), generator.permutation(len(rows)), np.array([5, 5, 300])):
        found = s.get(rows[order], ["response"])["response"]
        for got, place in zip(found.rows(), order.tolist(), strict=True):
            assert np.array_equal(got, everything[place])


def test_memory_of_released_rows_is_used_again() -> None:
    s = store()
    held = []
    for k in range(50):
        rows = s.add(64, partition=str(k))
        s.put(rows, {"response": tokens([1000] * 64), "reward": np.zeros(64)})
        if k >= 2:
            s.clear(str(k - 2))
        held.append(s.nbytes)
    assert max(held[10:]) == held[10]
    assert len(s) == 128


def test_a_row_comes_only_when_all_requested_columns_are_there() -> None:
    s = store()
    rows = s.add(3)
    s.put(rows, {"prompt": tokens([1, 1, 1])})
    s.put(rows[[0, 2]], {"response": tokens([2, 2])})
    assert not len(s.request("update", ["prompt", "response"], 3))
    assert s.request("update", ["prompt", "response"], 2).ids() == rows[[0, 2]].ids()
    with pytest.raises(InvariantError, match=r"'response' of row \(1, 0\) isn't there yet"):
        s.get(rows, ["prompt", "response"])


def test_each_task_consumes_for_itself_and_each_row_once() -> None:
    s = store()
    rows = s.add(4)
    s.put(rows, {"prompt": tokens([1] * 4)})
    for task in ("reference", "reward"):
        first, second = s.request(task, ["prompt"], 3), s.request(task, ["prompt"], 1)
        assert first.ids() + second.ids() == rows.ids()
        assert not len(s.request(task, ["prompt"], 1))


def test_too_few_rows_are_no_batch_and_nothing_is_consumed() -> None:
    s = store()
    rows = s.add(2)
    s.put(rows, {"prompt": tokens([1, 1])})
    assert not len(s.request("a", ["prompt"], 3))
    assert s.request("a", ["prompt"], 2).ids() == rows.ids()


def test_one_rank_asked_again_gets_the_same_rows_and_another_gets_others() -> None:
    s = store()
    rows = s.add(8)
    s.put(rows, {"prompt": tokens([1] * 8)})

    def ask(rank: int, batch_index: int) -> list[tuple[int, int]]:
        return s.request("a", ["prompt"], 2, rank, batch_index).ids()

    given_out = {(rank, batch): ask(rank, batch) for batch in (0, 1) for rank in (0, 1)}
    assert sorted(itertools.chain(*given_out.values())) == sorted(rows.ids())
    assert all(ask(*asked) == answer for asked, answer in given_out.items())


def test_an_answer_whose_rows_are_gone_is_not_replaced_by_another_batch() -> None:
    s = store()
    rows = s.add(4)
    s.put(rows, {"prompt": tokens([1] * 4)})
    s.release(s.request("a", ["prompt"], 2, 0, 0))
    with pytest.raises(InvariantError, match="batch 0 of rank 0 is gone"):
        s.request("a", ["prompt"], 2, 0, 0)
    assert len(s.request("a", ["prompt"], 2, 0, 1)) == 2


def test_batches_count_from_zero_again_in_a_partition_of_the_same_name() -> None:
    s = store()
    for _ in range(3):
        rows = s.add(2, "step")
        s.put(rows, {"prompt": tokens([1, 1])})
        assert s.request("a", ["prompt"], 2, 0, 0, partition="step").ids() == rows.ids()
        assert s.clear("step") == 2


def test_a_late_write_is_counted_and_touches_nothing() -> None:
    s = store()
    old = s.add(2, "step 1")
    s.put(old, {"prompt": tokens([1, 1])})
    s.clear("step 1")
    new = s.add(2, "step 2")
    assert set(new.index) == set(old.index), "indices are used again"
    assert s.put(old, {"response": tokens([3, 3], seed=7), "reward": np.ones(2)}) == 0
    assert s.late_rows == 2
    assert not len(s.ready("a", ["response"]).index)
    s.put(new, {"response": tokens([1, 2], seed=1)})
    assert ragged(s.get(new, ["response"])["response"]) == [[1000], [1001, 1002]]


def test_of_a_write_that_is_late_for_some_rows_the_others_are_kept() -> None:
    s = store()
    rows = s.add(3)
    s.release(rows[[1]])
    assert s.put(rows, {"response": tokens([1, 2, 3]), "reward": np.arange(3.0)}) == 2
    kept = s.get(rows[[0, 2]], ["response", "reward"])
    assert ragged(kept["response"]) == [[0], [3, 4, 5]]
    assert np.array_equal(kept["reward"].values, [0.0, 2.0])
    assert s.late_rows == 1


def test_rows_of_a_cleared_partition_are_in_nobodys_reach() -> None:
    s = store()
    rows = s.add(2, "step 1")
    s.put(rows, {"prompt": tokens([1, 1])})
    assert s.clear("step 1") == 2
    assert s.clear("step 1") == 0
    assert len(s) == 0
    assert not len(s.request("a", ["prompt"], 1))
    for reach in (
        lambda: s.get(rows, ["prompt"]),
        lambda: s.release(rows),
        lambda: s.annotate(rows, tokens=rows.index),
    ):
        with pytest.raises(InvariantError, match="2 of 2 rows were released before"):
            reach()


def test_bytes_that_move_are_those_of_the_columns_asked_for() -> None:
    s = store()
    rows = s.add(4)
    s.put(rows, {"prompt": tokens([3] * 4), "reward": np.zeros(4), "logp": tokens_of(np.float32, [5] * 4)})
    assert s.bytes_put == 4 * 3 * 4 + 4 * 8 + 4 * 5 * 4
    s.get(rows[:2], ["logp"])
    assert s.bytes_got == 2 * 5 * 4


def tokens_of(dtype: type[np.generic], numbers: list[int]) -> Ragged:
    return Ragged(np.arange(sum(numbers)).astype(dtype), np.array(numbers, np.int64))


def test_who_subscribes_hears_ids_of_rows_and_names_of_columns() -> None:
    s, heard = store(), []
    s.subscribe(lambda rows, columns: heard.append((rows.ids(), list(columns))))
    rows = s.add(2)
    s.put(rows, {"prompt": tokens([1, 1])})
    s.release(rows)
    s.put(rows, {"response": tokens([1, 1])})  # late: nobody hears of it
    assert heard == [(rows.ids(), ["prompt"])]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"respnse": tokens([1, 1])}, "no column 'respnse'; did you mean 'response'"),
        ({"response": tokens([1])}, "1 rows are put for 2"),
        ({"response": np.zeros(2, np.int32)}, r"put Ragged\(values, lengths\)"),
        ({"reward": tokens([1, 1])}, "one entry per row: put an array"),
        ({"reward": np.zeros(2, np.int32)}, "expected float64"),
        ({"image": np.zeros((2, 2), np.uint8)}, r"expected uint8 \[2, 2, 2\]"),
        ({"prompt": tokens([1, 1])}, "was put twice"),
        ({"logp": tokens_of(np.float64, [1, 1])}, "holds float32, and float64 is put"),
    ],
)
def test_a_put_that_does_not_fit_says_why_and_writes_nothing(cells: dict[str, Array], message: str) -> None:
    s = store()
    s.put(s.add(1), {"logp": tokens_of(np.float32, [1])})
    rows = s.add(2)
    s.put(rows, {"prompt": tokens([1, 1])})
    before = s.bytes_put
    with pytest.raises(InvariantError, match=message):
        s.put(rows, {"image": np.ones((2, 2, 2), np.uint8), **cells})
    assert s.bytes_put == before
    assert not len(s.ready("a", ["image"]).index)


def test_a_row_that_is_named_twice_is_refused() -> None:
    s = store()
    rows = s.add(2)
    with pytest.raises(InvariantError, match="put: one row is there twice among 2"):
        s.put(rows[[0, 0]], {"prompt": tokens([1, 1])})
    with pytest.raises(InvariantError, match="release: one row is there twice among 2"):
        s.release(rows[[0, 0]])


class Greedy:
    """Takes what it was not offered."""

    ranks = 1

    def sample(self, ready: Ready, count: int) -> Sampled:
        return Sampled((ready.index + 1,), ready.index)


class WithReplacement:
    """Serves the newest row, and consumes none."""

    ranks = 1

    def sample(self, ready: Ready, count: int) -> Sampled:
        return Sampled((ready.index[-1:],), ready.index[:0])


def test_a_sampler_says_apart_what_is_served_and_what_is_consumed() -> None:
    s = store()
    rows = s.add(2)
    s.put(rows, {"prompt": tokens([1, 1])})
    with pytest.raises(InvariantError, match="Greedy took rows for task 'a' that aren't ready for it"):
        s.request("a", ["prompt"], 1, sampler=Greedy())
    for _ in range(3):
        assert s.request("a", ["prompt"], 1, sampler=WithReplacement()).ids() == rows[1:].ids()
    assert s.request("a", ["prompt"], 2).ids() == rows.ids()


Put = Callable[[ColumnStore, Rows], object]
PUTS: list[Put] = [
    lambda s, rows: s.put(rows, {"prompt": tokens([1, 0, 2, 3])}),
    lambda s, rows: s.put(rows[:2], {"response": tokens([4, 1]), "reward": np.array([1.0, 2.0])}),
    lambda s, rows: s.put(rows[2:], {"response": tokens([2, 2], seed=1)}),
    lambda s, rows: s.put(rows[2:3], {"reward": np.array([3.0])}),
    lambda s, rows: s.put(rows[3:], {"reward": np.array([4.0]), "logp": tokens_of(np.float32, [2])}),
]


@settings(max_examples=50)
@given(st.permutations(range(len(PUTS))))
def test_puts_on_different_cells_commute(order: list[int]) -> None:
    s = store()
    rows = s.add(4)
    for k in order:
        PUTS[k](s, rows)
    found = s.get(rows, ["prompt", "response", "reward"])
    assert ragged(found["prompt"]) == [[0], [], [1, 2], [3, 4, 5]]
    assert ragged(found["response"]) == [[0, 1, 2, 3], [4], [1000, 1001], [1002, 1003]]
    assert np.array_equal(found["reward"].values, [1, 2, 3, 4])
    assert s.request("a", ["prompt", "response", "reward"], 4).ids() == rows.ids()
    assert s.request("b", ["logp"], 1).ids() == rows[3:].ids()


class Ledger:
    """What a store must do, kept in dictionaries."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], dict[str, object]] = {}
        self.group: dict[tuple[int, int], int] = {}
        self.seen: dict[str, set[tuple[int, int]]] = {}

    def may_have(self, task: str, columns: list[str]) -> list[tuple[int, int]]:
        taken = self.seen.get(task, set())
        return [row for row, cells in self.cells.items() if set(columns) <= set(cells) and row not in taken]


@settings(max_examples=50)
@given(st.data())
def test_any_schedule_of_puts_requests_and_releases_does_as_a_ledger_says(data: st.DataObject) -> None:
    s, ledger, handles, gone = store(), Ledger(), {}, []
    wants = {"reference": ["prompt", "response"], "reward": ["response"], "update": ["prompt", "reward"]}
    late, groups = 0, itertools.count()
    for step in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["add", "put", "put", "put", "request", "request", "release", "late"]))
        if action == "add":
            group = next(groups)
            rows = s.add(3, str(group), np.full(3, group))
            for k, row in enumerate(rows.ids()):
                assert row not in ledger.group, "no row is ever there twice"
                ledger.cells[row], ledger.group[row], handles[row] = {}, group, rows[[k]]
        elif action == "put" and ledger.cells:
            row = data.draw(st.sampled_from(sorted(ledger.cells)))
            column = data.draw(st.sampled_from(["prompt", "response", "reward"]))
            value = tokens([step % 4], step) if column != "reward" else np.array([float(step)])
            if column in ledger.cells[row]:
                with pytest.raises(InvariantError, match="put twice"):
                    s.put(handles[row], {column: value})
            else:
                assert s.put(handles[row], {column: value}) == 1
                ledger.cells[row][column] = value.rows()[0].tolist() if isinstance(value, Ragged) else float(step)
        elif action == "request":
            task = data.draw(st.sampled_from(sorted(wants)))
            whole = data.draw(st.booleans())
            expected = ledger.may_have(task, wants[task])
            if whole:
                by_group: dict[int, list[tuple[int, int]]] = {}
                for row in expected:
                    by_group.setdefault(ledger.group[row], []).append(row)
                expected = next((rows for rows in by_group.values() if len(rows) == 3), [])
            count = 3 if whole else 2
            got = s.request(task, wants[task], count, sampler=GroupComplete(3)) if whole else s.request(
                task, wants[task], count)  # fmt: skip
            assert got.ids() == (expected[:count] if len(expected) >= count else [])
            ledger.seen.setdefault(task, set()).update(got.ids())
            found = s.get(got, wants[task])
            for name in wants[task]:
                values = found[name].values.tolist() if name == "reward" else ragged(found[name])
                assert values == [ledger.cells[row][name] for row in got.ids()]
        elif action == "release" and ledger.cells:
            row = data.draw(st.sampled_from(sorted(ledger.cells)))
            s.release(handles[row])
            del ledger.cells[row]
            gone.append(row)
        elif action == "late" and gone:
            late += 1
            assert s.put(handles[data.draw(st.sampled_from(gone))], {"response": tokens([2], 999)}) == 0
    assert s.late_rows == late
    assert len(s) == len(ledger.cells)
    for group in set(ledger.group.values()):
        s.clear(str(group))
    assert len(s) == 0
