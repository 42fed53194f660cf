"""Old-policy routes: exact ones agree to the bit, approximate ones are what they say, each counts what it costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stretto.config.learner import LearnerConfig, Lora, OldPolicy
from stretto.data.batch import TokenBatch
from stretto.data.columns import concatenate
from stretto.data.schema import Columns
from stretto.kernel.errors import CheckpointError, ConfigError, InvariantError, WeightsError
from stretto.learner.learner import Learner
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.old_policy.choice import route_of
from stretto.learner.old_policy.ewma import Average
from stretto.learner.old_policy.old_model import OldModel
from stretto.learner.whole_batch import train_batch
from stretto.objectives import get
from stretto.objectives.ratio import proxy_logp, proxy_share

Make = Callable[..., Columns]
EXACT = ("snapshots", "old_model", "interrupt")
LAG = 3
STEPS = 6


def learner(
    model_dir: Path, route: str | None, *, lag: int = LAG, objective: str = "decoupled-ppo", **options: Any
) -> Learner:
    old = {name: options.pop(name) for name in ("ewma_beta", "proxy_alpha") if name in options}
    config = LearnerConfig(**{
        "dtype": "float64", "warmup_steps": 0, "lr": 0.02, "micro_batch_tokens": 1,
        "old_policy": OldPolicy(**({} if route is None else {"route": route}), **old), **options,
    })  # fmt: skip
    chosen = get(objective, **({"reference": "old"} if objective == "decoupled-ppo" else {}))
    return Learner(model_dir, config, chosen, max_steps=100, lag_bound=lag)


def mixed(make_columns: Make, version: int, lag: int = LAG) -> Columns:
    """Trajectories whose tokens were sampled under the versions version - lag .. version, in order. Trajectory
    and token ids differ from step to step."""
    columns = make_columns(groups=3, size=2, seed=version, longest=10)
    rng = np.random.default_rng(version)
    versions, at = [], 0
    for n in columns["length"].tolist():
        versions.append(np.sort(rng.integers(max(version - lag, 0), version + 1, n)))
        at += n
    columns["versions"] = np.concatenate(versions).astype(np.int32)
    columns["trajectory"] = columns["trajectory"] + 1000 * version
    return columns


def filled(one: Learner, columns: Columns) -> Tensor:
    """``logp_old`` [B,T] as the next step would get it."""
    assert one.old is not None
    batch = TokenBatch.from_columns(columns, one.version, torch.float64)
    one.old.begin(one.version, 1)
    old = one.old.fill(batch)
    assert old is not None
    return old


class Driver:
    """Hands a learner what the loop would: batches known beforehand, each version's segments when it ends."""

    def __init__(self, one: Learner, batches: list[Columns]) -> None:
        self.one, self.batches = one, batches
        self.records = [np.full(len(b["tokens"]), np.nan) for b in batches]
        self.olds: list[Tensor] = []

    def run(self) -> list[Tensor]:
        for step in range(len(self.batches)):
            self.step(step)
        return self.olds

    def step(self, step: int) -> None:
        one, columns = self.one, dict(self.batches[step])
        if one.old is not None and one.old.name in ("old_model", "interrupt"):
            columns["record.logp_old"] = self.records[step]
        self.olds.append(filled(one, columns))
        result = one.step(columns)
        assert not result.skipped
        if one.old is not None and one.old.name in ("old_model", "interrupt"):
            self.end_of(step)

    def end_of(self, version: int) -> None:
        """Everything that later batches hold of this version exists by now."""
        later = self.batches[version + 1 :]
        if not later:
            return
        columns = concatenate(later)
        columns["mask"] = columns["mask"] & (columns["versions"] == version)
        scored = np.where(columns["mask"], self.one.score(columns), np.nan)
        self.one.release(version + 1)
        at = 0
        for record in self.records[version + 1 :]:
            part = scored[at : at + len(record)]
            np.copyto(record, part, where=~np.isnan(part))
            at += len(record)


