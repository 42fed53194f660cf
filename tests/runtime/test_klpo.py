"""KLPO in the loop: the engine records what the objective needs, the learner scores it, the run is clean."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.config.load import load_config
from stretto.kernel.errors import ConfigError
from stretto.kernel.events import read_events
from stretto.objectives.klpo import KLPO
from stretto.observe.interval import Interval
from stretto.run.checks import check
from stretto.runtime.manifest import latest, load_checkpoint
from stretto.runtime.workers.inline import InlineLearner

from . import runs
from .dense import Dense
from .harness import assert_clean, configure, of, rehearse, tiny

ENV = (f"env.name={Dense.__module__}:Dense", "simulation.env.kind=lognormal", "simulation.env.mean=0.3")
VOCABULARY = 16
SIZES: dict[str, tuple[str, ...]] = {"mc": ("objective.M=5",), "topk": ("objective.K=4",), "full": (), "binary": ()}
WIDTHS = {"mc": {"sampled": 5}, "topk": {"top": 4}, "full": {"top": "all"}, "binary": {}}


@pytest.mark.parametrize("route", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["mc", "topk", "full", "binary"])
def test_each_estimator_trains_on_stale_data(
    route: str, estimator: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests meet updates, are aborted and go on: the records go with their tokens."""
    seen: list[Any] = []
    step = InlineLearner.step

    async def watched(self: InlineLearner, columns: Any, room: Any) -> Any:
        seen.append(columns)
        return await step(self, columns, room)

    monkeypatch.setattr(InlineLearner, "step", watched)
    _, events = rehearse(
        tmp_path / "run",
        model,
        *ENV,
        "lag_bound=2",
        "max_steps=4",
        "objective.name=klpo",
        *SIZES[estimator],
        f"objective.route={route}",
        f"objective.estimator={estimator}",
        "control.in_flight=abort",
        "simulation.decode_base_s=0.4",
        "simulation.step_base_s=0.1",
        "simulation.publish_s=0.01",
        "engine.max_num_seqs=3",
        "sampling.max_new_tokens=8",
    )
    assert_clean(events)
    steps = of(events, "StepEnd")
    assert len(steps) == 4
    for event in steps:
        assert all(math.isfinite(x) for x in event["metrics"].values())
        assert {"klpo/kl", "klpo/objective", "ratio/mean"} <= event["metrics"].keys()
    assert max(len(e["versions"]) for e in of(events, "TrajDone")) > 1, "no generation met an update"
    for columns in seen:
        names = {name[7:].split("_")[0] for name in columns if name.startswith("record.")}
        assert names == WIDTHS[estimator].keys()
        for kind, width in WIDTHS[estimator].items():
            ids, logp = columns[f"record.{kind}_ids"], columns[f"record.{kind}_logprobs"]
            sampled = columns["mask"]
            assert ids.shape == logp.shape == (len(sampled), VOCABULARY if width == "all" else width)
            assert np.isfinite(logp[sampled]).all()
            if width == "all":
                np.testing.assert_allclose(np.exp(logp[sampled]).sum(1), 1, atol=1e-12)
            if kind == "top":  # the token's own record agrees with its place among the likeliest
                row, place = np.nonzero(ids[sampled] == columns["tokens"][sampled][:, None])
                np.testing.assert_allclose(
                    logp[sampled][row, place], columns["logp_behavior"][sampled][row], atol=1e-12
                )


def test_at_the_first_step_the_learner_finds_no_divergence(model: Path, tmp_path: Path) -> None:
    """Engine and learner agree on every recorded token, not on the sampled one alone."""
    for estimator in ("mc", "topk", "full"):
        _, events = rehearse(
            tmp_path / estimator, model, *ENV, "max_steps=1", "objective.name=klpo", *SIZES[estimator],
            "sampling.temperature=0.7", f"objective.estimator={estimator}",
        )  # fmt: skip
        assert of(events, "StepEnd")[0]["metrics"]["klpo/kl"] == pytest.approx(0, abs=1e-7)


