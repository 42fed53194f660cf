"""The learner's verbs: splitting changes nothing, the step is made of them, and calls out of order say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stretto.config.learner import Critic, LearnerConfig, Lora, OldPolicy
from stretto.data.batch import TokenBatch
from stretto.data.columns import concatenate
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.kernel.errors import ConfigError, DataError, InvariantError, WeightsError
from stretto.learner.learner import Learner
from stretto.learner.minibatches import minibatch_rows
from stretto.learner.turns import totals_of
from stretto.objectives import get

Make = Callable[..., Columns]


def learner(model_dir: Path, objective: str = "tis", of: dict[str, Any] | None = None, **options: Any) -> Learner:
    config = LearnerConfig(**{"dtype": "float64", "warmup_steps": 0, "lr": 1e-2, **options})
    return Learner(model_dir, config, get(objective, **(of or {})), max_steps=10, lag_bound=2)


def rows_of(columns: Columns, rows: Sequence[int]) -> Columns:
    """These trajectories of the pack."""
    ends = np.cumsum(columns["length"])
    tokens = np.concatenate([np.arange(ends[row] - columns["length"][row], ends[row]) for row in rows])
    flat = len(columns["tokens"])
    return {name: x[tokens] if len(x) == flat else x[list(rows)] for name, x in columns.items()}


def gradients(of: Learner) -> dict[str, Tensor]:
    named = of.scorer.policy_parameters() | {f"critic.{n}": p for n, p in of.scorer.critic_parameters().items()}
    return {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


PARTS = ([4, 5, 6, 7, 12, 13, 14, 15], [0, 1, 2, 3], [8, 9, 10, 11])  # groups of four, out of order
SPLIT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("reinforce", {}, {}),
    ("grpo", {}, {}),
    ("dr-grpo", {"max_length": 8}, {}),
    ("gspo", {}, {"micro_batch_tokens": 40}),
    ("mis", {}, {}),
    ("asyncwebrl", {}, {"rows": "turn"}),
    ("decoupled-ppo", {"reference": "old"}, {"old_policy": OldPolicy(route="recompute")}),
    ("ppo-ewma", {}, {"old_policy": OldPolicy(ewma_beta=0.5)}),
    ("ppo", {"std": False}, {"critic": Critic(kind="head")}),
    ("vtrace", {}, {"critic": Critic(kind="network")}),
    ("tis", {}, {"lora": Lora(rank=2)}),
]


@pytest.mark.parametrize(("objective", "of", "options"), SPLIT, ids=[s[0] for s in SPLIT])
def test_the_gradients_of_a_split_batch_are_those_of_the_whole(
    model_dir: Path, make_columns: Make, objective: str, of: dict[str, Any], options: dict[str, Any]
) -> None:
    """Any split into whole groups, in float64 to 1e-9: gradients, losses, metrics and what is said of each token."""
    columns = make_columns(truncated=True)
    one, split = learner(model_dir, objective, of, **options), learner(model_dir, objective, of, **options)
    whole = one.forward_backward(columns)
    totals = totals_of(columns, one.config.rows)
    parts = [split.forward_backward(rows_of(columns, rows), totals) for rows in PARTS]
    assert apart(gradients(one), gradients(split)) < 1e-9
    assert max(float(g.abs().max()) for g in gradients(one).values()) > 1e-6
    assert sum(p.losses.total for p in parts) == pytest.approx(whole.losses.total, abs=1e-9)
    order = [row for rows in PARTS for row in rows]
    np.testing.assert_allclose(
        np.concatenate([p.logp for p in parts]), rows_of({**columns, "logp": whole.logp}, order)["logp"], atol=1e-9
    )
    done = [each.optim_step() for each in (one, split)]
    assert done[1].metrics.report() == pytest.approx(done[0].metrics.report(), rel=1e-9, abs=1e-9)
    assert done[1].losses.total == pytest.approx(done[0].losses.total, abs=1e-9)
    assert done[1].grad_norm == pytest.approx(done[0].grad_norm, rel=1e-9)


def test_a_group_may_be_cut_where_advantages_are_given(model_dir: Path, make_columns: Make) -> None:
    columns = make_columns()
    one, split = learner(model_dir, "grpo"), learner(model_dir, "grpo")
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    ready = one.objective.advantages(batch)[batch.inside].numpy()
    columns = {**columns, "record.advantages": np.where(columns["mask"], ready, math.nan)}
    one.forward_backward({name: x for name, x in columns.items() if name != "record.advantages"})
    for rows in ([0, 5, 10, 15, 1], [2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 14]):
        split.forward_backward(rows_of(columns, rows), totals_of(columns))
    assert apart(gradients(one), gradients(split)) < 1e-9


def test_a_part_that_would_change_the_result_is_refused(model_dir: Path, make_columns: Make) -> None:
    """And leaves what is accumulated as it was."""
    columns = make_columns()
    totals = totals_of(columns)
    one = learner(model_dir, "grpo")
    one.forward_backward(rows_of(columns, [0, 1, 2, 3, 4]), totals)
    before = gradients(one)
    with pytest.raises(DataError, match="group 1 lies in two parts of an optimizer step"):
        one.forward_backward(rows_of(columns, [5, 6, 7]), totals)
    assert same(gradients(one), before)
    for objective, of, options, message in (
        ("m2po", {}, {}, "'m2po' takes statistics over all rows of a step"),
        ("ppo", {"std": True}, {"critic": Critic(kind="head")}, "'ppo' standardises advantages over all tokens"),
        ("ppo-ewma", {}, {}, "route = 'ewma' adapts to the staleness of a whole optimizer step"),
    ):
        other = learner(model_dir, objective, of, **options)
        with pytest.raises(DataError, match=message):
            other.forward_backward(rows_of(columns, [0, 1, 2, 3]), totals)
        assert not gradients(other)
        other.forward_backward(columns, totals)  # all of it may be said to be all of it


STEPS: list[tuple[str, dict[str, Any]]] = [
    ("tis", {"micro_batch_tokens": 60}),
    ("grpo", {"epochs": 2, "minibatches": 2}),
    ("decoupled-ppo", {"epochs": 2}),
    ("ppo", {"critic": Critic(kind="head", updates=3), "minibatches": 2}),
    ("ppo", {"critic": Critic(kind="network", warmup_steps=1)}),
    ("tis", {"lora": Lora(rank=2, dropout=0.3, noisy_ratio=True), "minibatches": 2}),
]


@pytest.mark.parametrize(("objective", "options"), STEPS)
def test_the_step_is_a_sequence_of_verbs(
    model_dir: Path, make_columns: Make, objective: str, options: dict[str, Any]
) -> None:
    """Bit for bit: weights and moments."""
    one, other = learner(model_dir, objective, **options), learner(model_dir, objective, **options)
    for version in range(2):
        columns = make_columns(seed=version, version=version)
        one.step(columns)
        config = other.config
        batch, _ = other.read(columns)
        parts = [
            rows
            for epoch in range(config.epochs)
            for rows in minibatch_rows(batch, config.minibatches, other.seed, version, epoch)
        ]
        prepared = other.prepare(batch, len(parts))
        further = config.critic.updates - 1
        for number, rows in enumerate(parts):
            last = number + 1 == len(parts)
            other.forward_backward(prepared.part(rows))
            other.optim_step(completes=last and not further)
            for left in reversed(range(further)):
                other.forward_backward(prepared.part(rows), critic_only=True)
                other.optim_step(completes=last and not left)
        assert other.version == one.version == version + 1
        assert same(one.optimizers.tensors(), other.optimizers.tensors())


def test_one_optimizer_step_needs_no_preparation(model_dir: Path, make_columns: Make) -> None:
    one, other = learner(model_dir), learner(model_dir)
    for seed in range(2):
        result = one.step(make_columns(seed=seed))
        passed = other.forward_backward(make_columns(seed=seed))
        done = other.optim_step()
        assert same(one.optimizers.tensors(), other.optimizers.tensors())
        assert (done.version, done.grad_norm, done.lr) == (seed + 1, result.metrics["grad_norm"], result.metrics["lr"])
        assert passed.losses == done.losses
        assert done.losses.total == result.metrics["loss"]
    other.forward_backward(make_columns())
    assert other.optim_step(lr=0.5).lr == 0.5


def test_calls_out_of_order_are_errors_that_say_so(model_dir: Path, make_columns: Make, tmp_path: Path) -> None:
    columns = make_columns()
    totals, some = totals_of(columns), rows_of(columns, [0, 1, 2, 3])
    one = learner(model_dir)
    with pytest.raises(InvariantError, match="optim_step at version 0: there is no gradient; call forward_backward"):
        one.optim_step()
    one.forward_backward(columns)
    with pytest.raises(InvariantError, match="one of the calls named no totals"):
        one.forward_backward(some, totals)
    one.optim_step()
    with pytest.raises(InvariantError, match="optim_step at version 1: there is no gradient"):
        one.optim_step()
    one.forward_backward(some, totals)
    with pytest.raises(InvariantError, match="one of the calls named no totals"):
        one.forward_backward(some)
    with pytest.raises(InvariantError, match=r"share its denominators; earlier ones came with Totals\(tokens="):
        one.forward_backward(some, Totals(1, 1, 1))
    with pytest.raises(ConfigError, match="there is no critic"):
        one.forward_backward(some, totals, critic_only=True)
    one.optim_step(completes=False)
    for what, call in (
        ("prepare rows", lambda: one.forward_backward(some)),
        ("publish weights", one.weights),
        ("save", lambda: one.save(tmp_path)),
        ("score", lambda: one.score(some, 1)),
    ):
        with pytest.raises(InvariantError, match=rf"can't {what} in the middle of version 2: 1 optimizer step\(s\)"):
            call()
    two = learner(model_dir)
    prepared = two.prepare(two.read(columns)[0])
    two.step(columns)
    with pytest.raises(InvariantError, match="rows of version 0 for a learner at version 1"):
        two.forward_backward(prepared)


def test_parts_for_the_critic_alone_do_not_mix_with_others(model_dir: Path, make_columns: Make) -> None:
    columns = make_columns()
    one = learner(model_dir, "ppo", {"std": False}, critic=Critic(kind="network"))
    one.forward_backward(rows_of(columns, [0, 1, 2, 3]), totals_of(columns), critic_only=True)
    assert all(name.startswith("critic.") for name in gradients(one))
    with pytest.raises(InvariantError, match="with and without critic_only"):
        one.forward_backward(rows_of(columns, [4, 5, 6, 7]), totals_of(columns))
    before = {name: t.clone() for name, t in one.weights().items()}
    done = one.optim_step()
    assert (done.version, done.grad_norm) == (1, 0.0)
    assert done.critic_grad_norm > 0
    assert same(one.weights(), before)


def test_loading_drops_what_was_accumulated(model_dir: Path, make_columns: Make, tmp_path: Path) -> None:
    one, twin = learner(model_dir), learner(model_dir)
    one.step(make_columns())
    one.save(tmp_path)
    one.forward_backward(make_columns(seed=1))
    one.load(tmp_path)
    assert not gradients(one)
    with pytest.raises(InvariantError, match="there is no gradient"):
        one.optim_step()
    one.forward_backward(make_columns(seed=2))
    one.optim_step(completes=False)  # in the middle of a version, too
    one.load(tmp_path)
    twin.load(tmp_path)
    for each in (one, twin):
        each.step(make_columns(seed=3))
    assert same(one.optimizers.tensors(), twin.optimizers.tensors())


def overflowing(columns: Columns) -> Columns:
    """Finite where it is looked at, but the rewards of the second trajectory overflow the gradient."""
    rewards = columns["rewards"].copy()
    rewards[int(columns["length"][:2].sum()) - 1] = 1e308
    rewards[int(columns["length"][:3].sum()) - 1] = -1e308
    return {**columns, "rewards": rewards}


def test_a_part_that_is_not_finite_makes_optim_step_skip_and_name_its_row(model_dir: Path, make_columns: Make) -> None:
    one, twin = learner(model_dir, "reinforce"), learner(model_dir, "reinforce")
    columns = make_columns()
    totals = totals_of(columns)
    before = one.optimizers.snapshot()
    one.forward_backward(rows_of(columns, PARTS[0]), totals)
    one.forward_backward(overflowing(rows_of(columns, PARTS[1])), totals)
    done = one.optim_step()
    assert done.skipped
    assert (done.version, one.version, one.skipped) == (0, 0, 1)
    assert done.reason is not None
    assert done.reason.endswith(("in trajectory 1", "in trajectory 2"))
    assert same(one.optimizers.tensors(), before)
    assert not gradients(one)
    for each in (one, twin):
        each.step(columns)
    assert same(one.optimizers.tensors(), twin.optimizers.tensors())


def test_what_an_objective_refuses_is_said_and_skipped_whatever_else_is_accumulated(
    model_dir: Path, make_columns: Make
) -> None:
    one = learner(model_dir, "grpo", max_skipped=2)
    columns = make_columns()
    bad = {**columns, "record.advantages": np.where(columns["mask"], math.inf, 0.0)}
    for _ in range(2):
        fine = one.forward_backward(rows_of(columns, PARTS[0]), totals_of(columns))
        assert fine.nonfinite is None
        passed = one.forward_backward(rows_of(bad, PARTS[1]), totals_of(columns))
        assert passed.nonfinite is not None
        assert "advantages" in passed.nonfinite
        assert math.isnan(passed.losses.total)
        assert np.isnan(passed.logp).all()
        assert one.forward_backward(rows_of(columns, PARTS[2]), totals_of(columns)).nonfinite == passed.nonfinite
        if one.skipped:
            with pytest.raises(WeightsError, match=r"2 step\(s\) skipped in a row"):
                one.optim_step()
        else:
            assert one.optim_step().skipped
    assert one.version == 0


def test_a_skipped_optimizer_step_takes_its_whole_version_back(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "reinforce")
    one.step(make_columns())
    before = one.optimizers.snapshot()
    prepared = one.prepare(one.read(make_columns(seed=1))[0], 2)
    one.forward_backward(prepared)
    one.optim_step(completes=False)
    assert not same(one.optimizers.tensors(), before)
    one.forward_backward(prepared)
    next(iter(gradients(one)))
    next(p for p in one.scorer.policy_parameters().values() if p.grad is not None).grad.fill_(math.nan)  # type: ignore[union-attr]
    assert one.optim_step().skipped
    assert one.version == 1
    assert same(one.optimizers.tensors(), before)


def test_tokens_are_scored_at_the_version_that_is_asked_for(model_dir: Path, make_columns: Make) -> None:
    route = OldPolicy(route="snapshots")
    one = learner(model_dir, "decoupled-ppo", {"reference": "old"}, old_policy=route)
    asked = make_columns(seed=9)
    at = []
    for version in range(3):
        at.append(one.score(asked, version))
        assert (at[-1][~asked["mask"]] == 0).all()
        one.step(make_columns(seed=version, version=version))
    for version in (1, 2):  # lag bound 2: version 0 is gone
        np.testing.assert_allclose(one.score(asked, version), at[version], atol=1e-12)
    with pytest.raises(WeightsError, match="the weights of that version are gone"):
        one.score(asked, 0)
    mixed = {**asked, "versions": np.where(np.arange(len(asked["mask"])) % 2, 1, 2).astype(np.int32)}
    expected = np.where(mixed["versions"] == 1, at[1], at[2])
    np.testing.assert_allclose(one.score(mixed), expected, atol=1e-12)
    plain = learner(model_dir)
    assert plain.score(asked, 0)[asked["mask"]].max() < 0
    with pytest.raises(InvariantError, match="keeps no weights but those of version 0"):
        plain.score(asked, 1)


def test_totals_are_those_that_the_learner_counts(model_dir: Path, make_columns: Make) -> None:
    columns = make_columns()
    columns["logp_behavior"][np.flatnonzero(columns["mask"])[3]] = math.nan
    for rows in ("trajectory", "turn"):
        one = learner(model_dir, rows=rows)
        prepared = one.prepare(one.read(columns)[0])
        assert totals_of(columns, rows) == prepared.batch.step_totals()
    assert totals_of(concatenate([columns, columns])).rows == 32
    assert totals_of({"length": np.zeros(0, np.int64)}) == Totals(0, 0, 0)


def test_a_transport_gets_the_version_and_its_weights(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir)
    one.step(make_columns())
    version, names = one.stage(lambda version, weights, adapter: (version.number, sorted(weights)))
    assert version == 1
    assert names == sorted(one.weights())
