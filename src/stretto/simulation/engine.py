"""A simulated engine: rows decode together, one step of n rows takes A + b n. [inferred]

One virtual token counter V serves all rows: a request of L tokens that starts at V ends at V + L. So an event costs
O(log n) whatever the lengths. Prefill is a serial job that stops decoding. Exact while n is constant between events.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stretto.config.simulation import Simulation
from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Ints
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.rollout.types import Request

_LONGEST = 1 << 20
_LOADS = 64
"""Loads that an engine remembers at least."""
_ZEROS = np.zeros(_LONGEST, np.float32)
_TOKENS = np.zeros(_LONGEST, np.int32)
for _array in (_ZEROS, _TOKENS):
    _array.flags.writeable = False
_CONSTANTS: dict[int, Ints] = {}
_WHOLE: dict[int, dict[int, Completion]] = {}
_VERSIONS = 64


def _constant(version: int, n: int) -> Ints:
    """``n`` times ``version``; a read-only slice of an array that is kept."""
    found = _CONSTANTS.get(version)
    if found is None or len(found) < n:
        while len(_CONSTANTS) >= _VERSIONS:
            gone = next(iter(_CONSTANTS))
            del _CONSTANTS[gone]
            _WHOLE.pop(gone, None)
        found = np.full(1 << max(12, n.bit_length()), version, np.int32)
        found.flags.writeable = False
        _CONSTANTS[version] = found
    return found[:n]


def _whole(version: int, n: int) -> Completion:
    """``n`` tokens of one version, finished. Their content is zeros, so those of equal length share one value."""
    versions = _constant(version, n)
    lengths = _WHOLE.get(version)
    if lengths is None:
        lengths = _WHOLE[version] = {}
    found = lengths.get(n)
    if found is None:
        if len(lengths) >= 4096:
            lengths.clear()
        found = lengths[n] = Completion(_TOKENS[:n], _ZEROS[:n], _ZEROS[:n], versions, Finish.STOP)
    return found


@dataclass(slots=True)
class _Row:
    request: Request
    start: float
    length: int
    loads: int  # how many there had been when it started
    version: int  # that it starts at (and keeps, if it is pinned)


class SimulatedEngine:
    """Slots, virtual token counter, FIFO queue. The owner tells it the time; times never go back."""

    __slots__ = (
        "_a", "_b", "_forgotten", "_freed", "_heap", "_in_flight", "_loads", "_prefill_s", "_slots", "_starts", "_time",
        "_v", "decoded", "first", "prefilled", "rows", "steps", "waiting",
    )  # fmt: skip

    def __init__(self, simulation: Simulation, max_num_seqs: int, in_flight: str) -> None:
        self._a, self._b, self._prefill_s = (
            simulation.decode_base_s,
            simulation.decode_row_s,
            simulation.prefill_token_s,
        )
        self._slots, self._in_flight = max_num_seqs, in_flight
        self._v = 0.0
        self._time = 0.0  # decoding has progressed up to here; in the future while a prefill or a load blocks it
        self.rows: dict[int, _Row] = {}
        """Active requests."""
        self._heap: list[tuple[float, int, int]] = []
        """(V at the end, noise key, request): what ends together ends in an order that no id decides."""
        self.waiting: deque[Request] = deque()
        """Requests without a slot, in the order of their coming."""
        self._starts: deque[tuple[float, int]] = deque()  # (V at the first token, request), ascending
        self.first: list[int] = []
        """Requests that got their first token since the owner last took them."""
        self._loads: list[tuple[float, int]] = []  # (V at the load, version), without the first ``_forgotten`` ones
        self._forgotten = 0
        self._freed: set[int] = set()
        self.decoded = self.steps = 0.0
        self.prefilled = 0

    @property
    def running(self) -> int:
        """Active rows."""
        return len(self.rows)

    @property
    def version(self) -> int:
        """The newest loaded version."""
        return self._loads[-1][1]

    def add(self, now: float, requests: Sequence[Request]) -> None:
        """New requests; those that find no slot wait."""
        if now > self._time:
            self._progress(now)
        self.waiting += requests

    def start_waiting(self) -> None:
        """Give free slots to waiting requests."""
        waiting, rows = self.waiting, self.rows
        while waiting and len(rows) < self._slots:
            request = waiting.popleft()
            length = request.sampling.max_new_tokens
            if length > _LONGEST:
                raise ConfigError(
                    f"simulation.lengths: a response of {length} tokens; at most {_LONGEST} are simulated"
                )
            prompt, v, id = len(request.tokens), self._v, request.id
            self._time += prompt * self._prefill_s
            self.prefilled += prompt
            version = self._loads[-1][1] if request.version is None else self._held(request.version)
            rows[id] = _Row(request, v, length, self._forgotten + len(self._loads), version)
            heapq.heappush(self._heap, (v + length, request.noise_key, id))
            self._starts.append((v + 1.0, id))

    def _held(self, version: int) -> int:
        """This version, which was loaded (of those long ago that is believed)."""
        if version in self._freed:
            raise InvariantError(f"a request is pinned to version {version}, which was freed")
        for _, loaded in reversed(self._loads):
            if loaded == version:
                return version
        if self._forgotten and version < self._loads[0][1]:
            return version
        raise InvariantError(f"a request is pinned to version {version}, which this engine has never loaded")

    def _forget(self) -> None:
        """Drop loads that came before every row."""
        known = self._forgotten
        begun = min((row.loads for row in self.rows.values()), default=known + len(self._loads)) - 1 - known
        gone = min(begun, len(self._loads) - _LOADS)
        if gone > 0:
            del self._loads[:gone]
            self._forgotten += gone
            self._freed = {version for version in self._freed if version >= self._loads[0][1]}

    def next_finish(self) -> float | None:
        """When the next row ends if nothing changes; None: no row runs."""
        heap, rows = self._heap, self.rows
        while heap and heap[0][2] not in rows:
            heapq.heappop(heap)
        if not heap:
            return None
        left = heap[0][0] - self._v
        return self._time + left * (self._a + self._b * len(rows)) if left > 0.0 else self._time

    def finished(self, now: float) -> list[tuple[int, Completion]]:
        """Rows that have ended by ``now``."""
        if now > self._time:
            self._progress(now)
        out = []
        heap, until, loads = self._heap, self._v + 1e-9, self._forgotten + len(self._loads)
        while heap and heap[0][0] <= until:
            request = heapq.heappop(heap)[2]
            row = self.rows.pop(request, None)
            if row is not None:
                if row.loads == loads or self._in_flight == "pin" or row.request.version is not None:
                    version, length = row.version, row.length
                    out.append((request, _whole(version, length)))
                else:
                    out.append((request, self._completion(row, row.length, Finish.STOP)))
        return out

    def load(self, now: float, version: int, pause_s: float) -> list[tuple[int, Completion]]:
        """New weights: decoding pauses; what was sampled before stays. Returns what the mode aborts."""
        self._progress(now)
        self._time = max(self._time, now) + pause_s
        aborted = []
        if self._in_flight == "abort":
            aborted = [(i, self._completion(row, self._sampled(row), Finish.ABORTED)) for i, row in self.rows.items()]
            self.rows.clear()
            self._heap.clear()
        elif self._in_flight == "reprefill":
            context = sum(len(row.request.tokens) + self._sampled(row) for row in self.rows.values())
            self._time += context * self._prefill_s
            self.prefilled += context
        self._loads.append((self._v, version))
        if len(self._loads) > 2 * _LOADS:
            self._forget()
        return aborted

    def free(self, versions: Sequence[int]) -> None:
        """Weights that a real engine would drop now."""
        self._freed.update(versions)

    def abort(self, ids: list[int]) -> None:
        """Requests that nobody needs any more."""
        gone = set(ids)
        for i in gone:
            self.rows.pop(i, None)
        if any(r.id in gone for r in self.waiting):
            self.waiting = deque(r for r in self.waiting if r.id not in gone)

    def snapshot(self, now: float) -> dict[int, Completion]:
        """What running requests have sampled so far."""
        self._progress(now)
        return {i: self._completion(row, self._sampled(row), Finish.ABORTED) for i, row in self.rows.items()}

    def _progress(self, now: float) -> None:
        if now <= self._time:
            return
        rows = self.rows
        n = len(rows)
        if n:
            steps = (now - self._time) / (self._a + self._b * n)
            v = self._v = self._v + steps
            self.steps += steps
            self.decoded += steps * n
            starts = self._starts
            if starts:
                until = v + 1e-9
                while starts and starts[0][0] <= until:
                    request = starts.popleft()[1]
                    if request in rows:
                        self.first.append(request)
        self._time = now

    def _sampled(self, row: _Row) -> int:
        return min(row.length, max(0, math.floor(self._v - row.start + 1e-9)))

    def _completion(self, row: _Row, n: int, finish: Finish) -> Completion:
        since = row.loads - self._forgotten
        if since == len(self._loads) or self._in_flight == "pin" or row.request.version is not None:
            versions = _constant(row.version, n)
        else:
            versions = np.full(n, row.version, np.int32)
            for v, version in self._loads[since:]:
                versions[max(0, math.ceil(v - row.start - 1e-9)) :] = version
        return Completion(_TOKENS[:n], _ZEROS[:n], _ZEROS[:n], versions, finish)
