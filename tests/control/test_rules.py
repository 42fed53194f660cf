"""Each hook's default, and how to plug in another rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest

from stretto.config.load import apply_overrides, validate
from stretto.config.schema import RunConfig
from stretto.control.actions import RoleChange
from stretto.control.admission import Slots
from stretto.control.batch import Fifo, SubmissionOrder
from stretto.control.filter import ZeroVariance
from stretto.control.guarantees import Guarantee
from stretto.control.hooks import HOOKS, UNHEARD, build_rules
from stretto.control.pool import DropOldest
from stretto.control.publish import EveryK
from stretto.control.router import LeastLoaded
from stretto.control.version_pinning import Pinned
from stretto.control.view import View
from stretto.data.identity import Role
from stretto.kernel.errors import ConfigError

from .drive import complete, end_step, start_step, submit, view_of

SOFT = ("control.admission.name=slots", "control.batch.name=fifo", "control.pool.name=drop-oldest")


def config(*settings: str) -> RunConfig:
    return validate(apply_overrides({}, settings))


def test_every_hook_has_its_default() -> None:
    rules = build_rules(config())
    names = {hook: type(getattr(rules, hook)).__name__ for hook in HOOKS}
    assert names == {
        "admission": "DemandAdmission", "version_pinning": "Latest", "router": "LeastLoaded", "preemption": "Stay",
        "pool": "Keep", "filter": "NoFilter", "batch": "DemandBatch", "publish": "EveryStep", "streaming": "Whole",
        "elastic": "Fixed", "quota": "FixedQuota", "loss_mask": "All",
    }  # fmt: skip


@pytest.mark.parametrize("hook", UNHEARD)
def test_a_rule_that_nobody_could_act_on_is_refused_by_name(hook: str) -> None:
    with pytest.raises(ConfigError, match=rf"control\.{hook}\.name = 'nowhere:Rule' would change nothing: .*default"):
        build_rules(config(f"control.{hook}.name=nowhere:Rule"))


@pytest.mark.parametrize(
    ("settings", "guarantees"),
    [
        ((), "lag-bound depth whole-batches loaded-version"),
        (("order=submission",), "lag-bound depth whole-batches submission-order loaded-version"),
        (("control.version_pinning.name=pinned",), "lag-bound depth whole-batches loaded-version one-version"),
        (SOFT, "whole-batches loaded-version"),
        ((f"control.batch.name={__name__}:Newest",), "depth loaded-version"),
        ((f"control.batch.name={__name__}:Whole",), "depth whole-batches loaded-version"),
    ],
)
def test_a_run_keeps_what_all_rules_that_it_takes_promise(settings: Sequence[str], guarantees: str) -> None:
    assert build_rules(config(*settings)).guarantees == guarantees.split()


def test_a_promise_that_a_rule_can_not_give_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"control\.router: Sure can't guarantee 'depth'; such rules promise nothing"):
        build_rules(config(f"control.router.name={__name__}:Sure"))
    with pytest.raises(ConfigError, match=r"control\.batch: Sure can't guarantee 'depth'; .*whole-batches"):
        build_rules(config(f"control.batch.name={__name__}:Sure"))


class Newest:
    """A batch rule that promises nothing."""

    def form(self, view: View) -> Sequence[int] | None:
        """The newest."""
        return [max(view.ready)] if view.ready else None


class Whole(Newest):
    """One that says it takes whole batches."""

    guarantees = frozenset({Guarantee.WHOLE_BATCHES})


class Sure(Newest):
    """One that promises what others keep."""

    guarantees = frozenset({Guarantee.DEPTH})

    def route(self, view: View, versions: Collection[int]) -> str | None:
        """Nowhere."""
        return None


def test_defaults_change_nothing() -> None:
    rules = build_rules(config())
    view = view_of(lag_bound=1, batch=2)
    submit(view, 0, 0)
    complete(view, 0)
    assert rules.version_pinning.assign(view, "engine-0") is None
    assert list(rules.preemption.decide(view)) == list(rules.pool.evict(view)) == list(rules.elastic.decide(view)) == []
    assert rules.filter.drop([1.0, 1.0]) is None
    assert [list(part) for part in rules.streaming.portions(view, [3, 1])] == [[3, 1]]
    assert rules.quota.limits(view).trajectories is None
    assert rules.loss_mask.keep(10, 2) == slice(None)
    assert rules.publish.engines(view) == []


@dataclass(frozen=True)
class LastEngine:
    """A rule of the user's own."""

    greeting: str = "hello"

    def route(self, view: View, versions: Collection[int]) -> str | None:
        """The engine that came up last."""
        return list(view.engines)[-1]


