"""Files: whole or not there at all, in a format that others read, and gone when nobody needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from stretto.kernel.errors import WeightsError
from stretto.weights import files
from stretto.weights.files import MODEL, Files

from .tensors import equal, small, version, weights


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Files]:
    transport = Files.open(tmp_path / "weights")
    yield transport
    transport.close()
    assert not (tmp_path / "weights").exists()


def names(transport: Files) -> list[str]:
    return sorted(p.name for p in Path(transport.place.directory).iterdir())


def test_a_version_is_a_directory_that_safetensors_reads(made: Files) -> None:
    staged = made.stage(version(12), weights())
    assert names(made) == ["policy-000012"]
    file = Path(str(staged.where["directory"]), MODEL)
    assert equal(load_file(file), {name: tensor.contiguous() for name, tensor in weights().items()})
    assert staged.nbytes == file.stat().st_size
    made.release(version(12))
    assert names(made) == []


@pytest.mark.parametrize("place", [0, 9, -1])
def test_one_corrupted_byte_is_found(made: Files, place: int) -> None:
    staged = made.stage(version(1), small(1))
    file = Path(str(staged.where["directory"]), MODEL)
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=r"version 1 of policy in .*policy-000001 is corrupt: checksum"):
        made.fetch(staged)


def test_a_file_that_is_gone_is_an_error_that_says_so(made: Files) -> None:
    staged = made.stage(version(1), small(1))
    Path(str(staged.where["directory"]), MODEL).unlink()
    with pytest.raises(WeightsError, match=r"version 1 of policy: .*model\.safetensors can't be read: No such file"):
        made.fetch(staged)


def test_a_full_disk_says_so_and_leaves_the_version_before(made: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    first, write = made.stage(version(1), small(1)), files._write

    def full(path: Path, data: bytes) -> None:
        write(path, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write", full)
    said = r"version 2 of policy can't be written to .*weights: No space left on device\. Make room"
    with pytest.raises(WeightsError, match=said):
        made.stage(version(2), small(2))
    assert names(made) == ["policy-000001"]
    assert equal(made.fetch(first), small(1))
    monkeypatch.undo()
    assert equal(made.fetch(made.stage(version(2), small(2))), small(2))


def test_what_a_killed_run_left_is_gone_when_it_goes_on(tmp_path: Path) -> None:
    killed = Files.open(tmp_path / "weights")
    killed.stage(version(1), small(1))
    (tmp_path / "weights" / ".policy-000002").mkdir()
    again = Files.open(tmp_path / "weights")
    assert names(again) == []
    assert equal(again.fetch(again.stage(version(1), small(1))), small(1))
