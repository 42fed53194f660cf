"""Rows that decode together in simulation: one step of n rows takes A + b n. [inferred]

One virtual token counter V serves all rows: a request of L tokens that starts at V ends at V + L. So an event costs
O(log n) whatever the lengths. Prefill is a serial job that stops decoding. Exact while n is constant between events.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import deque
from collections.abc import Sequence

import numpy as np

from stretto.config.simulation import Simulation
from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Ints
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.rollout.kept import KeptTurns
from stretto.rollout.types import ExportedRequest, Request
from stretto.simulation.blank import LONGEST, blank, constant, whole
from stretto.simulation.row import Row

_CACHE = np.zeros(0, np.float32)
"""Stands for the cache of a request that moves."""
_LOADS = 64
"""Loads that an engine remembers at least."""


class Decoding:
    """Slots, virtual token counter, FIFO queue. The owner tells it the time; times never go back."""

    __slots__ = (
        "_a", "_arrived", "_b", "_forgotten", "_freed", "_heap", "_in_flight", "_kept", "_loads", "_prefill_s",
        "_slots", "_stale", "_starts", "_time", "_v", "decoded", "first", "paused", "prefilled", "rows", "steps",
        "waiting",
    )  # fmt: skip

    def __init__(
        self, simulation: Simulation, max_num_seqs: int, in_flight: str, kept_tokens: int | None = None
    ) -> None:
        self._a, self._b, self._prefill_s = (
            simulation.decode_base_s,
            simulation.decode_row_s,
            simulation.prefill_token_s,
        )
        self._slots, self._in_flight = max_num_seqs, in_flight
        self._v = 0.0
        self._time = 0.0  # decoding has progressed up to here; in the future while a prefill or a load blocks it
        self.rows: dict[int, Row] = {}
        """Active requests."""
        self.paused: dict[int, Row] = {}
        """Requests that rest and keep their slots."""
        self._arrived: dict[int, ExportedRequest] = {}
        """Of waiting requests: what they bring from elsewhere."""
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
        self._kept: KeptTurns[None] = KeptTurns(sys.maxsize if kept_tokens is None else kept_tokens)
        self._stale = False  # was a row ever interrupted? Then what is kept of its start and end may be void
        self.decoded = self.steps = 0.0
        self.prefilled = 0

    @property
    def running(self) -> int:
        """Requests in slots, paused ones included."""
        return len(self.rows) + len(self.paused)

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
        waiting, rows, slots = self.waiting, self.rows, self._slots - len(self.paused)
        while waiting and len(rows) < slots:
            request = waiting.popleft()
            if request.id in self._arrived:
                self._start_arrived(request, self._arrived.pop(request.id))
                continue
            length = request.sampling.max_new_tokens
            if length > LONGEST:
                raise ConfigError(f"simulation.lengths: a response of {length} tokens; at most {LONGEST} are simulated")
            prompt, v, id = len(request.tokens), self._v, request.id
            version = self._loads[-1][1] if request.version is None else self._held(request.version)
            if request.keep and (found := self._kept.take(request.trajectory, version)) is not None:
                prompt -= found[0]
            self._time += prompt * self._prefill_s
            self.prefilled += prompt
            rows[id] = Row(request, v, length, self._forgotten + len(self._loads), version)
            heapq.heappush(self._heap, (v + length, request.noise_key, id))
            self._starts.append((v + 1.0, id))

    def _start_arrived(self, request: Request, state: ExportedRequest) -> None:
        """Go on with a request that was interrupted. Without its cache all its tokens are prefilled again."""
        known = state.partial.versions
        if state.keys is None:
            context = len(request.tokens) + len(known)
            self._time += context * self._prefill_s
            self.prefilled += context
        version = self._loads[-1][1] if request.version is None else self._held(request.version)
        length = request.sampling.max_new_tokens - len(known)
        self._go(Row(request, self._v, length, self._forgotten + len(self._loads), version, known, len(known) > 0))

    def _go(self, row: Row) -> None:
        """A row decodes (again) from now on."""
        id = row.request.id
        self.rows[id] = row
        heapq.heappush(self._heap, (row.start + row.length, row.request.noise_key, id))
        if not row.begun:
            self._starts.append((row.start + 1.0, id))

    def _keep(self, row: Row) -> None:
        """What its next turn needn't prefill: all but the token that was sampled last."""
        known = len(row.request.tokens) + row.request.sampling.max_new_tokens - 1
        version = row.version if self._keeps_version(row) else self._loads[-1][1]
        self._kept.put(row.request.trajectory, known, version, row.request.version is not None, None)

    def _ends(self, entry: tuple[float, int, int]) -> bool:
        """Is this when the row ends, even if it was interrupted since?"""
        row = self.rows.get(entry[2])
        return row is not None and row.start + row.length == entry[0]

    def _keeps_version(self, row: Row) -> bool:
        return self._in_flight == "pin" or row.request.version is not None

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
        while heap and (heap[0][2] not in rows or (self._stale and not self._ends(heap[0]))):
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
            entry = heapq.heappop(heap)
            if self._stale and not self._ends(entry):
                continue
            request = entry[2]
            row = self.rows.pop(request, None)
            if row is not None:
                if row.request.keep and (row.loads == loads or self._in_flight != "keep" or self._keeps_version(row)):
                    self._keep(row)
                if row.before is None and (row.loads == loads or self._keeps_version(row)):
                    version, length = row.version, row.length
                    out.append((request, whole(version, length)))
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
            aborted += [(i, row.partial()) for i, row in self.paused.items()]
            self.rows.clear()
            self.paused.clear()
            self._heap.clear()
        elif self._in_flight == "reprefill":
            begun = [(row, self._sampled(row)) for row in self.rows.values()]
            begun += [(row, 0) for row in self.paused.values()]
            context = sum(len(row.request.tokens) + n + (0 if row.before is None else len(row.before))
                          for row, n in begun)  # fmt: skip
            self._time += context * self._prefill_s
            self.prefilled += context
        self._loads.append((self._v, version))
        self._kept.loaded()
        if len(self._loads) > 2 * _LOADS:
            self._forget()
        return aborted

    def free(self, versions: Sequence[int]) -> None:
        """Weights that a real engine would drop now."""
        self._freed.update(versions)
        self._kept.freed(versions)

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
                    at, request = starts.popleft()
                    row = rows.get(request)
                    if row is not None and not (self._stale and (row.begun or row.start + 1.0 != at)):
                        row.begun = True
                        self.first.append(request)
        self._time = now

    def _sampled(self, row: Row) -> int:
        return min(row.length, max(0, math.floor(self._v - row.start + 1e-9)))

    def _versions(self, row: Row, n: int) -> Ints:
        """Of all its tokens, once it has sampled ``n`` since it last began."""
        since = row.loads - self._forgotten
        if since == len(self._loads) or self._keeps_version(row):
            versions = constant(row.version, n)
        else:
            versions = np.full(n, row.version, np.int32)
            for v, version in self._loads[since:]:
                versions[max(0, math.ceil(v - row.start - 1e-9)) :] = version
        return versions if row.before is None else np.concatenate([row.before, versions])

    def _completion(self, row: Row, n: int, finish: Finish) -> Completion:
        return blank(self._versions(row, n), finish)
