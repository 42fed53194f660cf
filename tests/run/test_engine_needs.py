"""What a run needs of its engines and their kind can't do is refused by name, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stretto.config.load import load_config
from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.trajectory import Completion, Transcript
from stretto.kernel.errors import ConfigError, DataError
from stretto.learner.stepmetrics import batch_metrics
from stretto.rollout.capabilities import Capabilities
from stretto.rollout.types import Request
from stretto.run.checks import check, warnings
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.runtime.workers.kinds import find_kind
from stretto.weights.staged import StagedWeights


class Bare(EngineHandle):
    """Does what every engine must and nothing more."""

    capabilities = Capabilities(in_flight=frozenset({"abort", "drain"}))

    def __init__(self, spec: Any, *, url: str, retries: int = 3) -> None:
        super().__init__(spec.name)

    async def start(self) -> None: ...

    def add(self, requests: Sequence[Request]) -> None: ...

    def abort(self, ids: Sequence[int]) -> None: ...

    async def load(self, weights: StagedWeights, in_flight: str) -> Loaded:
        return Loaded(0, 0.0)

    async def close(self) -> None: ...


class Half(EngineHandle):
    """Lacks half of it."""

    capabilities = Bare.capabilities

    async def start(self) -> None: ...


class Mute(Bare):
    """Says nothing of what it can do."""

    capabilities = None  # type: ignore[assignment]


BARE = [f"engine.kind={__name__}:Bare", "engine.options.url=http://nowhere", "control.in_flight=abort"]
PINS = "holds older versions for groups that are pinned to one"
NEEDS = [
    (["objective.name=entr", "objective.tau=1"], "objective.name = 'entr' needs an engine that records the entropy"),
    (["objective.name=klpo"], r"objective.name = 'klpo' needs an engine that records (the likeliest|independent)"),
    (["engine.top_logprobs=4"], "engine.top_logprobs = 4 needs an engine that records the likeliest tokens"),
    (["engine.sampled_logprobs=2"], "engine.sampled_logprobs = 2 needs an engine that records independent samples"),
    (["sampling.top_p=0.9"], r"sampling.top_k = 0, top_p = 0.9 needs an engine that records the distribution"),
    (["control.in_flight=pin"], f"control.in_flight = 'pin' needs an engine that {PINS}"),
    (["control.version_pinning.name=pinned"], f"control.version_pinning.name = 'pinned' needs an engine that {PINS}"),
    (["control.in_flight=keep"], "control.in_flight = 'keep' is nothing that engine.kind = .*: set 'abort' or 'drain'"),
    (["eval.weight_drift=true"], "eval.weight_drift = true needs an engine that tells how far"),
    (["workers.on_engine_crash=restart"], "workers.on_engine_crash = 'restart' needs an engine that comes up again"),
    (["objective.name=ppo-ewma", "objective.baseline=group", "learner.old_policy.route=old_model"],
     "learner.old_policy.route = 'old_model' needs an engine that tells what running requests"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "says"), NEEDS, ids=[" ".join(settings) for settings, _ in NEEDS])
def test_what_a_kind_can_not_do_is_refused_by_the_setting_that_needs_it(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(load_config("quickstart", [*BARE, *settings], "train"), "train")
    if settings != ["control.in_flight=keep"]:
        check(load_config("quickstart", settings, "train"), "train")


def test_a_kind_that_can_do_what_is_asked_starts_with_a_word_about_what_it_does_less_well() -> None:
    config = load_config("quickstart", BARE, "train")
    found = warnings(check(config, "train"))
    assert find_kind(config, "train") is Bare
    assert any("can't tell what running requests have sampled so far" in line for line in found)
    assert not any("can't tell" in line for line in warnings(check(load_config("quickstart", [], "train"), "train")))


def test_everything_that_is_missing_is_said_at_once() -> None:
    asked = [*BARE, "sampling.top_k=5", "eval.weight_drift=true"]
    with pytest.raises(ConfigError) as refused:
        check(load_config("quickstart", asked, "train"), "train")
    assert len(str(refused.value).splitlines()) == 2


def test_a_rehearsal_needs_a_kind_that_runs_on_its_clock() -> None:
    with pytest.raises(ConfigError, match="`stretto rehearse` needs an engine that runs on the virtual clock"):
        check(load_config("quickstart", BARE, "rehearse"), "rehearse")


WRONG = [
    (["engine.kind=torhc"], "engine.kind = 'torhc': no such kind; did you mean 'torch'"),
    (["engine.kind=nowhere_at_all:Engine"], "engine.kind = .*: can't import 'nowhere_at_all'"),
    ([f"engine.kind={__name__}:Baer"], "has no 'Baer'; did you mean 'Bare'"),
    ([f"engine.kind={__name__}:Capabilities"], "not a subclass of .*EngineHandle"),
    ([f"engine.kind={__name__}:Half"], "this class lacks `abort`, `add`, `close`, `load`"),
    ([f"engine.kind={__name__}:Mute"], "this class has no `capabilities`"),
    ([BARE[0]], "engine.options: .*missing a required .*'url'"),
    ([BARE[0], "engine.options.urls=x"], "engine.options.urls: .* no such option; did you mean 'url'"),
    ([*BARE, "engine.decode_steps=4"], "engine.decode_steps = 4 has no effect: engine.kind"),
    (["engine.options.url=x"], "engine.options.url is an option of no engine: engine.kind = 'torch' has none"),
]


@pytest.mark.parametrize(("settings", "says"), WRONG, ids=[" ".join(settings)[-60:] for settings, _ in WRONG])
def test_a_kind_that_is_none_is_refused(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check(load_config("quickstart", settings, "train"), "train")


def test_a_mode_that_does_not_exist_is_no_capability() -> None:
    with pytest.raises(ConfigError, match="'keeps'; did you mean 'keep'"):
        Capabilities(in_flight=frozenset({"keeps"}))
    with pytest.raises(ConfigError, match="in_flight is empty"):
        Capabilities(in_flight=frozenset())


def test_a_batch_of_an_engine_without_entropy_has_none_and_an_objective_that_reads_it_says_so() -> None:
    def batch(*entropy: float) -> TokenBatch:
        transcript = Transcript(0, 0)
        transcript.observe([5, 6])
        n = len(entropy)
        transcript.sample(
            Completion(np.ones(n, np.int32), np.zeros(n), np.array(entropy), np.zeros(n, np.int32), "stop")
        )
        return TokenBatch.from_columns(pack([transcript.finish(1.0)]), version=0)

    nan = float("nan")
    assert batch(0.5, 0.25).entropy is not None
    assert batch(nan, 0.25).entropy is not None, "that one is a defect, which the objective says"
    without = batch(nan, nan)
    assert without.entropy is None
    assert "entropy/behavior" not in batch_metrics(without, 0)
    with pytest.raises(DataError, match="entropy"):
        without.need("entropy")
