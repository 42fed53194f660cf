"""JSON lines: one reader, whatever writes them and however it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stretto.kernel.errors import DataError
from stretto.kernel.jsonl import cut_torn_line, parse_jsonl, read_jsonl


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_blank_lines_a_byte_order_mark_and_foreign_line_ends_are_no_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 2}')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": 2})]
    assert list(read_jsonl(write(path, b""))) == []


def test_pieces_may_be_cut_anywhere(tmp_path: Path) -> None:
    text = '{"a": "é"}\n{"b": 2}\n'.encode()
    for at in range(len(text) + 1):
        assert [v for _, v in parse_jsonl([text[:at], text[at:]], tmp_path)] == [{"a": "é"}, {"b": 2}]


def test_a_torn_last_line_is_dropped_where_files_may_be_torn(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n{"a": ')
    assert list(read_jsonl(path)) == [(1, {"a": 1})]
    with pytest.raises(DataError, match=r"a\.jsonl:2: not JSON"):
        list(read_jsonl(path, torn=False))
    with pytest.raises(DataError, match=r"a\.jsonl:2: not JSON"):  # it has an end: it was written so
        list(read_jsonl(write(path, b'{"a": 1}\n{"a": \n')))


@pytest.mark.parametrize(
    ("line", "said"), [(b"[1]", "a JSON list"), (b"1", "a JSON int"), (b"{'a': 1}", "not JSON"), (b'"\xff"', "not ")]
)
def test_other_lines_are_named_by_file_and_line_or_taken_as_told(line: bytes, said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(DataError, match=rf"a\.jsonl:2: {said}.*each line must be one object"):
        list(read_jsonl(path))
    found: list[Any] = [v for _, v in parse_jsonl([path.read_bytes()], path, malformed=lambda raw: {"bad": raw})]
    assert found == [{"a": 1}, {"bad": line}, {"a": 2}]


def test_what_reads_a_line_may_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b'{"a": %d}\n' % 10**30)
    assert list(read_jsonl(path, loads=json.loads)) == [(1, {"a": 10**30})]
    with pytest.raises(DataError, match=r"a\.jsonl:1: not UTF-8 text"):
        list(read_jsonl(write(path, b'{"a": "\xff"}\n'), loads=lambda raw: json.loads(raw.decode())))


@pytest.mark.parametrize("whole", [b"", b'{"a": 1}\n', b'{"a": 1}\n' * 10_000])
@pytest.mark.parametrize("torn", [b"", b'{"a"', b"x" * 200_000])
def test_a_torn_line_is_cut_off_and_nothing_else(whole: bytes, torn: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", whole + torn)
    cut_torn_line(path)
    assert path.read_bytes() == whole
