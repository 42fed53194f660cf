"""The file that holds a run's events: written in pieces, read as a stream, whole after any crash.

``events.jsonl.gz`` holds the lines as gzip members one after another, which every gzip tool reads (``zcat``,
``gzip.open``, ``pandas``); ``events.jsonl`` holds them as they are. A member ends at each checkpoint, so that a resumed
run cuts the file there and goes on with a new one, and after a few mebibytes, so that a damaged spot costs one member.
What a flush has written can be read while the member is still open: a killed process loses what it had not flushed,
and the last line may be torn. Equal events flushed at equal places give equal bytes.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stretto.kernel.errors import DataError
from stretto.kernel.jsonl import parse_jsonl

Event = dict[str, Any]
PLAIN, GZIP = "events.jsonl", "events.jsonl.gz"
FORMAT = 4
"""Of the events, said in RunStart. 2: one FirstToken for all requests that an engine tells of at once. 3: max_num_seqs,
and the hooks' names of today in ``rules``. 4: trajectories are numbered through the run,
workers say their role, and rules what they promise."""
MALFORMED = "?"
"""Name of the event that stands for a line which isn't a JSON object."""
_LEVEL = 1
"""Leaves a thirteenth of the quickstart's lines for 0.35 ms a step; level 6 an eighteenth for 1.2 ms."""
_MEMBER = 4 << 20
_BLOCK = 1 << 16
_MAGIC = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
_WBITS = 31  # deflate in a gzip member
_DAMAGED = b"\ndamaged: gzip\n"
_DAMAGE = "the log was damaged: put an undamaged one back, or start a new run"


def find_log(run: Path | str) -> Path | None:
    """The event log of a run directory (or of the path of a log, compressed or not); None: there is none."""
    run = Path(run)
    folder = run.parent if run.name in (PLAIN, GZIP) else run
    return next((path for name in (GZIP, PLAIN) if (path := folder / name).is_file()), None)


class LogFile:
    """Appends to a log; compressed if its name ends in ``.gz``. ``offset``: bytes of the file, all that was sealed or
    flushed included."""

    def __init__(self, path: Path, append: bool) -> None:
        self.path = path
        self.offset = path.stat().st_size if append else 0
        self._file: BinaryIO = open(path, "ab" if append else "wb")  # noqa: SIM115
        self._gzip = path.suffix == ".gz"
        self._member: zlib._Compress | None = None
        self._held = 0  # bytes that the open member stands for
        self._unflushed = 0

    def write(self, data: bytes) -> None:
        """Whole lines."""
        self._unflushed += len(data)
        if not self._gzip:
            self._put(data)
            return
        if self._member is None:
            self._member = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WBITS)
        self._put(self._member.compress(data))
        self._held += len(data)
        if self._held >= _MEMBER:
            self.seal()

    def _put(self, data: bytes) -> None:
        if data:
            self._file.write(data)
            self.offset += len(data)

    def flush(self, least: int = 1) -> None:
        """Let others read what was written, if that is ``least`` bytes since the last time."""
        if self._unflushed < least:
            return
        self._unflushed = 0
        if self._member is not None:
            self._put(self._member.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def seal(self) -> None:
        """End the member: the file can be cut at ``offset`` and go on with another one."""
        if self._member is not None:
            self._put(self._member.flush())
            self._member, self._held = None, 0

    def sync(self) -> None:
        """Seal, and force everything to the disk."""
        self.seal()
        self._unflushed = 0
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Seal and close."""
        self.seal()
        self._file.close()


def cut_tail(path: Path, offset: int) -> None:
    """Cut a file at ``offset`` bytes; what follows is moved to ``<name>.lost-<k>``."""
    if not path.exists() or path.stat().st_size <= offset:
        return
    k = 0
    while (lost := path.with_name(f"{path.name}.lost-{k}")).exists():
        k += 1
    with open(path, "r+b") as file, open(lost, "wb") as tail:
        file.seek(offset)
        for block in _whole(file) if path.suffix == ".gz" else iter(lambda: file.read(_BLOCK), b""):
            tail.write(block)
        file.truncate(offset)


def _whole(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a compressed log as one member that ends: of a killed process the last one does not."""
    member = zlib.compressobj(_LEVEL, wbits=_WBITS)
    for text in _members(iter(lambda: file.read(_BLOCK), b"")):
        yield member.compress(text)
    yield member.flush()


def read_blocks(path: Path, size: int | None = None) -> Iterator[bytes]:
    """The log's text in pieces, uncompressed; of the first ``size`` bytes of the file, if given."""
    left = path.stat().st_size if size is None else size
    with open(path, "rb") as file:
        blocks = _blocks(file, left)
        yield from _members(blocks) if path.suffix == ".gz" else blocks


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    while left > 0 and (block := file.read(min(_BLOCK, left))):
        left -= len(block)
        yield block


def _members(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Text of gzip members one after another, the last one torn or not; what is damaged becomes a line that says so."""
    member: zlib._Decompress | None = None
    lost = False  # looking for the next member
    for block in blocks:
        data = block
        while data:
            if lost:
                at = data.find(_MAGIC)
                if at < 0:
                    break
                data, lost = data[at:], False
            fresh = member is None
            if member is None:
                member = zlib.decompressobj(_WBITS)
            try:
                text = member.decompress(data)
            except zlib.error:
                yield _DAMAGED
                member, lost, data = None, True, data[1:] if fresh else data
                continue
            yield text
            data = b""
            if member.eof:
                data, member = member.unused_data, None


def stream_events(
    run: Path | str, size: int | None = None, *, strict: bool = False, any_format: bool = False
) -> Iterator[Event]:
    """The events of a run (its directory, or the path of its log), in order, those in the first ``size`` bytes of the
    file if given. A torn last line (the process was killed while writing) is dropped. Any other line that isn't a JSON
    object comes as ``{"e": MALFORMED, "malformed": its beginning}``, or with ``strict`` raises. ``any_format``: also of
    a log whose events have other fields than those of today.

    Raises:
        DataError: there is no event log, or one of another format; with ``strict``: a line isn't an event (names the
            file and the line).
    """
    path = find_log(run)
    if path is None:
        raise DataError(f"{run}: no {PLAIN} here, compressed or not; give a run directory (the `out` of a run)")
    return _events(path, size, strict, any_format)


def _events(path: Path, size: int | None, strict: bool, any_format: bool) -> Iterator[Event]:
    lines = parse_jsonl(read_blocks(path, size), path, hint=_DAMAGE, malformed=None if strict else _malformed)
    for number, event in lines:
        if strict and not ("e" in event and "t" in event):
            raise DataError(f"{path}:{number}: not an event; {_DAMAGE}")
        if not any_format and event.get("format", FORMAT) != FORMAT:
            raise DataError(
                f"{path} is an event log of format {event['format']}, and this Stretto reads format {FORMAT}: read "
                "it with the Stretto that wrote it, or make the run anew (`stretto log` prints it as it is)"
            )
        yield event


def _malformed(line: bytes) -> Event:
    return {"e": MALFORMED, "malformed": line[:80].decode(errors="replace")}
