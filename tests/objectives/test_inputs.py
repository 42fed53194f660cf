"""Whatever dtype, shape or non-number a caller brings: the right value, or one error, the same for every method."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from test_cross import ALL, complete_batch, evaluate, gradient, make, some_advantages
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError, NonFiniteError
from stretto.objectives import get
from stretto.objectives.loss import critic_loss
from stretto.objectives.temporal import gae

MASK = torch.ones(1, 2, dtype=torch.bool)
VALUES = torch.tensor([[0.6, 0.7]])


def actor_critic(rewards: Tensor, values: Tensor = VALUES, **more: Any) -> TokenBatch:
    return TokenBatch(mask=MASK, rewards=rewards, values=values, logp_behavior=torch.zeros(1, 2), **more)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.bool, torch.float16, torch.float32])
def test_rewards_of_any_dtype_leave_the_critic_whole(dtype: torch.dtype) -> None:
    """delta = .1, .3; lam .95: A = .1 + .95 * .3 = .385 and .3; the targets V + A."""
    batch = actor_critic(torch.tensor([[0, 1]]).to(dtype))
    assert get("ppo").advantages(batch)[0].tolist() == pytest.approx([0.385, 0.3], abs=1e-6)
    assert get("ppo").targets(batch)[0].tolist() == pytest.approx([0.985, 1.0], abs=1e-6)
    assert gae(batch, 0.5, torch.tensor([1]))[0].tolist() == pytest.approx([-0.25 + 0.15, 0.3], abs=1e-6)
    truncated = {"truncated": torch.tensor([True]), "terminated": torch.tensor([False])}
    bootstrap = actor_critic(batch.rewards, bootstrap=torch.tensor([0.5], dtype=torch.float64), **truncated)
    assert get("ppo").advantages(bootstrap)[0].tolist() == pytest.approx([0.86, 0.8], abs=1e-7)


def test_whole_numbers_for_values_and_targets_too() -> None:
    batch = actor_critic(torch.tensor([[0.25, 0.5]]), torch.tensor([[1, 2]]))
    assert get("ppo", gae_lambda=1.0).advantages(batch)[0].tolist() == [-0.25, -1.5]
    late = TokenBatch(mask=MASK, reward_fast=torch.tensor([1]), reward_slow=torch.tensor([True]))
    assert (late.reward_fast.dtype, late.reward_slow.dtype) == (torch.float32, torch.float32)


def test_a_batch_has_the_widest_of_its_dtypes_and_integers_cannot_overflow() -> None:
    third = torch.full((1, 2), 1 / 3, dtype=torch.float64)
    batch = actor_critic(torch.zeros(1, 2), third, versions=torch.tensor([[120, 121]], dtype=torch.int8), version=300)
    assert batch.dtype == batch.rewards.dtype == torch.float64
    assert get("ppo", gae_lambda=0.0).advantages(batch)[0].tolist() == [0.0, -1 / 3]
    assert (batch.version - batch.versions).tolist() == [[180, 179]]
    assert actor_critic(torch.zeros(1, 2).half(), VALUES.bfloat16()).dtype == torch.float32


WRONG: list[tuple[str, Any]] = [
    ("rewards", torch.zeros(1, 1)), ("values", torch.zeros(2)), ("versions", torch.zeros(1, 2)),
    ("group", torch.zeros(1)), ("group", torch.zeros(1, 1, dtype=torch.int64)), ("trajectory", torch.tensor([True])),
    ("logp_behavior", torch.zeros(1, 2, dtype=torch.int64)), ("entropy", torch.ones(1, 2, dtype=torch.bool)),
    ("truncated", torch.tensor([1])), ("rewards", torch.zeros(1, 2, dtype=torch.complex64)),
    ("length", torch.tensor([2.0])), ("rewards", [[0.0, 1.0]]), ("length", torch.tensor([1])),
    ("statistics", {"quantile": torch.zeros(2)}), ("logp_old", torch.zeros(2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x"), WRONG, ids=[f"{n}-{k}" for k, (n, _) in enumerate(WRONG)])
def test_a_field_of_another_shape_or_dtype_is_an_error(name: str, x: Any) -> None:
    with pytest.raises(DataError, match=name):
        TokenBatch(mask=MASK, **{name: x})


def test_alternatives_must_fit_each_other() -> None:
    with pytest.raises(DataError, match=r"sampled_tokens must be \[1, 2, 3\] like sampled_logp_behavior"):
        TokenBatch(
            mask=MASK,
            sampled_tokens=torch.zeros(1, 2, 2, dtype=torch.int64),
            sampled_logp_behavior=torch.zeros(1, 2, 3),
        )


@pytest.mark.parametrize("name", ALL)
def test_arguments_of_another_shape_or_dtype_are_errors(name: str) -> None:
    batch, logp = complete_batch()
    a, objective = some_advantages(batch), make(name)
    for bad, word in (
        ((logp[:, :1], None, a), "logp"),
        ((logp.long(), None, a), "logp"),
        ((logp, logp[:, :1], a), "values"),
        ((logp, logp[:1], a), "values"),
        ((logp, logp.long(), a), "values"),
        ((logp, None, a[:1]), "advantages"),
        ((logp, None, a[:, None]), "advantages"),
        ((logp, None, a > 0), "advantages"),
        ((logp, None, 1.0), "advantages"),
    ):
        with pytest.raises(DataError, match=f"^{word} must be"):
            evaluate(objective, batch, *bad)


def test_a_critic_loss_does_not_broadcast() -> None:
    batch = actor_critic(torch.zeros(1, 2))
    with pytest.raises(DataError, match="values must be"):
        critic_loss(batch, torch.zeros(1, 1), torch.zeros(1, 2))
    with pytest.raises(DataError, match="targets must be"):
        critic_loss(batch, torch.zeros(1, 2), torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    """Log-ratios of 30 nats: e^30 is no float16, and infinity times 0 was NaN."""
    batch, logp = complete_batch()
    half = logp.to(dtype)
    fields = ("logp_behavior", "logp_proximal", "logp_old", "rewards", "values")
    narrow = {f: getattr(batch, f).to(dtype) for f in fields}
    narrow["logp_behavior"][0, -1] = -30
    for f in ("entropy", "sampled_logp_behavior", "top_logp_behavior", "reward_fast", "reward_slow"):
        narrow[f] = getattr(batch, f).float()
    batch = batch.replace(**narrow)
    a = some_advantages(batch).to(dtype)
    loss, grad = gradient(make(name), batch, half, a)
    same, wide = gradient(make(name), batch, half.float(), a.float())
    assert loss.total.dtype == torch.float32
    torch.testing.assert_close(loss.total, same.total, rtol=1e-2 if name == "klpo" else 0, atol=0)
    assert not bool(grad.isnan().any())
    if name != "klpo":  # whose alternatives' log-probabilities are computed in the test itself
        assert torch.equal(grad, wide.to(dtype))


FIELDS = ("logp", "advantages", "logp_behavior", "logp_proximal", "logp_old", "batch.values", "values")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ALL)
def test_what_is_not_a_number_at_a_policy_token_is_the_same_error_everywhere(name: str, number: float) -> None:
    batch, logp = complete_batch()
    a = some_advantages(batch)[:, None].expand_as(logp)
    row, token = 3, int(batch.mask[3].nonzero()[0])
    for field in FIELDS:
        given = {"logp": logp, "advantages": a, "values": torch.zeros_like(logp)}
        bad = (getattr(batch, field.removeprefix("batch.")) if field not in given else given[field]).clone()
        bad[row, token] = number
        changed = batch
        if field in given:
            given[field] = bad
        else:
            changed = batch.replace(**{field.removeprefix("batch."): bad})
        with pytest.raises(NonFiniteError, match=rf"{field} is .* at a policy token \(row {row}, token {token}"):
            evaluate(make(name), changed, given["logp"], given["values"], given["advantages"])
    infinite = batch.rewards.clone()
    infinite[row, token] = math.inf
    with pytest.raises(NonFiniteError, match=f"reward of row {row} is infinite"):
        evaluate(make(name), batch.replace(rewards=infinite), logp)


@pytest.mark.parametrize("baseline", [None, "none", "gae"])
@pytest.mark.parametrize("name", ALL)
def test_a_row_without_a_reward_trains_nothing(name: str, baseline: str | None) -> None:
    """Its policy and critic gradients are 0, the other rows' as if it weren't there but for the denominators."""
    if baseline and name in ("klpo", "rloo", "rac", "copc", "brace", "vtrace", "sao"):
        pytest.skip("its estimator is its own")
    batch, logp = complete_batch()
    row = 3
    rewards = batch.rewards.clone()
    rewards[row, -1] = math.nan
    objective = make(name, **({"baseline": baseline} if baseline else {}))
    values = torch.zeros_like(logp).requires_grad_()
    absent = batch.replace(rewards=rewards)
    loss, grad = gradient(objective, absent, logp, None, values)
    (critic,) = torch.autograd.grad(evaluate(objective, absent, logp, values).total, values)
    assert bool(loss.total.isfinite())
    assert bool((grad[row] == 0).all())
    assert bool((critic[row] == 0).all())
    assert bool((critic[batch.mask.any(1) & (torch.arange(batch.rows) != row)] != 0).any())
    others = torch.tensor([i for i in range(batch.rows) if i != row])
    rest = absent.select(others).replace(totals=batch.step_totals())
    without = gradient(objective, rest, logp[others], None, values.detach()[others])[1]
    torch.testing.assert_close(grad[others], without, rtol=0, atol=1e-12)
    ready = gradient(objective, absent, logp, some_advantages(batch), values)[1]
    assert bool((ready[row] == 0).all())


def test_a_row_that_comes_back_without_its_first_reward_trains_no_critic() -> None:
    batch, logp = complete_batch()
    batch = batch.replace(rewards=torch.full_like(batch.rewards, math.nan), trained_at=torch.zeros(batch.rows).long())
    values = torch.zeros_like(logp).requires_grad_()
    loss = evaluate(make("rac"), batch, logp, values)
    assert bool(loss.policy.isfinite())
    assert float(loss.critic) == 0


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {"value_clip": True}),
    ("ppo", {"gamma": False}),
    ("brace", {"k": True}),
    ("ppo", {"std": 1.5}),
    ("rac", {"alpha": -1}),
    ("rac", {"alpha": math.inf}),
    ("rac", {"alpha": math.nan}),
    ("rac", {"lifetime": -1}),
    ("rac", {"tau_age": 0}),
    ("rac", {"is_clip": -0.1}),
    ("rac", {"max_corr": -5.0}),
    ("rac", {"tau_age": math.nan}),
    ("grpo", {"clip_low": -0.1}),
    ("grpo", {"clip_low": 1.5}),
    ("grpo", {"clip_high": -0.1}),
    ("grpo", {"e": 1.5}),
    ("grpo", {"opsm_delta": -1.0}),
    ("grpo", {"dual_clip": 0.5}),
    ("ppo", {"value_clip": 0.0}),
    ("ppo", {"gae_lambda": 1.1}),
    ("ppo", {"gamma": -0.1}),
    ("ppo", {"critic_gae_lambda": 2.0}),
    ("dr-grpo", {"max_length": 0}),
    ("cispo", {"e_l": 2.0}),
    ("mis", {"veto": -1e-4}),
    ("mis", {"veto": 2.0}),
    ("mis", {"low": 3.0}),
    ("mis", {"low": -1.0}),
    ("tis", {"cap": -1.0}),
    ("tis", {"floor": -1.0}),
    ("icepop", {"threshold": 0.0}),
    ("icepop", {"high": 0.1}),
    ("kimi-pmd", {"tau": -1.0}),
    ("kimi-pmd", {"tau": math.inf}),
    ("klpo", {"beta": 0.0}),
    ("klpo", {"beta": math.inf}),
    ("sapo", {"tau_pos": 0.0}),
    ("sapo", {"tau_neg": math.inf}),
    ("m2po", {"threshold": -0.1}),
    ("dppo", {"cap": 0.0}),
    ("dppo", {"threshold": -0.1}),
    ("sat", {"alpha": 1.5}),
    ("sat", {"n": 0.0}),
    ("sat", {"n": math.inf}),
    ("spo", {"negative_scale": -0.1}),
    ("spo", {"negative_scale": math.inf}),
    ("asympo", {"floor": 0.0}),
    ("asympo", {"floor": math.inf}),
    ("asyncwebrl", {"k": 0.0}),
    ("asyncwebrl", {"k": math.inf}),
    ("gmc-grpo", {"eps": -0.1}),
    ("gmc-grpo", {"eps": math.nan}),
    ("tic-grpo", {"eps": -1.0}),
    ("sao", {"alpha": 0.0}),
    ("sao", {"clip_low": -0.5}),
    ("copc", {"clip": (2.0, 0.5)}),
    ("copc", {"clip": (math.nan, 2.0)}),
    ("copc", {"keep": (0.5, math.nan)}),
    ("copc", {"clip": (math.inf, math.inf)}),
    ("copc", {"keep": (-1.0, 2.0)}),
    ("copc", {"ppo_clip": (2.0, 0.2)}),
    ("brace", {"k": -1}),
    ("brace", {"c_bar": 0.0}),
    ("vtrace", {"rho_bar": -1.0}),
    ("ppo-ewma", {"cap": 0.5}),
    ("decoupled-ppo", {"cap": -1.0}),
    ("decoupled-ppo", {"floor": -1.0}),
    ("a3po", {"clip_high": -1.0}),
    ("entr", {"tau": -0.1}),
    ("entr", {"tau": 0.1, "eps": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED)
def test_options_out_of_range_are_refused_by_name(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=name):
        get(name, **({"max_length": 9} if name == "dr-grpo" else {}) | options)


@pytest.mark.parametrize("name", ALL)
def test_no_option_of_any_objective_is_nan_or_an_unknown_word(name: str) -> None:
    objective = make(name)
    kind = type(objective)
    fields = {f: getattr(objective, f) for f in (field.name for field in dataclasses.fields(kind))}
    for field, value in fields.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, float | int):
            with pytest.raises(ConfigError, match=field):
                kind(**fields | {field: math.nan})
        elif isinstance(value, str):
            with pytest.raises(ConfigError, match=field):
                kind(**fields | {field: "sequenze"})
