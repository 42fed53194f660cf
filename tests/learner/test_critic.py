"""The critic's own training: pre-training, several updates per actor update, frozen attention, turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from stretto.config.learner import Critic, LearnerConfig, Lora
from stretto.config.load import apply_overrides, validate
from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.schema import Columns
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import CheckpointError, ConfigError
from stretto.learner.critic import freeze_attention
from stretto.learner.learner import Learner
from stretto.learner.whole_batch import train_batch
from stretto.objectives import get

Make = Callable[..., Columns]
CRITICS: list[dict[str, Any]] = [{"kind": "head"}, {"kind": "network"}, {"kind": "network", "frozen": "attention"}]
IDS = ("head", "network", "frozen")


def learner(model_dir: Path, critic: dict[str, Any], *, objective: str = "ppo", **options: Any) -> Learner:
    config = LearnerConfig(
        **{"dtype": "float64", "warmup_steps": 0, "lr": 1e-2, "critic": Critic(**{"lr": 3e-2, **critic}), **options}
    )
    return Learner(model_dir, config, get(objective), max_steps=10)


def policy(of: Learner) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in of.weights().items()}


def critic(of: Learner) -> dict[str, Tensor]:
    assert of.scorer.critic is not None
    return {name: p.detach().clone() for name, p in of.scorer.critic.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def critic_loss(of: Learner, batch: TokenBatch, targets: Tensor) -> float:
    values = of.scorer.scores(batch, values=True).values
    assert values is not None
    return float((0.5 * (values - targets)[batch.mask].square().mean()).detach())


@pytest.mark.parametrize("kind", CRITICS, ids=IDS)
def test_pre_training_is_a_regression_of_the_critic_on_its_targets_and_nothing_else(
    model_dir: Path, make_columns: Make, kind: dict[str, Any]
) -> None:
    """Against autograd and AdamW written out: same weights, and the policy, its moments included, as before."""
    one = learner(model_dir, {**kind, "warmup_steps": 3}, weight_decay=0.1)
    before = policy(one)
    plain = learner(model_dir, kind)
    optimizer = torch.optim.AdamW(plain.scorer.critic_parameters().values(), lr=3e-2, betas=(0.9, 0.95),
                                  eps=1e-8, weight_decay=0.0)  # fmt: skip
    for version in range(3):
        columns = make_columns(seed=version)
        result = one.step(columns)
        assert result.version == version + 1
        assert result.metrics["lr"] == 0
        batch = TokenBatch.from_columns(columns, version, torch.float64)
        with torch.no_grad():
            batch = batch.replace(values=plain.scorer.scores(batch, values=True).values)
            targets = get("ppo").targets(batch)
        values = plain.scorer.scores(batch, values=True, policy_alone=False).values
        assert values is not None
        optimizer.zero_grad()
        (0.5 * (values - targets)[batch.mask].square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(plain.scorer.critic_parameters().values(), 1.0)
        optimizer.step()
    assert same(policy(one), before)
    assert not [name for name in one.optimizers.tensors() if name.startswith("policy.exp_avg")]
    for name, p in critic(plain).items():
        torch.testing.assert_close(critic(one)[name], p, rtol=0, atol=1e-9)


def test_the_policys_schedule_starts_after_pre_training(model_dir: Path, make_columns: Make) -> None:
    """Its warm-up isn't spent on steps in which it rests."""
    late = learner(model_dir, {"kind": "head", "warmup_steps": 2}, warmup_steps=3, schedule="linear")
    rates = [late.step(make_columns(seed=s)).metrics["lr"] for s in range(7)]
    prompt = learner(model_dir, {"kind": "head"}, warmup_steps=3, schedule="linear")
    prompt.max_steps = 8
    assert rates == pytest.approx([0, 0, *(prompt.step(make_columns(seed=s)).metrics["lr"] for s in range(5))])
    assert rates[4] == pytest.approx(1e-2)


@pytest.mark.parametrize("kind", CRITICS, ids=IDS)
@pytest.mark.parametrize(
    "more", [{}, {"micro_batch_tokens": 40}, {"lora": Lora(rank=2, dropout=0.3, noisy_ratio=True)}]
)
def test_the_actor_takes_the_same_step_whatever_the_number_of_critic_updates(
    model_dir: Path, make_columns: Make, kind: dict[str, Any], more: dict[str, Any]
) -> None:
    """One optimizer step a batch, whose advantages and targets are made before it: bit for bit."""
    steps = []
    for updates in (1, 2, 5):
        one = learner(model_dir, {**kind, "updates": updates}, **more)
        result = one.step(make_columns())
        steps.append((policy(one), dict(result.metrics), critic(one)))
    for weights, metrics, values in steps[1:]:
        assert same(weights, steps[0][0])
        assert metrics == steps[0][1]
        assert not same(values, steps[0][2])


