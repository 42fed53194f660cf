"""What is kept of a run of any length in a memory that doesn't grow with it: curves, counts, every so-manieth item."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from stretto.kernel.errors import cause
from stretto.observe.tally import Row

MAX_REASONS = 200
_MAX_TEXT = 300

T = TypeVar("T")


class Counts:
    """How often each text came; of more than a few hundred different ones the rest is counted together. Exceptions
    count by what was raised and where, and are told in the words of the first one."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, text: str, n: int = 1) -> None:
        """``n`` more of it."""
        self.total += n
        text = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + " …"
        key = cause(text)
        if key not in self._counts and len(self._counts) >= MAX_REASONS:
            key = text = "other reasons"
        self._first.setdefault(key, text)
        self._counts[key] += n

    def commonest(self, n: int) -> list[tuple[str, int]]:
        """The ``n`` texts that came most often, with how often."""
        return [(self._first[key], times) for key, times in self._counts.most_common(n)]


class Thinned(Generic[T]):
    """At most ``most`` + 1 of the items that were added, evenly spread: every ``stride``-th, and the last."""

    def __init__(self, most: int) -> None:
        self.stride = 1
        self._most, self._seen = most, 0
        self._kept: list[T] = []
        self._last: list[T] = []

    def add(self, item: T) -> None:
        """The next one."""
        if self._seen % self.stride == 0:
            if len(self._kept) == self._most:
                del self._kept[1::2]
                self.stride *= 2
            if self._seen % self.stride == 0:
                self._kept.append(item)
        self._last = [item]
        self._seen += 1

    def __iter__(self) -> Iterator[T]:
        yield from self._kept
        if self._kept and self._kept[-1] is not self._last[0]:
            yield from self._last


class Curves:
    """Columns of at most ``points`` entries, whatever the number of rows: each entry is the mean of as many rows as the
    others (the max of maxima; the last one of step, version, time and ledger). Neighbours are merged as rows come."""

    def __init__(self, points: int) -> None:
        self.count = 0
        """rows so far"""
        self._points, self._size = points, 1
        self._columns: dict[str, tuple[list[float], list[int]]] = {}

    def add(self, row: Row) -> None:
        """The next row; what isn't a finite number is left out."""
        if self.count == self._points * self._size:
            self._merge()
        at = self.count // self._size
        self.count += 1
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = ([0] * self._points, [0] * self._points)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            values, counts = column
            values[at] = _fold(name, values[at], counts[at], value, 1)
            counts[at] += 1

    def _merge(self) -> None:
        """Two entries become one."""
        for name, (values, counts) in self._columns.items():
            for at in range(0, self._points - 1, 2):
                values[at // 2] = _fold(name, values[at], counts[at], values[at + 1], counts[at + 1])
                counts[at // 2] = counts[at] + counts[at + 1]
            merged = self._points // 2
            if self._points % 2:
                values[merged], counts[merged] = values[-1], counts[-1]
                merged += 1
            values[merged:] = counts[merged:] = [0] * (self._points - merged)
        self._size *= 2

    def columns(self) -> dict[str, list[float | None]]:
        """Column of each name, five significant digits; None where no row of an entry had a value."""
        return {
            name: [
                None if not n else rounded(value / n) if _kind(name) == "mean" else rounded(value)
                for value, n in zip(self.exact(name), counts, strict=False)
            ]
            for name, (_, counts) in self._columns.items()
        }

    def exact(self, name: str) -> list[float]:
        """The column of ``name`` with all digits; of means their sum."""
        values, _ = self._columns.get(name, ([], []))
        return values[: -(-self.count // self._size)]


@functools.cache
def _kind(name: str) -> str:
    if name in ("step", "version", "t") or name.startswith("ledger/"):
        return "last"
    return "max" if name.endswith("/max") or name == "sync/pause_s" else "mean"


def _fold(name: str, a: float, a_count: int, b: float, b_count: int) -> float:
    """Of two entries one; of means their sum."""
    if not a_count or not b_count:
        return b if b_count else a
    kind = _kind(name)
    return a + b if kind == "mean" else max(a, b) if kind == "max" else b


def rounded(value: object) -> float | None:
    """Five significant digits; None for what isn't a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")
