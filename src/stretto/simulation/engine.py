"""A simulated engine: rows that decode together, and may be interrupted."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from stretto.data.modes import Finish
from stretto.data.trajectory import Completion
from stretto.kernel.errors import StrettoError
from stretto.rollout.types import ExportedRequest
from stretto.simulation.decoding import Decoding
from stretto.simulation.row import NOTHING, Row

_CACHE = np.zeros(0, np.float32)
"""Stands for the cache of a request that moves."""


class SimulatedEngine(Decoding):
    """What ``rollout.engine.TorchEngine`` does with requests; the owner tells it the time, which never goes back."""

    __slots__ = ()

    def _rest(self, id: int) -> Row | None:
        """Take an active row out; it begins the token that it was at anew [inferred]."""
        row = self.rows.pop(id, None)
        if row is not None:
            n = self._sampled(row)
            row.before, row.length = self._versions(row, n), row.length - n
            self._stale = True
        return row

    def pause(self, now: float, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them; a paused row keeps its slot. Those that wait do so anyway."""
        self._progress(now)
        for id in ids:
            row = self._rest(id)
            if row is not None:
                self.paused[id] = row

    def resume(self, now: float, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        self._progress(now)
        for id in ids:
            row = self.paused.pop(id, None)
            if row is not None:
                row.start = self._v
                row.version = row.version if self._keeps_version(row) else self._loads[-1][1]
                row.loads = self._forgotten + len(self._loads)
                self._go(row)

    def export(self, now: float, id: int) -> ExportedRequest:
        """Take a request out, for ``import_`` in another engine; with its cache if it has started. ``StrettoError`` if
        it isn't here."""
        self._progress(now)
        row = self.paused.pop(id, None) or self._rest(id)
        if row is not None:
            version = row.version if self._keeps_version(row) else self._loads[-1][1]
            return ExportedRequest(row.request, row.partial(), version, _CACHE, _CACHE)
        request = next((r for r in self.waiting if r.id == id), None)
        if request is None:
            raise StrettoError(f"engine: request {id} isn't here; it has finished, was aborted, or moved")
        self.waiting.remove(request)
        state = self._arrived.pop(id, None)
        version = self._loads[-1][1] if request.version is None else request.version
        return state or ExportedRequest(request, NOTHING, version, None, None)

    def import_(self, now: float, state: ExportedRequest) -> None:
        """Go on with an exported request. Raises ``StrettoError`` if its version isn't held here."""
        self._progress(now)
        if not self._loads:
            raise StrettoError("engine: there are no weights yet; load a version first")
        if state.request.version is None and state.version != self.version and len(state.partial.tokens):
            raise StrettoError(f"engine: request {state.request.id} is at version {state.version}, here is "
                               f"{self.version}")  # fmt: skip
        if len(state.partial.tokens) or state.keys is not None:
            self._arrived[state.request.id] = state
            self.waiting.appendleft(state.request)
        else:
            self.waiting.append(state.request)

    def abort(self, ids: list[int]) -> None:
        """Requests that nobody needs any more."""
        gone = set(ids)
        for i in gone:
            self.rows.pop(i, None)
            self.paused.pop(i, None)
            self._arrived.pop(i, None)
        if any(r.id in gone for r in self.waiting):
            self.waiting = deque(r for r in self.waiting if r.id not in gone)

    def snapshot(self, now: float) -> dict[int, Completion]:
        """What running requests have sampled so far."""
        self._progress(now)
        found = {i: self._completion(row, self._sampled(row), Finish.ABORTED) for i, row in self.rows.items()}
        found |= {i: row.partial() for i, row in self.paused.items()}
        return found | {i: state.partial for i, state in self._arrived.items()}
