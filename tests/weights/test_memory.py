"""Shared memory: it grows by need, places are used again, a flipped byte is found, and nothing stays behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pytest

from stretto.kernel.errors import WeightsError
from stretto.weights.memory import HEADER_BYTES, SharedMemory, place_bytes
from stretto.weights.transport import Place

from .tensors import equal, small, version, weights


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SharedMemory]:
    made = SharedMemory.open(tmp_path)
    yield made
    made.close()


def size(memory: SharedMemory) -> int:
    return os.fstat(memory.fd).st_size


def test_fetching_copies_nothing(memory: SharedMemory) -> None:
    staged = memory.stage(version(1), weights())
    a, b = memory.fetch(staged), memory.fetch(staged)
    assert a["embed"].data_ptr() == b["embed"].data_ptr()


@pytest.mark.parametrize("place", ["first", "last", "middle"])
def test_one_corrupted_byte_is_found(memory: SharedMemory, place: str) -> None:
    memory.stage(version(0), weights())
    staged = memory.stage(version(1), weights())
    last = staged.layout.entries[-1]
    data = {"first": 0, "middle": staged.nbytes // 2, "last": last.offset + last.nbytes - 1}[place]
    at = int(staged.where["offset"]) + HEADER_BYTES + data
    os.pwrite(memory.fd, bytes([os.pread(memory.fd, 1, at)[0] ^ 1]), at)
    with pytest.raises(WeightsError, match=r"version 1 of policy in shared memory is corrupt: checksum \w+, published"):
        memory.fetch(staged)


def test_a_place_that_was_released_or_used_again_is_known(memory: SharedMemory) -> None:
    old = memory.stage(version(1), small(1))
    memory.release(version(1))
    with pytest.raises(WeightsError, match=r"at byte 0 holds no version, expected version 1 of policy"):
        memory.fetch(old)
    memory.stage(version(3), small(3))
    with pytest.raises(WeightsError, match=r"at byte 0 holds version 3 .* expected version 1 of policy"):
        memory.fetch(old)


def test_places_are_used_again_and_the_memory_grows_by_need_alone(memory: SharedMemory) -> None:
    one = memory.stage(version(0), small(0))
    place = place_bytes(one.nbytes)
    for number in range(1, 9):
        memory.stage(version(number), small(number))
        memory.release(version(number - 1))
    assert size(memory) == 2 * place, "one is read, one is written"
    for number in range(9, 13):
        memory.stage(version(number), small(number))
    assert size(memory) == 5 * place


def test_a_reader_follows_when_the_memory_has_grown(memory: SharedMemory) -> None:
    reader = SharedMemory(memory.place)
    first = memory.stage(version(0), small(0))
    held = reader.fetch(first)
    for number in range(1, 6):
        staged = memory.stage(version(number), small(number))
        assert equal(reader.fetch(staged), small(number))
    assert equal(held, small(0)), "views of the old mapping stay good"


def test_a_version_that_the_memory_never_held_is_refused(memory: SharedMemory, tmp_path: Path) -> None:
    staged = memory.stage(version(1), small(1))
    other = SharedMemory.open(tmp_path)
    with pytest.raises(WeightsError, match=r"the shared memory has 0 bytes; the version would end at"):
        other.fetch(staged)
    other.close()


def test_larger_weights_get_a_place_of_their_own(memory: SharedMemory) -> None:
    memory.stage(version(0), small(0))
    memory.release(version(0))
    large = memory.stage(version(1), weights())
    again = memory.stage(version(2), small(2))
    assert int(large.where["offset"]) > 0
    assert again.where == {"offset": 0}


def test_what_is_reserved_is_there_before_anything_is_staged(memory: SharedMemory) -> None:
    memory.reserve(100_000, 2)
    assert size(memory) == 2 * place_bytes(100_000)
    memory.stage(version(0), small(0))
    assert size(memory) == 2 * place_bytes(100_000)


def test_no_memory_is_an_error_that_says_so_and_what_is_staged_stays(
    memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = memory.stage(version(0), small(0))

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WeightsError, match=r"no shared memory for another \d+ bytes of weights: No space left"):
        memory.stage(version(1), small(1))
    assert equal(memory.fetch(first), small(0))
    memory.release(version(0))
    assert equal(memory.fetch(memory.stage(version(1), small(1))), small(1)), "a free place needs no more"


def _writer(fd: Any, pipe: Any) -> None:
    memory = SharedMemory(Place("", (fd.detach(),)))
    pipe.send([memory.stage(version(n), weights(n)) for n in range(3)])
    pipe.recv()


def _reader(fd: Any, pipe: Any) -> None:
    memory = SharedMemory(Place("", (fd.detach(),)))
    pipe.send([equal(memory.fetch(staged), weights(n)) for n, staged in enumerate(pipe.recv())])
    pipe.recv()


def test_two_spawned_processes_share_versions_and_nothing_stays_behind(tmp_path: Path) -> None:
    memory = SharedMemory.open(tmp_path)
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for target in (_writer, _reader):
        ours, theirs = context.Pipe()
        child = context.Process(target=target, args=(_Shared(memory.fd), theirs))
        child.start()
        pipes.append(ours)
        children.append(child)
    try:
        assert pipes[0].poll(60)
        staged = pipes[0].recv()
        pipes[1].send(staged)
        assert pipes[1].poll(60)
        assert pipes[1].recv() == [True] * 3
        assert equal(memory.fetch(staged[1]), weights(1))
        assert all(_mappings(child.pid) for child in children)
    finally:
        for child in children:
            child.kill()
            child.join(10)
    assert not any(Path(f"/proc/{child.pid}").exists() for child in children)
    before = _mappings(os.getpid())
    memory.close()
    del memory
    gc.collect()
    assert before - _mappings(os.getpid()) == 1, "ours was the last mapping: the kernel frees the memory"


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