def test_a_rule_of_ones_own_is_named_by_module_and_class() -> None:
    path = f"{__name__}:LastEngine"
    rule = build_rules(config(f"control.router.name={path}", "control.router.greeting=hi")).router
    assert isinstance(rule, LastEngine)
    assert rule.greeting == "hi"
    assert rule.route(view_of(lag_bound=0, batch=1, engines=3), [0]) == "engine-2"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("control.router.name=least-loded", "did you mean 'least-loaded'"),
        (f"control.router.name={__name__}:NoSuch", "has no 'NoSuch'"),
        ("control.publish.name=every-k", "k = 2 with lag_bound = 0"),
    ],
)
def test_a_wrong_rule_is_one_clear_error(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_rules(config("lag_bound=0", setting))


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"control.pool: unknown option 'capacty'; did you mean 'capacity'"):
        build_rules(config("control.pool.name=drop-oldest", "control.pool.capacty=2"))


def test_the_router_takes_the_least_loaded_engine_of_an_admissible_version() -> None:
    view = view_of(lag_bound=3, batch=1, engines=3)
    route = LeastLoaded().route
    assert route(view, [0]) == "engine-0"
    submit(view, 0, 0, "engine-0")
    assert route(view, [0]) == "engine-1"
    view({"t": 0.0, "e": "Loaded", "worker": "engine-2", "version": 1})
    assert route(view, [0, 1]) == "engine-2", "among equals the newest version"
    assert route(view, [0]) == "engine-1"
    assert route(view, []) is None
    view({"t": 0.0, "e": "WorkerDown", "worker": "engine-2", "role": "engine"})
    view({"t": 0.0, "e": "RoleChanged", "worker": "engine-1", "role": "standby"})
    assert route(view, [0, 1]) == "engine-0"
    view({"t": 0.0, "e": "WorkerUp", "worker": "engine-2", "role": "engine"})
    assert route(view, [0, 1]) == "engine-0", "it has no version yet"
    view({"t": 0.0, "e": "Loaded", "worker": "engine-2", "version": 1})
    assert route(view, [0, 1]) == "engine-2"


def test_a_role_is_said_and_liveness_is_another_matter() -> None:
    view = view_of(lag_bound=3, batch=1)
    for name, role in (("w", "engine"), ("engine-9", "scoring"), ("engine-8", "learner"), ("x", "standby")):
        view({"t": 0.0, "e": "WorkerUp", "worker": name, "role": role})
        view({"t": 0.0, "e": "Loaded", "worker": name, "version": 0})
    assert [*view.engines] == ["engine-0", "w", "x"], "whatever a worker is called"
    assert [name for *_, name in view.by_load] == ["engine-0", "w"]
    view({"t": 0.0, "e": "WorkerDown", "worker": "w", "role": "engine"})
    view({"t": 0.0, "e": "RoleChanged", "worker": "w", "role": "standby"})
    view({"t": 0.0, "e": "RoleChanged", "worker": "w", "role": "engine"})
    assert (view.engines["w"].up, view.engines["w"].role) == (False, Role.ENGINE)
    assert [name for *_, name in view.by_load] == ["engine-0"], "a role revives nobody"
    assert "w" not in EveryK(1).engines(view)
    view({"t": 0.0, "e": "RoleChanged", "worker": "w", "role": "standby"})
    view({"t": 0.0, "e": "WorkerUp", "worker": "w", "role": "standby"})
    view({"t": 0.0, "e": "Loaded", "worker": "w", "version": 0})
    assert not view.engines["w"].serves
    view({"t": 0.0, "e": "RoleChanged", "worker": "w", "role": "engine"})
    assert view.engines["w"].serves
    with pytest.raises(ConfigError, match="gives w the role 'learner': an engine can be 'engine' or 'standby'"):
        RoleChange("w", Role.LEARNER)


