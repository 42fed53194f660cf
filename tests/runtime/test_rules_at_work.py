"""Rules whose answers the loop acts on, in whole runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from stretto.control.actions import RoleChange
from stretto.control.hooks import build_rules
from stretto.control.router import LeastLoaded
from stretto.control.view import View
from stretto.data.identity import Role
from stretto.kernel.errors import InvariantError

from .harness import Wired, assert_clean, configure, of, rehearse, simulate

SMALL = ("prompts_per_step=4", "group_size=2", "engine.max_num_seqs=8", "engine.count=2", "lag_bound=2", "max_steps=12",
         "simulation.prompt_tokens=10", "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40")  # fmt: skip


class Rest:
    """The second engine rests from version 2 to 5."""

    def decide(self, view: View) -> Sequence[RoleChange]:
        engine = view.engines.get("engine-1")
        wanted = not 2 <= view.version < 5
        if engine is None or engine.active == wanted:
            return []
        return [RoleChange("engine-1", Role.ENGINE if wanted else Role.STANDBY)]


class Loads:
    """Looks at how full the engines say they are."""

    watches_trajectories = True
    seen: ClassVar[list[tuple[int | None, int | None]]] = []

    def decide(self, view: View) -> Sequence[RoleChange]:
        self.seen += [(load.waiting, load.kv_tokens) for load in view.load.values() if load.told is not None]
        return []


def test_a_rule_that_asks_sees_what_an_engine_says_of_itself(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, f"control.elastic.name={__name__}:Loads", "lag_bound=2",
                         "engine.max_num_seqs=3", "max_steps=4", "group_size=4",
                         "simulation.decode_base_s=0.5")  # fmt: skip
    assert_clean(events)
    told = [(e["waiting"], e["kv_tokens"]) for e in of(events, "Busy")]
    assert any(waiting for waiting, _ in told)
    assert any(tokens for _, tokens in told)
    assert set(Loads.seen) <= set(told)
    assert any(waiting for waiting, _ in Loads.seen)


class Half:
    """Half of what was sampled trains."""

    def keep(self, tokens: int, turns: int) -> slice:
        return slice(tokens // 2, None)


def test_an_engine_that_rests_gets_no_work_and_the_newest_weights_when_it_is_back(tmp_path: Path) -> None:
    config = configure(*SMALL)
    events = Wired(config, tmp_path, rules=replace(build_rules(config), elastic=Rest())).run()
    assert_clean(events)
    away, back = (e["t"] for e in of(events, "RoleChanged"))
    served = [e["t"] for e in of(events, "Submitted") if e["engine"] == "engine-1"]
    assert not [t for t in served if away < t < back]
    assert [t for t in served if t > back]
    loaded = [e["version"] for e in of(events, "Loaded") if e["worker"] == "engine-1"]
    assert 4 not in loaded
    assert max(loaded) == 12


class Roaming(LeastLoaded):
    """Each request goes where least is to do among the engines with the newest version."""

    def place(self, view: View, trajectory: int, engine: str) -> str:
        newest = max(view.versions)
        return next(name for _, minus_version, _, name in view.by_load if -minus_version == newest)


class Lost(LeastLoaded):
    """Names an engine that there is not."""

    def place(self, view: View, trajectory: int, engine: str) -> str:
        return "engine-O"


class Backwards(LeastLoaded):
    """Sends everything to the engine that is behind."""

    def place(self, view: View, trajectory: int, engine: str) -> str:
        return "engine-0"


def roam(out: Path, router: LeastLoaded, *settings: str) -> Wired:
    config = configure(*SMALL, "engine.count=3", "simulation.turns=4", *settings)
    return Wired(config, out, rules=replace(build_rules(config), router=router), slow_engine=2.0)


def test_a_router_may_place_each_request(tmp_path: Path) -> None:
    wired = roam(tmp_path, Roaming())
    events = wired.run()
    assert_clean(events)
    assert len(of(events, "Placed")) > 100
    served: dict[int, set[str]] = {}
    for event in of(events, "FirstToken"):
        for trajectory in event["traj"]:
            served.setdefault(trajectory, set()).add(event["engine"])
    assert max(map(len, served.values())) == 3, "a trajectory's requests went to several engines"
    view = View(watch=True)
    for event in events:
        view(event)
    assert {engine.trajectories for engine in view.engines.values()} == {0}
    assert {(load.queued, load.sampling, load.environment) for load in view.load.values()} == {(0, 0, 0)}


def test_a_request_that_is_placed_stays_where_its_group_is_pinned(tmp_path: Path) -> None:
    events = roam(tmp_path, Roaming(), "control.in_flight=pin").run()
    assert_clean(events)
    assert not of(events, "Placed")


@pytest.mark.parametrize(("router", "says"), [
    (Lost(), "can't place trajectory 0 on 'engine-O': did you mean .*known: engine-0, engine-1"),
    (Backwards(), r"can't place trajectory \d+ on 'engine-0': it holds version \d+, and the trajectory is at version"),
], ids=["unknown", "behind"])  # fmt: skip
def test_a_router_that_places_requests_where_they_can_not_go_is_named(
    router: LeastLoaded, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvariantError, match=says):
        roam(tmp_path, router, "control.in_flight=drain").run()


def test_tokens_that_are_left_out_of_the_loss_count_nowhere_in_the_log(tmp_path: Path) -> None:
    config = configure(*SMALL)
    events = Wired(config, tmp_path, rules=replace(build_rules(config), loss_mask=Half())).run()
    assert_clean(events)
    sampled = sum(e["tokens"] for e in of(events, "Busy"))
    trained = sum(e["tokens"] for e in of(events, "StepStart"))
    assert 0.3 * sampled < trained < 0.6 * sampled
    _, whole = simulate(tmp_path / "whole", *SMALL)
    assert sum(e["tokens"] for e in of(whole, "StepStart")) > 0.8 * sum(e["tokens"] for e in of(whole, "Busy"))
