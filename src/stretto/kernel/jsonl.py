"""JSON lines as they are read everywhere: one object a line, errors with file and line, a torn end forgiven.

A process that is killed while it writes leaves the beginning of a line at the end of its file. Readers of such files
drop it; whoever goes on writing to one cuts it off first (``cut_torn_line``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from stretto.kernel.errors import DataError
from stretto.kernel.json import JsonObject

_BOM = b"\xef\xbb\xbf"  # some editors put it first
_BLOCK = 1 << 16


def read_jsonl(
    path: Path, *, torn: bool = True, loads: Callable[[bytes], object] = orjson.loads
) -> Iterator[tuple[int, JsonObject]]:
    """(line number from 1, object) of each line of a file; see ``parse_jsonl``."""
    with open(path, "rb") as file:
        yield from parse_jsonl(iter(lambda: file.read(_BLOCK), b""), path, torn=torn, loads=loads)


def parse_jsonl(
    blocks: Iterable[bytes],
    path: Path,
    *,
    torn: bool = True,
    loads: Callable[[bytes], object] = orjson.loads,
    hint: str = "each line must be one object {...}",
    malformed: Callable[[bytes], JsonObject] | None = None,
) -> Iterator[tuple[int, JsonObject]]:
    """(line number from 1, object) of each line of these pieces of a file's text; blank lines are left out.

    Args:
        path: the file that messages name.
        torn: drop a last line that has no end and isn't JSON.
        loads: reads one line; raises ``ValueError`` if it can't.
        hint: what to do about a line that isn't an object.
        malformed: makes an object of such a line, and reading goes on.

    Raises:
        DataError: a line isn't a JSON object (names file and line), unless ``malformed`` is given.
    """
    for number, (line, whole) in enumerate(_lines(blocks), 1):
        if not line.strip():
            continue
        error: ValueError | None = None
        try:
            value = loads(line)
            if isinstance(value, dict):
                yield number, value
                continue
            what = f"a JSON {type(value).__name__}"
        except UnicodeDecodeError as found:
            error, what = found, f"not UTF-8 text ({found})"
        except ValueError as found:
            error, what = found, f"not JSON ({found})"
        if error is not None and torn and not whole:
            return
        if malformed is None:
            raise DataError(f"{path}:{number}: {what}; {hint}") from error
        yield number, malformed(line)


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last end of a line, so that the next one begins a line of its own."""
    with open(path, "r+b") as file:
        end = at = file.seek(0, os.SEEK_END)
        while at:
            start = max(0, at - _BLOCK)
            file.seek(start)
            if (found := file.read(at - start).rfind(b"\n")) >= 0:
                at = start + found + 1
                break
            at = start
        if at < end:
            file.truncate(at)


def _lines(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is whole (its end is there)."""
    rest, first = b"", True
    for block in blocks:
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line.removeprefix(_BOM) if first else line, True
            first = False
    if rest:
        yield rest.removeprefix(_BOM) if first else rest, False
