"""Nothing is kept per step or per trajectory: what a run and the checker hold doesn't grow with its length."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from stretto.config.load import apply_overrides, validate
from stretto.kernel import clock
from stretto.kernel.events import Event
from stretto.observe import checker_state
from stretto.observe.checker import check_run
from stretto.observe.metrics import MetricsWriter
from stretto.run.launch import launch

SETTINGS = (
    "prompts_per_step=1", "group_size=2", "lag_bound=2", "engine.max_num_seqs=4", "simulation.lengths.kind=constant",
    "simulation.lengths.mean=20", "simulation.failure_probability=0.02", "save_every=100", "logging.report=false",
    "logging.console=off", "eval.tasks=0", "deadlines.batch_s=100000",
)  # fmt: skip
AT = (60, 140, 220)
"""Steps: tracing starts; what has come since is counted twice"""
LEAST_LEAK = 100
"""bytes a step: one small object"""


def test_a_run_keeps_nothing_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[int, int] = {}
    hear = MetricsWriter.__call__

    def measured(self: MetricsWriter, event: Event) -> None:
        hear(self, event)
        if event["e"] == "StepEnd" and event["version"] in AT:
            if event["version"] == AT[0]:
                tracemalloc.start()
            gc.collect()
            held[event["version"]] = tracemalloc.get_traced_memory()[0]

    monkeypatch.setattr(MetricsWriter, "__call__", measured)
    monkeypatch.setattr(clock, "_SWEEP", 50)  # cancelled timers wait for a sweep
    config = validate(apply_overrides({}, [f"out={tmp_path / 'run'}", f"max_steps={AT[2] + 1}", *SETTINGS]))
    try:
        launch(config, "simulate")
    finally:
        tracemalloc.stop()
    assert (held[AT[2]] - held[AT[1]]) / (AT[2] - AT[1]) < LEAST_LEAK, held


def test_what_the_checker_has_forgotten_it_still_knows_by_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checker_state, "REMEMBERED", 40)
    monkeypatch.setattr(checker_state, "VERSIONS", 8)
    config = validate(apply_overrides({}, [f"out={tmp_path / 'run'}", "max_steps=80", *SETTINGS]))
    launch(config, "simulate")
    result = check_run(tmp_path / "run")
    assert (result.violations, result.complete) == ([], True)