def test_the_policy_learns(model: Path, tmp_path: Path) -> None:
    """Answers of one token, each with a reward of its own: the mean rises."""
    rewards = []
    for seed in range(2):
        _, events = rehearse(
            tmp_path / str(seed), model, *ENV, f"seed={seed}", "max_steps=30", "prompts_per_step=8", "group_size=4",
            "sampling.max_new_tokens=1", "learner.lr=0.01", "objective.name=klpo", "objective.beta=0.1", "lag_bound=1",
            "objective.M=4", "engine.max_num_seqs=32",
        )  # fmt: skip
        means = [row["reward/trained/mean"] for row in Interval().replay(e for e in events if e["e"] != "Eval")]
        rewards.append((np.mean(means[:5]), np.mean(means[-5:])))
    assert all(before < 0.7 and after > 0.9 for before, after in rewards), rewards


def test_records_survive_a_checkpoint(model: Path, tmp_path: Path) -> None:
    """Those of unfinished turns, too; then the run goes on to its end."""
    out = tmp_path / "run"
    settings = ("max_steps=8", "save_every=1", "group_size=4", "sampling.max_new_tokens=24", "objective.name=klpo",
                "objective.M=3", "engine.decode_steps=1", "simulation.step_base_s=0.1")  # fmt: skip
    pid = runs.forked(lambda: runs.start(out, model, *settings, mode="rehearse"), die_at_event=130)
    assert runs.exit_code(pid) == -signal.SIGKILL
    checkpoint = latest(out / "checkpoints")
    assert checkpoint is not None
    open_turns = [c[-1] for group in load_checkpoint(checkpoint).running for m in group.open if (c := m.completions)]
    assert open_turns, "the checkpoint holds rollouts in the middle of a turn"
    assert all(c.records["sampled_logprobs"].shape == (len(c.tokens), 3) for c in open_turns)
    assert runs.go_on(out, mode="rehearse")["steps"] == 8
    runs.assert_clean(out, complete=True)


@pytest.mark.slow
def test_records_cross_processes(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = (
        "workers.kind=process",
        "max_steps=2",
        "objective.name=klpo",
        "objective.estimator=topk",
        "objective.K=4",
    )
    assert runs.start(out, model, *settings)["steps"] == 2
    runs.assert_clean(out, complete=True)
    steps = [e for e in read_events(out) if e["e"] == "StepEnd"]
    assert all(math.isfinite(e["metrics"]["klpo/objective"]) for e in steps)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["sampling.top_k=5"], "sampling.top_k = 5"),
        (["sampling.top_p=0.9", "objective.estimator=binary"], "top_p = 0.9"),
        (["objective.estimator=topk", "objective.K=500"], "the vocabulary has"),
        (["engine.sampled_logprobs=3"], "leave engine.sampled_logprobs out"),
        (["objective.estimator=topk", "objective.K=4", "engine.top_logprobs=3"], "leave engine.top_logprobs out"),
        (["objective.estimator=full", "model=smollm2"], "at most 4096 can be recorded"),
        (["objective.route=sequence", "objective.M=1"], "needs M >= 2"),
    ],
)
def test_what_an_engine_cannot_give_is_one_error_before_the_start(settings: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(load_config("quickstart", ["objective.name=klpo", *settings]))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_fits_passes(model: Path) -> None:
    for settings in (
        ["objective.estimator=full"],
        ["objective.estimator=topk", f"objective.K={VOCABULARY - 1}"],
        ["engine.sampled_logprobs=16"],
    ):
        check(configure(*tiny(model), "objective.name=klpo", *settings), "rehearse")


def test_a_rule_that_leaves_tokens_out_does_not_go_with_whole_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    from stretto.control.hooks import LOSS_MASK

    class Last:
        def keep(self, tokens: int, turns: int) -> slice:
            return slice(-1, None)

    monkeypatch.setitem(LOSS_MASK._entries, "last", Last)
    assert KLPO.whole
    with pytest.raises(ConfigError, match=r"control\.loss_mask\.name = 'last' leaves tokens out"):
        check(load_config("quickstart", ["objective.name=klpo", "control.loss_mask.name=last"]))
