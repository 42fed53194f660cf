"""A kind of engine from outside: one file, a server over HTTP that records no entropy, trains what our own trains."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file

from stretto.config.load import load_config
from stretto.config.sections import EngineConfig
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.kernel.events import Event, read_events
from stretto.run.launch import check_start, launch

from .harness import QUIET, assert_clean, configure, of, trained

EXAMPLES = Path(__file__).parents[2] / "examples"
KIND = ("engine.kind=http_engine:HttpEngine", "weights.transport=files")


@pytest.fixture
def http_engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("http_engine")


@pytest.fixture
def url(http_engine: ModuleType, model: Path) -> Iterator[str]:
    """A server in a thread, so that nothing is imported anew."""
    from stretto.rollout.build import build_engine

    settings = EngineConfig(max_num_seqs=8, max_model_len=16, dtype="float64")
    httpd = http_engine.serve(build_engine(model, settings, 0, (1,)))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    httpd.server_close()


def train(out: Path, model: Path, *settings: str) -> list[Event]:
    """Three synchronous steps of the random model on one-digit arithmetic; the learner runs in this process."""
    config = configure(
        f"out={out}", f"model={model}", "env.digits=1", "prompts_per_step=2", "group_size=2",
        "sampling.max_new_tokens=4", "engine.max_model_len=16", "engine.max_num_seqs=8", "learner.dtype=float64",
        "learner.warmup_steps=0", "learner.lr=0.001", "lag_bound=0", "max_steps=3", "workers.kind=inline", *settings,
    )  # fmt: skip
    launch(config, "train")
    return read_events(out)


def weights(out: Path) -> dict[str, Any]:
    return load_file(out / "model" / "model.safetensors")


def test_a_kind_in_one_file_trains_what_our_own_engine_trains(
    tmp_path: Path, model: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = train(tmp_path / "http", model, *KIND, f"engine.options.url={url}", "engine.options.dtype=float64")
    ours = train(tmp_path / "torch", model, "engine.dtype=float64")
    assert_clean(theirs)
    assert len(trained(theirs)) == len(trained(ours)) == 12

    def rollouts(events: list[Event]) -> list[tuple[Any, ...]]:
        return sorted((e["traj"], e["tokens"], e["reward"], e["finish"], e["versions"]) for e in of(events, "TrajDone"))

    assert rollouts(theirs) == rollouts(ours), "token for token, under each version"
    assert {v for *_, runs in rollouts(theirs) for v, _ in runs} == {0, 1, 2}
    mine, other = weights(tmp_path / "torch"), weights(tmp_path / "http")
    assert max(float((mine[name] - other[name]).abs().max()) for name in mine) < 1e-6
    recorded = [[m for e in of(events, "StepEnd") for m in e["metrics"] if m == "entropy/behavior"]
                for events in (theirs, ours)]  # fmt: skip
    assert [len(found) for found in recorded] == [0, 3], "what isn't recorded is no metric"
    assert not (tmp_path / "http" / "weights").exists(), "no version stays behind"


@pytest.mark.parametrize(("setting", "says"), [
    (["objective.name=entr", "objective.tau=1"], "objective.name = 'entr' needs an engine that records the entropy"),
    (["control.in_flight=pin"], "control.in_flight = 'pin' needs an engine that holds older versions"),
    (["control.version_pinning.name=pinned"], "control.version_pinning.name = 'pinned' needs an engine that holds"),
    (["weights.transport=shared-memory"], "weights.transport = 'shared-memory' .*http_engine:HttpEngine.*set 'files'"),
], ids=["entropy", "in-flight", "pinned", "transport"])  # fmt: skip
def test_what_it_can_not_do_is_refused_before_anything_starts(
    setting: list[str], says: str, tmp_path: Path, http_engine: ModuleType
) -> None:
    out = tmp_path / "run"
    config = load_config("quickstart", [*KIND, *setting, f"out={out}"], "train")
    with pytest.raises(ConfigError, match=says):
        check_start(config, "train")
    assert not out.exists()


def test_a_server_that_is_not_there_ends_the_run_by_the_engines_name(
    tmp_path: Path, model: Path, http_engine: ModuleType
) -> None:
    with pytest.raises(StrettoError, match=r"engine-0: coming up failed: ConnectionRefusedError"):
        train(tmp_path / "run", model, *KIND, "engine.options.url=http://127.0.0.1:9")


@pytest.mark.slow
def test_quickstart_learns_with_a_server_of_its_own(tmp_path: Path, http_engine: ModuleType) -> None:
    out = tmp_path / "run"
    config = load_config("quickstart", [*KIND, f"out={out}", "max_steps=600", "logging.console=off"], "train")
    result = launch(config.model_copy(update={"logging": configure().logging} if QUIET else {}), "train")
    events = read_events(out)
    assert_clean(events)
    first, last = of(events, "Eval")[0]["accuracy"], result["eval"]["accuracy"]
    assert last > first + 0.1
    assert max(e["staleness"]["max"] for e in of(events, "StepStart")) >= 1, "asynchronous"