def batches_of(make_columns: Make, lag: int = LAG) -> list[Columns]:
    return [mixed(make_columns, version, lag) for version in range(STEPS)]


def policy(one: Learner) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in one.weights().items()}


@pytest.mark.parametrize("lora", [0, 2])
def test_exact_routes_agree_bit_for_bit_with_each_versions_own_weights(
    model_dir: Path, make_columns: Make, lora: int
) -> None:
    """On mixed-version trajectories; the reference is a model per version, read row by row."""
    batches = batches_of(make_columns)
    options: dict[str, Any] = {"lora": Lora(rank=lora)} if lora else {}
    learners = {route: learner(model_dir, route, **options) for route in EXACT}
    olds = {route: Driver(one, batches).run() for route, one in learners.items()}
    for step in range(STEPS):
        for route in EXACT[1:]:
            assert torch.equal(olds[route][step], olds["snapshots"][step]), (route, step)
    after = {route: policy(one) for route, one in learners.items()}
    for route in EXACT[1:]:
        assert all(torch.equal(after[route][n], after["snapshots"][n]) for n in after[route])

    teacher = learner(model_dir, "snapshots", **options)
    models: list[Learner] = []
    for step in range(STEPS):
        still = learner(model_dir, "snapshots", **options)
        live = dict(teacher.scorer.policy_parameters())
        with torch.no_grad():
            for name, p in still.scorer.policy_parameters().items():
                p.copy_(live[name])
        models.append(still)
        batch = TokenBatch.from_columns(batches[step], step, torch.float64)
        (versions,) = batch.need("versions")
        per_version = [m._preparation.logp(batch) for m in models]
        apart = [float((a - b).abs()[batch.mask].mean()) for a, b in pairwise(per_version)]
        assert all(d > 1e-3 for d in apart), "versions must differ for a mix-up to show"
        for version in range(step + 1):
            at = batch.mask & (versions == version)
            assert torch.allclose(olds["snapshots"][step][at], per_version[version][at], rtol=0, atol=1e-12)
        assert bool((olds["snapshots"][step][~batch.mask] == 0).all())
        teacher.step(batches[step])