def test_the_view_keeps_its_index_of_engines_true() -> None:
    import random

    rng = random.Random(0)
    view = view_of(lag_bound=9, batch=1, engines=4)
    running: list[int] = []
    for i in range(500):
        name = f"engine-{rng.randrange(4)}"
        move = rng.choice(["submit", "complete", "load", "down", "role"])
        if move == "submit" and view.engines[name].version is not None:
            submit(view, i, view.engines[name].version or 0, name)
            running.append(i)
        elif move == "complete" and running:
            complete(view, running.pop(rng.randrange(len(running))))
        elif move == "load":
            view(
                {
                    "t": 0.0,
                    "e": "Loaded",
                    "worker": name,
                    "version": (view.engines[name].version or 0) + rng.randint(0, 1),
                }
            )
        elif move == "down":
            view({"t": 0.0, "e": "WorkerDown", "worker": name, "role": "engine"})
            if rng.random() < 0.7:
                view({"t": 0.0, "e": "WorkerUp", "worker": name, "role": "engine"})
        elif move == "role":
            view({"t": 0.0, "e": "RoleChanged", "worker": name, "role": "engine" if rng.random() < 0.7 else "standby"})
        serving = [e for e in view.engines.values() if e.up and e.role == "engine" and e.version is not None]
        assert view.by_load == sorted((e.trajectories, -(e.version or 0), e.number, e.name) for e in serving)
        assert dict(view.versions) == {v: sum(e.version == v for e in serving) for v in {e.version for e in serving}}
        assert view.running_trajectories == len(running)


def test_pinned_groups_get_their_engines_version() -> None:
    view = view_of(lag_bound=1, batch=1)
    assert Pinned().assign(view, "engine-0") == 0
    view({"t": 0.0, "e": "Loaded", "worker": "engine-0", "version": 7})
    assert Pinned().assign(view, "engine-0") == 7


def test_every_k_loads_the_kth_and_the_last_and_catches_up() -> None:
    view = view_of(lag_bound=3, batch=1, max_steps=5, engines=2)
    due: list[Sequence[str]] = []
    for step in range(5):
        submit(view, step, 0)
        complete(view, step)
        start_step(view, [step])
        end_step(view)
        due.append(EveryK(2).engines(view))
        if step == 1:
            view({"t": 0.0, "e": "Loaded", "worker": "engine-0", "version": 2})
    both = ["engine-0", "engine-1"]
    assert due == [[], both, ["engine-1"], both, both]


def test_zero_variance_judges_two_valid_rewards_or_more() -> None:
    drop = ZeroVariance().drop
    assert drop([1.0, 1.0]) == "all rewards equal"
    assert drop([0.0, 1.0]) is None
    assert drop([1.0]) is None
    assert drop([]) is None


def test_drop_oldest_rejects_beyond_its_capacity_and_only_while_a_step_runs() -> None:
    view = view_of(lag_bound=50, batch=2)
    for group in range(7):
        submit(view, group, 0)
        complete(view, group)
    rule = DropOldest(capacity=1.5)
    assert list(rule.evict(view)) == []
    start_step(view, [5, 6])
    assert list(rule.evict(view)) == [0, 1]


def test_fifo_takes_completion_order_and_submission_order_waits() -> None:
    view = view_of(lag_bound=50, batch=2)
    for group in range(4):
        submit(view, group, 0)
    for group in (3, 1):
        complete(view, group)
    assert list(Fifo().form(view) or []) == [3, 1]
    assert SubmissionOrder().form(view) is None
    complete(view, 0)
    assert SubmissionOrder().form(view) == [0, 1]


def test_slots_admits_until_no_slot_is_free() -> None:
    view = view_of(lag_bound=50, batch=2, size=3)  # 8 slots
    assert Slots().decide(view, 0) == 3
    for i in range(7):
        submit(view, i, 0)
    assert Slots().decide(view, 0) == 1
    submit(view, 7, 0)
    assert Slots().decide(view, 0) == 0
