"""Published weights: read back, verified, shared between processes."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.kernel.errors import WeightsError
from stretto.weights.layout import Layout
from stretto.weights.store import Staged, WeightStore


def weights(seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(700, 500, generator=g),
        "norm": torch.randn(7, generator=g),
        "half": torch.randn(3, 5, generator=g).bfloat16(),
        "wide": torch.randn(11, generator=g, dtype=torch.float64),
        "transposed": torch.randn(6, 4, generator=g).T,
    }


@pytest.fixture
def store() -> Any:
    made = WeightStore.create(Layout.of(weights()).nbytes)
    yield made
    made.close()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def test_what_is_read_is_what_was_staged(store: WeightStore) -> None:
    first = store.stage(0, 1, weights(1))
    second = store.stage(1, 2, weights(2))
    assert equal(store.read(0, first), weights(1))
    assert equal(store.read(1, second), weights(2))
    assert first.checksum != second.checksum
    assert store.stage(0, 3, weights(1)).checksum != first.checksum  # the version is part of it


def test_reading_copies_nothing(store: WeightStore) -> None:
    staged = store.stage(0, 1, weights())
    a, b = store.read(0, staged), store.read(0, staged)
    assert a["embed"].data_ptr() == b["embed"].data_ptr()


@pytest.mark.parametrize("place", ["first", "last", "middle"])
def test_one_corrupted_byte_is_detected(store: WeightStore, place: str) -> None:
    staged = store.stage(0, 1, weights())
    last = staged.layout.entries[-1]
    at = {"first": 0, "middle": staged.nbytes // 2, "last": last.offset + last.nbytes - 1}[place]
    with open(f"/proc/self/fd/{store.fd}", "r+b") as file:
        file.seek(4096 + at)
        byte = file.read(1)[0]
        file.seek(4096 + at)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(WeightsError, match="version 1 in slot 0 is corrupt"):
        store.read(0, staged)


def test_another_version_is_detected(store: WeightStore) -> None:
    old = store.stage(0, 1, weights(1))
    store.stage(0, 3, weights(1))
    with pytest.raises(WeightsError, match=r"slot 0 holds version 3 .* expected version 1"):
        store.read(0, old)
    with pytest.raises(WeightsError, match="slot 1 holds no version"):
        store.read(1, old)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_weights_are_refused_and_leave_no_version(store: WeightStore, bad: float) -> None:
    good = store.stage(0, 1, weights())
    broken = weights()
    broken["embed"][699, 499] = bad
    with pytest.raises(WeightsError, match="'embed' isn't finite"):
        store.stage(0, 2, broken)
    with pytest.raises(WeightsError, match="holds no version"):
        store.read(0, good)


def test_large_finite_weights_whose_sum_overflows_pass() -> None:
    big = {"w": torch.full((4,), 3e38)}
    store = WeightStore.create(Layout.of(big).nbytes)
    assert equal(store.read(0, store.stage(0, 1, big)), big)


def test_too_large_or_wrongly_typed_weights_are_refused(store: WeightStore) -> None:
    with pytest.raises(WeightsError, match="the slot has"):
        store.stage(0, 1, {"w": torch.zeros(10**6)})
    with pytest.raises(WeightsError, match="int64"):
        store.stage(0, 1, {"w": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(WeightsError, match="no slot 2"):
        store.stage(2, 1, weights())


def test_layout_survives_json() -> None:
    layout = Layout.of(weights())
    assert Layout.from_json(layout.to_json()) == layout
    assert all(e.offset % 64 == 0 for e in layout.entries)


def _writer(fd: Any, slot_bytes: int, pipe: Any) -> None:
    store = WeightStore.attach(fd.detach(), slot_bytes)
    pipe.send(store.stage(1, 5, weights(5)))
    pipe.recv()


def _reader(fd: Any, slot_bytes: int, pipe: Any) -> None:
    store = WeightStore.attach(fd.detach(), slot_bytes)
    staged: Staged = pipe.recv()
    pipe.send(equal(store.read(1, staged), weights(5)))
    pipe.recv()


def test_two_spawned_processes_share_a_version_and_nothing_stays_behind() -> None:
    slot_bytes = Layout.of(weights()).nbytes
    store = WeightStore.create(slot_bytes)
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for target in (_writer, _reader):
        ours, theirs = context.Pipe()
        child = context.Process(target=target, args=(_Shared(store.fd), slot_bytes, theirs))
        child.start()
        pipes.append(ours)
        children.append(child)
    try:
        assert pipes[0].poll(60)
        staged = pipes[0].recv()
        pipes[1].send(staged)
        assert pipes[1].poll(60)
        assert pipes[1].recv() is True
        assert equal(store.read(1, staged), weights(5))
        assert all(_mappings(child.pid) for child in children)
    finally:
        for child in children:
            child.kill()
            child.join(10)
    assert not any(Path(f"/proc/{child.pid}").exists() for child in children)
    before = _mappings(os.getpid())
    store.close()
    del store
    gc.collect()
    assert before - _mappings(os.getpid()) == 1  # ours was the last mapping: the kernel frees the memory


class _Shared:
    """Pickles as a duplicate of the descriptor, made while the child is spawned."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> Any:
        return _same, (reduction.DupFd(self.fd),)


def _same(duplicate: Any) -> Any:
    return duplicate


def _mappings(pid: int | None) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:stretto-weights")