def test_batched_passes_agree_to_rounding(model_dir: Path, make_columns: Make) -> None:
    batches = batches_of(make_columns)
    alone = Driver(learner(model_dir, "snapshots", eps=1.0), batches).run()
    for route in EXACT:
        together = Driver(learner(model_dir, route, eps=1.0, micro_batch_tokens=10_000), batches).run()
        for a, b in zip(alone, together, strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_masked_places_do_not_matter(model_dir: Path, make_columns: Make) -> None:
    columns = mixed(make_columns, 0, 0)
    dirty = dict(columns)
    dirty["versions"] = np.where(columns["mask"], columns["versions"], -77)
    dirty["logp_behavior"] = np.where(columns["mask"], columns["logp_behavior"], np.nan)
    one, other = learner(model_dir, "snapshots"), learner(model_dir, "snapshots")
    one.step(columns)
    other.step(dirty)
    assert all(torch.equal(policy(one)[n], policy(other)[n]) for n in policy(one))


@pytest.mark.parametrize("route", EXACT)
def test_a_version_whose_weights_are_gone_is_an_error(model_dir: Path, make_columns: Make, route: str) -> None:
    """Never a substitute: also one version older than the lag bound, also where nobody scored in time."""
    batches = batches_of(make_columns)
    one = learner(model_dir, route)
    driver = Driver(one, batches)
    for step in range(LAG + 1):
        driver.step(step)
    late = mixed(make_columns, LAG + 1, 0)
    late["versions"][late["mask"]] = 0
    with pytest.raises(WeightsError, match="a token of version 0 is to be scored, but the weights of that version are"):
        one.step(late)


def test_a_batch_that_brings_old_log_probabilities_keeps_them(model_dir: Path, make_columns: Make) -> None:
    for route in ("snapshots", "proxy", "recompute", "ewma"):
        one, other = learner(model_dir, route), learner(model_dir, "snapshots")
        batch = TokenBatch.from_columns(mixed(make_columns, 0, 0), 0, torch.float64)
        ready = batch.replace(logp_old=torch.where(batch.mask, -1.5, torch.nan))
        metrics = train_batch(one, ready).metrics
        assert metrics["old_policy/passes"] == 0
        train_batch(other, ready)
        assert all(torch.equal(policy(one)[n], policy(other)[n]) for n in policy(one))


def test_a_batch_of_another_version_is_an_error(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "snapshots")
    with pytest.raises(InvariantError, match="a batch of version 2 for a learner at version 0"):
        train_batch(one, TokenBatch.from_columns(mixed(make_columns, 0, 0), 2, torch.float64))


# --- the approximate routes ---


def test_recompute_is_the_policy_at_the_start_of_the_step(model_dir: Path, make_columns: Make) -> None:
    """And at lag 0 exact routes, EWMA and recompute coincide; the proxy does not (engine and trainer differ here)."""
    fresh = mixed(make_columns, 0, 0)
    after = {}
    for route in ("recompute", *EXACT, "ewma", "proxy"):
        one = learner(model_dir, route)
        one.step(fresh)
        after[route] = policy(one)
    for route in (*EXACT, "ewma"):
        assert all(torch.allclose(after["recompute"][n], after[route][n], rtol=0, atol=1e-9) for n in after[route]), (
            route
        )
    assert any(not torch.allclose(after["recompute"][n], after["proxy"][n], rtol=0, atol=1e-9) for n in after["proxy"])


@pytest.mark.parametrize("epochs", [1, 2])
def test_recompute_reads_once_more_only_if_the_policy_moves_during_the_step(
    model_dir: Path, make_columns: Make, epochs: int
) -> None:
    one = learner(model_dir, "recompute", epochs=epochs)
    two = learner(model_dir, "recompute", epochs=epochs)
    columns = mixed(make_columns, 0, 0)
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    result = train_batch(one, batch)
    assert result.metrics["old_policy/passes"] == epochs - 1
    train_batch(two, batch.replace(logp_old=two._preparation.logp(batch)))
    assert all(torch.allclose(policy(one)[n], policy(two)[n], rtol=0, atol=1e-9) for n in policy(one))


def test_the_proxy_interpolates_by_staleness_or_by_a_constant(model_dir: Path, make_columns: Make) -> None:
    for alpha in (None, 0.25):
        one = learner(model_dir, "proxy", **({} if alpha is None else {"proxy_alpha": alpha}))
        for step in range(3):
            batch = TokenBatch.from_columns(mixed(make_columns, step), step, torch.float64)
            assert one.old is not None
            assert batch.versions is not None
            assert batch.logp_behavior is not None
            logp = one._preparation.logp(batch)
            got = one.old.complete(batch, logp).logp_old
            share = proxy_share(batch.versions, step) if alpha is None else alpha
            assert got is not None
            assert torch.equal(got, proxy_logp(logp, batch.logp_behavior, share))
            assert train_batch(one, batch).metrics["old_policy/passes"] == 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_average_is_that_of_the_weights_after_each_optimizer_step(
    model_dir: Path, make_columns: Make, epochs: int
) -> None:
    beta = 0.75
    one = learner(model_dir, None, objective="ppo-ewma", ewma_beta=beta, epochs=epochs)
    assert isinstance(one.old, Average)
    seen = [policy(one)]
    step = one.optimizers.policy.step

    def watched(lr: float, norm: float) -> None:
        step(lr, norm)  # in the middle of a version, where nothing is published
        seen.append({name: p.detach().clone() for name, p in one.scorer.policy_parameters().items()})

    one.optimizers.policy.step = watched  # type: ignore[method-assign]
    for version in range(3):
        one.step(mixed(make_columns, version))
    assert len(seen) == 1 + 3 * epochs
    weights = [beta**k for k in range(len(seen))][::-1]
    for i, name in enumerate(one.scorer.policy_parameters()):
        want = sum(w * s[name] for w, s in zip(weights, seen, strict=True)) / sum(weights)
        assert torch.allclose(one.old._ewma.average[i], want, rtol=0, atol=1e-12)  # type: ignore[arg-type]


def test_beta_0_is_the_current_policy(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "ewma", ewma_beta=0.0)
    for version in range(3):
        columns = mixed(make_columns, version)
        batch = TokenBatch.from_columns(columns, version, torch.float64)
        assert torch.allclose(filled(one, columns), one._preparation.logp(batch), rtol=0, atol=1e-12)
        one.step(columns)


def test_a_free_beta_follows_the_mean_staleness_in_optimizer_steps(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "ewma", epochs=2)
    for version in range(4):
        columns = mixed(make_columns, version)
        lag = 2 * float((version - columns["versions"][columns["mask"]]).mean())
        beta = one.step(columns).metrics["old_policy/ewma_beta"]
        assert beta / (1 - beta) == pytest.approx(lag, abs=1e-12)


def test_a_skipped_step_leaves_the_average_as_it_was(model_dir: Path, make_columns: Make) -> None:
    """Its first optimizer steps were made and undone."""
    one = learner(model_dir, "ewma", ewma_beta=0.5, minibatches=2)
    one.step(mixed(make_columns, 0))
    assert isinstance(one.old, Average)
    before = [x.clone() for x in one.old._ewma.average], one.old._ewma.weight
    norms = iter([1.0, float("inf")])
    one.optimizers.policy.grad_norm = lambda: next(norms)  # type: ignore[method-assign]
    assert one.step(mixed(make_columns, 1)).skipped
    assert all(torch.equal(a, b) for a, b in zip(one.old._ewma.average, before[0], strict=True))
    assert one.old._ewma.weight == before[1]


# --- cost ---


def size_of(one: Learner) -> int:
    return sum(p.nbytes for p in one.scorer.policy_parameters().values())


def test_each_route_counts_what_it_costs(model_dir: Path, make_columns: Make) -> None:
    """Memory, passes and forward tokens against the formulas of the trade-off."""
    batches = batches_of(make_columns)
    metrics: dict[str, list[dict[str, float]]] = {}
    weights = 0
    for route in (*EXACT, "ewma", "proxy", "recompute"):
        one = learner(model_dir, route)
        weights = size_of(one)
        rows: list[dict[str, float]] = []
        step = one.step

        def watched(columns: Any, step: Any = step, rows: Any = rows) -> Any:
            result = step(columns)
            rows.append(result.metrics)
            return result

        one.step = watched  # type: ignore[method-assign]
        if route in EXACT:
            Driver(one, batches).run()
        else:
            for columns in batches:
                one.step(columns)
        metrics[route] = rows
    for step, columns in enumerate(batches):
        versions = columns["versions"][columns["mask"]]
        # ``Driver`` looks at each fill once before the step that does it
        assert metrics["snapshots"][step]["old_policy/passes"] == 2 * len(np.unique(versions))
        assert metrics["snapshots"][step]["old_policy/memory_bytes"] == min(step + 1, LAG) * weights
        assert metrics["interrupt"][step]["old_policy/memory_bytes"] == weights
        # the copy of the version that trains, until it ends, beside the replica
        assert metrics["old_model"][step]["old_policy/memory_bytes"] == 2 * weights
        assert metrics["ewma"][step]["old_policy/memory_bytes"] == weights
        assert metrics["ewma"][step]["old_policy/passes"] == 1
        for route in ("proxy", "recompute"):
            assert metrics[route][step]["old_policy/memory_bytes"] == 0
            assert metrics[route][step]["old_policy/forward_tokens"] == 0
    assert metrics["snapshots"][-1]["old_policy/forward_tokens"] > metrics["ewma"][-1]["old_policy/forward_tokens"]


def test_adapters_alone_are_copied(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "snapshots", lora=Lora(rank=2))
    everything = sum(p.nbytes for p in one.scorer.model.parameters())
    held = [one.step(mixed(make_columns, v)).metrics["old_policy/memory_bytes"] for v in range(3)]
    assert held == [size_of(one) * k for k in (1, 2, 3)]
    assert held[0] < everything / 4


# --- checkpoints ---


@pytest.mark.parametrize("route", ["snapshots", "old_model", "ewma", "proxy", "recompute", "interrupt"])
def test_a_resumed_learner_goes_on_exactly(model_dir: Path, make_columns: Make, route: str, tmp_path: Path) -> None:
    batches = batches_of(make_columns)
    whole = Driver(learner(model_dir, route), batches) if route in EXACT else None
    one = whole.one if whole else learner(model_dir, route)
    two = learner(model_dir, route)
    cut = 3
    for step in range(STEPS):
        if step == cut:
            one.save(tmp_path)
            two.load(tmp_path)
            assert two.version == cut
        (whole.step(step) if whole else one.step(batches[step]))
        if step == cut - 1 and whole:
            records = [r.copy() for r in whole.records]
    rest = Driver(two, batches)
    if whole:
        rest.records = records
    for step in range(cut, STEPS):
        (rest.step(step) if whole else two.step(batches[step]))
    assert all(torch.equal(policy(one)[n], policy(two)[n]) for n in policy(one))


def test_a_checkpoint_of_another_route_lacks_the_history(model_dir: Path, make_columns: Make, tmp_path: Path) -> None:
    one = learner(model_dir, "recompute")
    one.step(mixed(make_columns, 0))
    one.save(tmp_path)
    with pytest.raises(CheckpointError, match="the checkpoint was made with 'recompute'"):
        learner(model_dir, "snapshots").load(tmp_path)
    learner(model_dir, "proxy").load(tmp_path)


# --- choice ---


def test_routes_go_with_objectives_that_use_them(model_dir: Path) -> None:
    assert route_of(OldPolicy(), get("tis")) is None
    assert route_of(OldPolicy(), get("decoupled-ppo", reference="old")) == "snapshots"
    assert route_of(OldPolicy(), get("ppo", reference="old", baseline="group")) == "snapshots"
    assert route_of(OldPolicy(), get("ppo-ewma")) == "ewma"
    assert route_of(OldPolicy(route="interrupt"), get("ppo-ewma")) == "interrupt"
    with pytest.raises(ConfigError, match=r"learner\.old_policy\.route = 'ewma', but objective 'tis' uses no old"):
        route_of(OldPolicy(route="ewma"), get("tis"))
    with pytest.raises(ConfigError, match="ewma_beta belongs to route 'ewma', but the route is 'snapshots'"):
        route_of(OldPolicy(ewma_beta=0.5), get("decoupled-ppo", reference="old"))
    with pytest.raises(ConfigError, match="proxy_alpha belongs to route 'proxy'"):
        learner(model_dir, "ewma", proxy_alpha=0.5)
    assert isinstance(learner(model_dir, "old_model").old, OldModel)


def test_only_routes_that_keep_weights_take_segments(model_dir: Path, make_columns: Make) -> None:
    with pytest.raises(InvariantError, match="'recompute' keeps no weights to score segments with"):
        learner(model_dir, "recompute").score(make_columns())
    plain = Learner(model_dir, LearnerConfig(), get("tis"))
    assert plain.old is None
    with pytest.raises(InvariantError, match="keeps no weights but those of version 0"):
        plain.score(make_columns())
    assert not OldPolicyRoute.remembers
