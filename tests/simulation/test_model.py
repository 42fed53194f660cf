"""The simulation against its closed forms."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from stretto.config.load import apply_overrides, validate
from stretto.config.simulation import Distribution, Simulation
from stretto.kernel.errors import ConfigError
from stretto.kernel.events import Event, read_events
from stretto.rollout.types import Request, SamplingParams
from stretto.run.launch import launch
from stretto.simulation.costs import sample
from stretto.simulation.engine import SimulatedEngine
from stretto.simulation.queueing import mean_staleness

ROOT = Path(__file__).resolve().parents[2]


def run(out: Path, *settings: str) -> tuple[dict[str, Any], list[Event]]:
    base = {"out": str(out), "logging": {"report": False, "console": "off"}}
    result = launch(validate(apply_overrides(base, settings)), "simulate")
    return result, read_events(out)


def request(i: int, length: int, prompt: int = 1) -> Request:
    return Request(i, i, i, np.zeros(prompt, np.int32), SamplingParams(max_new_tokens=length), noise_key=i)


def engine(max_num_seqs: int = 8, mode: str = "keep", **simulation: float) -> SimulatedEngine:
    made = SimulatedEngine(
        Simulation(decode_base_s=0.02, decode_row_s=0.003, prefill_token_s=0.0, **simulation), max_num_seqs, mode
    )
    made.load(0.0, 0, 0.0)
    return made


@pytest.mark.parametrize("n", [1, 3, 8])
def test_equal_lengths_take_length_times_the_step(n: int) -> None:
    """T = L (A + b n), exactly."""
    e = engine()
    e.add(0.0, [request(i, 50) for i in range(n)])
    e.start_waiting()
    assert e.next_finish() == pytest.approx(50 * (0.02 + 0.003 * n), abs=1e-12)
    done = e.finished(e.next_finish() or 0.0)
    assert len(done) == n
    assert all(len(c.tokens) == 50 for _, c in done)


def test_rows_slow_each_other_down_only_while_they_run() -> None:
    e = engine()
    e.add(0.0, [request(0, 10), request(1, 30)])
    e.start_waiting()
    first = e.next_finish()
    assert first == pytest.approx(10 * 0.026)
    assert [i for i, _ in e.finished(first or 0.0)] == [0]
    assert e.next_finish() == pytest.approx(10 * 0.026 + 20 * 0.023)


@pytest.mark.parametrize("mode", ["keep", "pin"])
def test_a_pinned_request_keeps_its_version_though_it_starts_after_a_load(mode: str) -> None:
    """A later turn, or one that waited for a slot."""
    e = engine(max_num_seqs=1, mode=mode)
    e.add(0.0, [replace(request(i, 10), version=0) for i in range(2)])
    e.start_waiting()
    e.load(5 * 0.023, 1, 0.0)
    versions = []
    for _ in range(2):
        ((_, completion),) = e.finished(e.next_finish() or 0.0)
        versions.append(completion.versions.tolist())
        e.start_waiting()
    assert versions == [[0] * 10] * 2


def test_versions_change_where_the_load_happened() -> None:
    for mode, expected in (("keep", [0] * 10 + [1] * 10), ("pin", [0] * 20), ("reprefill", [0] * 10 + [1] * 10)):
        e = engine(mode=mode)
        e.add(0.0, [request(0, 20)])
        e.start_waiting()
        e.load(10 * 0.023, 1, 0.5)
        finish = e.next_finish()
        assert finish == pytest.approx(20 * 0.023 + 0.5)
        ((_, completion),) = e.finished(finish or 0.0)
        assert completion.versions.tolist() == expected
    e = engine(mode="abort")
    e.add(0.0, [request(0, 20)])
    e.start_waiting()
    ((_, partial),) = e.load(10 * 0.023, 1, 0.5)
    assert partial.finish == "aborted"
    assert partial.versions.tolist() == [0] * 10


def test_a_request_has_its_first_token_one_step_after_its_start() -> None:
    e = engine(max_num_seqs=2)
    e.add(0.0, [request(0, 10), request(1, 30), request(2, 5)])
    e.start_waiting()
    e.add(0.0259, [])
    assert e.first == []
    e.add(0.026, [])
    assert e.first == [0, 1], "the third one has no slot"
    e.first = []
    e.finished(0.26)
    e.start_waiting()
    e.load(0.27, 1, 0.0)
    assert e.first == []
    e.add(0.286, [])
    assert e.first == [2]
    aborting = engine(mode="abort")
    aborting.add(0.0, [request(0, 10)])
    aborting.start_waiting()
    aborting.load(0.1, 1, 0.0)
    assert aborting.first == [0], "it had four tokens when it was aborted"


def test_no_slot_idles_while_a_request_waits(tmp_path: Path) -> None:
    """At every moment: the rows of an engine are min(slots, requests it has)."""
    e = engine(max_num_seqs=3)
    e.add(0.0, [request(i, 5 + i) for i in range(9)])
    e.start_waiting()
    left = 9
    while left:
        assert e.running == min(3, left)
        left -= len(e.finished(e.next_finish() or 0.0))
        e.start_waiting()
    _, events = run(
        tmp_path / "run", "lag_bound=4", "max_steps=10", "prompts_per_step=8", "group_size=4", "engine.max_num_seqs=16",
        "control.admission.name=slots", "control.batch.name=fifo", "control.pool.name=drop-oldest",
        "control.pool.capacity=100", "lag_bound=100", "simulation.publish_s=0",
    )  # fmt: skip
    busy = [b for b in events if b["e"] == "Busy"]
    full = sum(b["rows"] * (b["end"] - b["start"]) for b in busy) / sum(b["end"] - b["start"] for b in busy)
    assert full > 15.9, "the demand for slots never ends, so all are always taken"


def test_doubling_all_times_doubles_the_makespan_and_leaves_every_decision(tmp_path: Path) -> None:
    """The clock is the only thing that the durations scale."""
    results = []
    for name, factor in (("once", 1), ("twice", 2)):
        result, events = run(
            tmp_path / name,
            "lag_bound=3",
            "max_steps=12",
            "prompts_per_step=4",
            "group_size=4",
            "engine.max_num_seqs=8",
            "engine.count=3",
            "simulation.turns=3",
            f"simulation.decode_base_s={0.01 * factor}",
            f"simulation.decode_row_s={0.0005 * factor}",
            f"simulation.prefill_token_s={1e-5 * factor}",
            f"simulation.publish_s={0.5 * factor}",
            f"simulation.step_base_s={0.5 * factor}",
            f"simulation.step_token_s={1e-5 * factor}",
            "simulation.env.kind=exponential",
            f"simulation.env.mean={2.0 * factor}",
            "simulation.failure_probability=0.05",
            f"deadlines.rollout_s={600 * factor}",
            f"deadlines.group_s={1200 * factor}",
            f"deadlines.batch_s={3600 * factor}",
            f"deadlines.warn_s={30 * factor}",
        )
        results.append((result["virtual_s"], events))
    (once, a), (twice, b) = results
    assert twice == pytest.approx(2 * once, rel=1e-6)
    keys = ("e", "group", "groups", "traj", "engine", "worker", "version", "versions", "tokens", "staleness", "ending")
    strip = [[{k: e[k] for k in keys if k in e} for e in events] for events in (a, b)]
    assert strip[0] == strip[1]
    assert [e["t"] for e in b] == pytest.approx([2 * e["t"] for e in a], abs=1e-4)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_simulate", ROOT / "benchmarks" / "simulate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("row", range(3))
def test_mean_staleness_meets_its_closed_form(row: int, benchmark: ModuleType, tmp_path: Path) -> None:
    """The loop itself, within 0.1 version."""
    slots, batch, rho, capacity = benchmark.TABLE[row]
    found = benchmark.staleness(tmp_path, slots, batch, rho, capacity, steps=60 if batch > 200 else 100)
    assert found["ours"] == pytest.approx(found["other"], abs=0.1)


def test_the_closed_form_gives_the_table_of_the_spec(benchmark: ModuleType) -> None:
    values = [mean_staleness(*row, tail=1.436) for row in benchmark.TABLE]
    assert [round(v, 2) for v in values] == [1.35, 3.24, 3.73]
    with pytest.raises(ConfigError, match="rho = 1"):
        mean_staleness(8, 8, 1.0, 2, 1.4)


def test_a_tail_of_eight_lognormals() -> None:
    draws = np.exp(np.random.default_rng(0).normal(size=(200_000, 8)) * 0.27)
    assert draws.max(axis=1).mean() / draws.mean() == pytest.approx(1.436, abs=0.005)


def test_laws_keep_their_means() -> None:
    n = 20_000
    for kind in ("lognormal", "exponential"):
        law = Distribution(kind=kind, mean=3.0, sigma=0.5)  # type: ignore[arg-type]
        values = [sample(law, (i + 0.5) / n) for i in range(n)]
        assert np.mean(values) == pytest.approx(3.0, rel=0.01)
