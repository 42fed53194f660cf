"""What runs write is what their modules declare, and all the groups of names come."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.kernel.metrics import undeclared
from stretto.observe.interval import Interval

from .dense import Dense
from .harness import rehearse, simulate

SHORT = ("max_steps=3", "prompts_per_step=2", "group_size=2", "lag_bound=1")
CRITIC = ("objective.name=ppo", "learner.critic.kind=head", "learner.minibatches=2", "eval.tasks=2", "eval.every=2",
          'reward=["exact", {name = "numeric", weight = 0.5, label = "number"}]')  # fmt: skip
AVERAGE = ("objective.name=ppo-ewma", "learner.old_policy.route=ewma")
LATE = ("objective.name=rac", f"env.name={Dense.__module__}:Dense", "env.slow_share=0.5", "objective.lifetime=4",
        "simulation.late.kind=uniform", "simulation.late.low=0.1", "simulation.late.high=2", "max_steps=6")  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "some"),
    [
        (CRITIC, ("loss/critic", "critic/explained_variance", "reward/fn/number/mean", "eval/accuracy", "entropy",
                  "ppo/clip_fraction", "mismatch/kl", "ratio/mean@0", "time/sync")),
        (AVERAGE, ("old_policy/ewma_beta", "old_policy/passes", "old_policy/stall_s", "gate/capped_tokens")),
        (LATE, ("late/returned", "rac/delay/max", "staleness/mean", "log_ratio/q95", "ledger/open_tokens")),
    ],
    ids=["critic", "average", "late"],
)  # fmt: skip
def test_a_run_writes_declared_names(
    tmp_path: Path, model: Path, settings: tuple[str, ...], some: tuple[str, ...]
) -> None:
    _, events = rehearse(tmp_path / "run", model, *SHORT, *settings)
    names = {name for row in Interval().replay(events) for name in row}
    assert not undeclared(names)
    assert names >= set(some)


def test_a_simulation_writes_declared_names(tmp_path: Path) -> None:
    _, events = simulate(tmp_path / "run", *SHORT)
    names = {name for row in Interval().replay(events) for name in row}
    assert not undeclared(names)
    assert names >= {"reward/trained/mean", "group/zero_variance_fraction", "staleness/waiting", "update/skipped"}
