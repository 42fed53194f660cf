"""The engines as decisions see them, in the order of their load."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass

from stretto.data.identity import ENGINES, Role
from stretto.kernel.logfile import Event


@dataclass(slots=True)
class EngineView:
    """An engine as the loop knows it: the version that it acknowledged and the trajectories that it serves."""

    name: str
    version: int | None = None
    trajectories: int = 0
    up: bool = True
    """Does it live?"""
    role: Role = Role.ENGINE
    """What it is for, alive or not: an engine, or one on standby."""
    number: int = 0
    """Its place in the order of coming up."""
    serves: bool = False
    """May it be given work: alive, an engine, with a version?"""

    @property
    def active(self) -> bool:
        """May it be given work, once it has a version?"""
        return self.up and self.role is Role.ENGINE


def _key(engine: EngineView) -> tuple[int, int, int, str]:
    assert engine.version is not None
    return engine.trajectories, -engine.version, engine.number, engine.name


class EngineIndex:
    """``engines`` by name. ``by_load``: (trajectories, -version, number, name) of each that ``serves``, ascending;
    ``versions``: version -> how many of these hold it. ``t``: when the latest event came."""

    def __init__(self) -> None:
        self.t = 0.0
        self.engines: dict[str, EngineView] = {}
        self.by_load: list[tuple[int, int, int, str]] = []
        self.versions: Counter[int] = Counter()

    def _forget_engines(self) -> None:
        self.engines = {}
        self.by_load = []
        self.versions = Counter()

    def _worker_up(self, event: Event) -> None:
        self.t = event["t"]
        name, role = event["worker"], Role(event["role"])
        if role in ENGINES:
            before = self.engines.get(name)
            number = len(self.engines) if before is None else before.number
            if before is not None:
                self._take_out(before)
            self.engines[name] = EngineView(name, role=role, number=number)

    def _worker_down(self, event: Event) -> None:
        self._change(event, up=False)

    def _role_changed(self, event: Event) -> None:
        self._change(event, role=Role(event["role"]))

    def _loaded(self, event: Event) -> None:
        self._change(event, version=event["version"])

    def _change(
        self, event: Event, *, up: bool | None = None, role: Role | None = None, version: int | None = None
    ) -> None:
        self.t = event["t"]
        engine = self.engines.get(event["worker"])
        if engine is None:  # a worker of another kind
            return
        self._take_out(engine)
        engine.up = engine.up if up is None else up
        engine.role = engine.role if role is None else role
        engine.version = engine.version if version is None else version
        self._put_in(engine)

    def _load(self, name: str, more: int) -> None:
        """It serves so many trajectories more."""
        engine = self.engines.get(name)
        if engine is None:
            return
        if not engine.serves:
            engine.trajectories += more
            return
        order = self.by_load
        at = bisect_left(order, _key(engine))
        engine.trajectories += more
        key = _key(engine)
        if (at + 1 == len(order) or key < order[at + 1]) and (not at or order[at - 1] < key):
            order[at] = key  # it keeps its place
        else:
            del order[at]
            insort(order, key)

    def _take_out(self, engine: EngineView) -> None:
        if engine.serves:
            assert engine.version is not None
            del self.by_load[bisect_left(self.by_load, _key(engine))]
            self.versions[engine.version] -= 1
            if not self.versions[engine.version]:
                del self.versions[engine.version]

    def _put_in(self, engine: EngineView) -> None:
        engine.serves = engine.active and engine.version is not None
        if engine.serves:
            assert engine.version is not None
            insort(self.by_load, _key(engine))
            self.versions[engine.version] += 1