def test_a_critic_of_its_own_leaves_the_actor_alone_over_mini_batches_and_passes(
    model_dir: Path, make_columns: Make
) -> None:
    """A head shares its trunk with the actor, so there a later mini-batch feels it: only the loss of its values."""
    weights = []
    for updates in (1, 3):
        one = learner(model_dir, {"kind": "network", "updates": updates}, minibatches=2, epochs=2)
        one.step(make_columns())
        weights.append(policy(one))
    assert same(*weights)


@pytest.mark.parametrize("kind", CRITICS, ids=IDS)
def test_each_further_update_brings_the_critic_closer_to_the_targets_of_the_step(
    model_dir: Path, make_columns: Make, kind: dict[str, Any]
) -> None:
    losses = []
    for updates in (1, 2, 4, 8):
        one = learner(model_dir, {**kind, "updates": updates, "lr": 2e-3}, lr=1e-12)
        batch = TokenBatch.from_columns(make_columns(), 0, torch.float64)
        targets = one._preparation.prepare(batch, 1).batch.targets
        assert targets is not None
        train_batch(one, batch)
        losses.append(critic_loss(one, batch, targets))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_two_updates_are_two_gradients_taken_one_after_the_other(model_dir: Path, make_columns: Make) -> None:
    """K = 2 of a network is what two steps of K = 1 do to it when they see the same targets."""
    double = learner(model_dir, {"kind": "network", "updates": 2})
    double.step(make_columns())
    twice = learner(model_dir, {"kind": "network"})
    batch = TokenBatch.from_columns(make_columns(), 0, torch.float64)
    prepared = twice._preparation.prepare(batch, 1)
    for last in (False, True):
        twice.forward_backward(prepared, critic_only=True)
        twice.optim_step(completes=last)
    assert same(critic(double), critic(twice))


def test_a_non_finite_gradient_of_a_further_update_takes_the_whole_step_back(
    model_dir: Path, make_columns: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = learner(model_dir, {"kind": "network", "updates": 2})
    one.step(make_columns(seed=1))
    before = one.optimizers.snapshot()
    backward, calls = one.forward_backward, []

    def poisoned(part: Any, critic_only: bool = False) -> Any:
        out = backward(part, critic_only=critic_only)
        calls.append(critic_only)
        if len(calls) == 2:
            assert one.scorer.critic is not None
            next(p for p in one.scorer.critic.parameters() if p.grad is not None).grad.fill_(np.nan)  # type: ignore[union-attr]
        return out

    monkeypatch.setattr(one, "forward_backward", poisoned)
    result = one.step(make_columns(seed=2))
    assert calls == [False, True]
    assert result.skipped
    assert result.version == 1
    assert "non-finite gradient" in (result.reason or "")
    assert same(one.optimizers.snapshot(), before)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_frozen_attention_stays_as_it_was_and_the_rest_of_the_critic_trains(
    model_dir: Path, make_columns: Make, dtype: str
) -> None:
    one = learner(model_dir, {"kind": "network", "frozen": "attention", "updates": 2}, dtype=dtype)
    before, actor = critic(one), policy(one)
    for seed in range(3):
        one.step(make_columns(seed=seed, version=seed))
    moved = {name for name, p in critic(one).items() if not torch.equal(p, before[name])}
    attention = {name for name in before if ".self_attn." in name}
    assert len(attention) == 8  # two layers, four matrices
    assert moved == before.keys() - attention
    # the policy's own attention trains
    assert all(not torch.equal(actor[n], w) for n, w in policy(one).items() if ".self_attn." in n)


def test_a_trunk_without_attention_modules_says_so(model_dir: Path) -> None:
    assert freeze_attention(torch.nn.Sequential(torch.nn.Linear(2, 2))) == 0


@pytest.mark.parametrize("kind", CRITICS, ids=IDS)
def test_resuming_goes_on_bit_for_bit(
    model_dir: Path, make_columns: Make, tmp_path: Path, kind: dict[str, Any]
) -> None:
    """In the middle of pre-training and after it; moments of both optimizers included."""
    options = {**kind, "updates": 2, "warmup_steps": 2}
    one = learner(model_dir, options)
    for version in range(4):
        one.save(tmp_path / str(version))
        other = learner(model_dir, options)
        other.load(tmp_path / str(version))
        columns = make_columns(seed=version, version=version)
        assert one.step(columns) == other.step(columns)
        assert same(one.optimizers.tensors(), other.optimizers.tensors())
        assert same(critic(one), critic(other))


@pytest.mark.parametrize("saved", CRITICS[1:], ids=IDS[1:])
def test_a_checkpoint_in_which_other_weights_trained_is_refused(
    model_dir: Path, make_columns: Make, tmp_path: Path, saved: dict[str, Any]
) -> None:
    """Going on with other weights frozen would bring their initial values back without a word."""
    one = learner(model_dir, saved)
    one.step(make_columns())
    one.save(tmp_path)
    (other,) = (kind for kind in CRITICS[1:] if kind != saved)
    with pytest.raises(CheckpointError, match=r"another model: .*self_attn.*trained by one of them only"):
        learner(model_dir, other).load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["kind=head", "frozen=attention"], "needs a critic with attention of its own"),
        (["kind=network", "coefficient=0.5"], "shares no parameters with the policy"),
        (["kind=network", "updates=0"], "updates"),
    ],
)
def test_options_that_cannot_be_honoured_are_errors(settings: list[str], message: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=message):
        validate(apply_overrides({}, [f"learner.critic.{s}" for s in settings]))


