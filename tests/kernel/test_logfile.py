"""The file of the event log: equal lines whichever its form, readable after a crash, cut and continued."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import orjson
import pytest

from stretto.kernel.errors import DataError
from stretto.kernel.events import EventLog, read_events
from stretto.kernel.logfile import FORMAT, GZIP, MALFORMED, PLAIN, LogFile, cut_tail, find_log, stream_events
from stretto.observe.checker import check_run
from stretto.observe.report import write_report

NAMES = (GZIP, PLAIN)


def written(path: Path, numbers: range, *, offset: int | None = None, flush_at: int = 300) -> tuple[EventLog, int]:
    """A log that holds these numbers, its file sealed after them, and how long that was then."""
    log = EventLog(path, lambda: 0.0, offset)
    for n in numbers:
        log.emit("Submitted", n=n, traj=[n * 1000 + k for k in range(8)])
        if n % flush_at == 0:
            log.flush()
    return log, log.seal()[path.name]


def numbers(path: Path) -> list[int]:
    return [e["n"] for e in read_events(path)]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_written_is_read_by_directory_and_by_either_path(name: str, tmp_path: Path) -> None:
    log, _ = written(tmp_path / name, range(2000))
    sha256 = log.close()
    for where in (tmp_path, tmp_path / PLAIN, tmp_path / GZIP):
        assert numbers(where) == list(range(2000))
    assert find_log(tmp_path) == tmp_path / name
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name == GZIP else data
    assert hashlib.sha256(text).hexdigest() == sha256
    assert len(data) < len(text) / 4 or name == PLAIN
    assert [orjson.loads(line)["n"] for line in text.splitlines()] == list(range(2000))


@pytest.mark.parametrize("name", NAMES)
def test_a_flush_can_be_read_while_the_file_is_open(name: str, tmp_path: Path) -> None:
    log = EventLog(tmp_path / name, lambda: 0.0)
    for n in range(5):
        log.emit("Submitted", n=n)
        assert numbers(tmp_path) == list(range(n)) if n else True
        log.flush()
        assert numbers(tmp_path) == list(range(n + 1))


def test_the_end_of_a_step_is_readable_once_it_is_worth_a_flush(tmp_path: Path) -> None:
    log = EventLog(tmp_path / GZIP, lambda: 0.0)
    log.emit("Submitted", n=0)
    log.step_ended()
    assert read_events(tmp_path) == []
    log.emit("Submitted", n=1, padding="x" * 20_000)
    log.step_ended()
    assert numbers(tmp_path) == [0, 1]


@pytest.mark.parametrize("name", NAMES)
def test_a_process_killed_at_any_byte_leaves_what_came_before(name: str, tmp_path: Path) -> None:
    log, sealed = written(tmp_path / name, range(600), flush_at=100)
    for n in range(600, 640):
        log.emit("Submitted", n=n)
    log.close()
    data = (tmp_path / name).read_bytes()
    before = -1
    for end in [*range(0, 40), *range(40, len(data), 37), sealed, len(data)]:
        (tmp_path / name).write_bytes(data[:end])
        found = numbers(tmp_path)
        assert found == list(range(len(found)))
        assert len(found) >= before or end in (sealed, len(data))
        before = len(found)
    assert before == 640


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_on_where_the_file_was_sealed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    log, sealed = written(path, range(500))
    for n in range(900, 950):  # what a checkpoint doesn't know of, torn
        log.emit("Submitted", n=n)
    log.flush()
    path.write_bytes(path.read_bytes()[:-3])
    assert numbers(tmp_path / PLAIN)[-1] > 900
    assert [e["n"] for e in read_events(tmp_path, sealed)] == list(range(500))
    again, _ = written(path, range(500, 800), offset=sealed)
    sha256 = again.close()
    assert numbers(tmp_path) == list(range(800))
    assert (tmp_path / f"{name}.lost-0").exists()
    whole, _ = written(tmp_path / "whole.jsonl", range(800))
    assert whole.close() == sha256, "the same text as of a run that was never cut"


def test_equal_events_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / GZIP, range(700))[0].close()
    assert (tmp_path / "a" / GZIP).read_bytes() == (tmp_path / "b" / GZIP).read_bytes()


@pytest.mark.parametrize("at", [0, 20, 400, 2000])
def test_a_damaged_spot_is_told_and_costs_one_member(at: int, tmp_path: Path) -> None:
    log, first = written(tmp_path / GZIP, range(1000))
    for n in range(1000, 1100):
        log.emit("Submitted", n=n)
    log.close()
    data = bytearray((tmp_path / GZIP).read_bytes())
    assert at < first
    data[at : at + 4] = bytes(255 - b for b in data[at : at + 4])
    (tmp_path / GZIP).write_bytes(data)
    found: list[dict[str, Any]] = list(stream_events(tmp_path))
    assert any(e["e"] == MALFORMED for e in found)
    assert [e["n"] for e in found if "n" in e][-100:] == list(range(1000, 1100))
    with pytest.raises(DataError, match=r"events\.jsonl\.gz:\d+: not JSON"):
        read_events(tmp_path)


def test_no_log_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no events\.jsonl here, compressed or not; give a run directory"):
        read_events(tmp_path)


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    (tmp_path / PLAIN).write_bytes(b'{"e":"RunStart","t":0}\n[1]\n')
    with pytest.raises(DataError, match=r"events\.jsonl:2: a JSON list"):
        read_events(tmp_path)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_log_of_another_format_is_refused_and_can_be_printed(other: int, tmp_path: Path) -> None:
    line = b'{"e":"RunStart","t":0,"format":%d}\n' % other
    (tmp_path / PLAIN).write_bytes(line)
    for read in (check_run, write_report, read_events):
        with pytest.raises(DataError, match=f"event log of format {other}, and this Stretto reads format {FORMAT}"):
            read(tmp_path)
    assert [event["format"] for event in stream_events(tmp_path, any_format=True)] == [other]


def test_the_tail_of_a_killed_run_is_whole_gzip(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl.gz"
    log = LogFile(path, append=False)
    log.write(b'{"e":"A"}\n')
    log.seal()
    offset = log.offset
    log.write(b'{"e":"B"}\n')
    log.flush()  # and killed: the member is open
    cut_tail(path, offset)
    assert gzip.decompress((tmp_path / "events.jsonl.gz.lost-0").read_bytes()) == b'{"e":"B"}\n'
    assert gzip.decompress(path.read_bytes()) == b'{"e":"A"}\n'
