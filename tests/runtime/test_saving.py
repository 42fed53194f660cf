"""When checkpoints are due: by steps, by time, never so often that saving is in the way."""

from __future__ import annotations

from stretto.config.schema import RunConfig
from stretto.runtime.saving import SavePlan


def test_by_default_a_run_saves_every_five_minutes_of_the_wall_clock() -> None:
    now = [1000.0]
    plan = SavePlan(RunConfig(), lambda: now[0])
    assert not plan.due(1)
    now[0] += 300
    assert plan.due(2)
    now[0] += 60
    plan.restart(took_s=60)
    now[0] += 1199
    assert not plan.due(3), "a minute's save comes every twenty minutes at most"
    now[0] += 1
    assert plan.due(3)


def test_steps_alone_where_they_are_asked_for_and_in_virtual_time() -> None:
    now = [0.0]
    by_steps = SavePlan(RunConfig(save_every=4), lambda: now[0])
    both = SavePlan(RunConfig(save_every=4, save_every_s=10), lambda: now[0])
    never = SavePlan(RunConfig(save_every_s=0), lambda: now[0])
    virtual = SavePlan(RunConfig(save_every_s=10), None)
    now[0] = 1e6
    assert [plan.due(3) for plan in (by_steps, both, never, virtual)] == [False, True, False, False]
    assert [plan.due(4) for plan in (by_steps, both, never, virtual)] == [True, True, False, False]