def test_saos_setting_is_a_valid_one() -> None:
    config = validate(apply_overrides({}, [
        "objective.name=sao", "group_size=1", "prompts_per_step=128", "learner.lr=1e-6", "learner.critic.kind=network",
        "learner.critic.lr=5e-6", "learner.critic.updates=2", "learner.critic.frozen=attention",
        "learner.critic.warmup_steps=10",
    ]))  # fmt: skip
    assert config.learner.critic.updates == 2


def turns(*lengths: tuple[bool, int], id: int = 0, seed: int = 0) -> Trajectory:
    """Segments (policy or not, tokens); reward 1 at the end. Policy tokens and their numbers depend on their order
    alone, whatever stands between them."""
    rng, between = np.random.default_rng(seed), np.random.default_rng(99)
    tokens, mask, logp = [], [], []
    for sampled, n in lengths:
        for _ in range(n):
            tokens.append(int((rng if sampled else between).integers(1, 20)))
            mask.append(sampled)
            logp.append(-1.5 - 3 * float(rng.random()) if sampled else np.nan)
    n = len(tokens)
    return Trajectory(
        id=id, group=id, tokens=np.array(tokens, np.int32), mask=np.array(mask), versions=np.zeros(n, np.int32),
        logprobs=np.array(logp), entropy=np.zeros(n), reward=1.0, turns=sum(s for s, _ in lengths),
    )  # fmt: skip


def test_over_turns_saos_advantages_skip_what_the_policy_did_not_write(model_dir: Path) -> None:
    """By hand, from the critic's values at the policy's tokens: the last one of a turn bootstraps from the first one
    of the next turn, lambda = 1 - 1 / (1.5 l) for the actor and 1 for the critic."""
    one = learner(model_dir, {"kind": "network"}, objective="sao")
    assert one.scorer.critic is not None
    torch.nn.init.normal_(one.scorer.critic.head.linear.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr,operator,arg-type]
    plain = turns((False, 3), (True, 3), (False, 4), (True, 2), id=0)
    short = turns((False, 2), (True, 2), id=1, seed=3)
    prepared = one._preparation.prepare(TokenBatch.from_columns(pack([plain, short]), 0, torch.float64), 1)
    batch = prepared.batch
    assert batch.values is not None
    assert batch.targets is not None
    for row, n in ((0, 5), (1, 2)):
        at = batch.mask[row]
        values = batch.values[row, at].tolist()
        assert len(set(values)) == n
        lam, a, expected = max(0.0, 1 - 1 / (1.5 * n)), 0.0, []
        for t in reversed(range(n)):
            after = values[t + 1] if t + 1 < n else 0.0
            a = (1.0 if t == n - 1 else 0.0) + after - values[t] + lam * a
            expected.insert(0, a)
        assert prepared.advantages[row, at].tolist() == pytest.approx(expected, abs=1e-12)
        assert batch.targets[row, at].tolist() == pytest.approx([1.0] * n, abs=1e-12)
        assert bool((prepared.advantages[row, ~at] == 0).all())


def test_the_step_uses_them(model_dir: Path) -> None:
    """The first actor loss is -(1/N) sum ratio-gated advantages of the multi-turn rows."""
    one = learner(model_dir, {"kind": "network"}, objective="sao")
    columns = pack([turns((False, 3), (True, 3), (False, 4), (True, 2), id=i, seed=i) for i in range(3)])
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    prepared = one._preparation.prepare(batch, 1)
    with torch.no_grad():
        logp = one.scorer.scores(batch, values=False).logp
    assert batch.logp_behavior is not None
    ratio = (logp - batch.logp_behavior)[batch.mask].exp()
    kept = torch.where((ratio > 0.7) & (ratio < 6.0), ratio, 0.0)
    assert 0 < int((kept > 0).sum()) < len(kept)
    expected = -float((kept * prepared.advantages[batch.mask] * logp[batch.mask]).sum() / len(kept))
    assert one.step(columns).metrics["loss/policy"] == pytest.approx(expected, rel=1e-12)
