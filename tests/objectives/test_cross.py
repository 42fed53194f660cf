"""What every registered objective obeys, whatever it computes. A new method is covered as soon as it is registered;
what it needs beyond the defaults, or is excused from, is listed with the reason."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives import names
from stretto.objectives.table import example

ALL = names()

CURRENT = {"numerator": "current"}  # the batches here hold proximal log-probabilities, which these would take
OPTIONS: dict[str, dict[str, Any]] = {
    "dr-grpo": {"max_length": 9}, "entr": {"tau": 0.5}, "tis": CURRENT, "mis": CURRENT, "icepop": CURRENT,
}  # fmt: skip
"""Required options, and those that make the test batch exercise the method."""

CLOSE = {"gspo", "sapo", "sat-gspo"}
"""Equal to the plain gradient at ratio 1 up to rounding: a mean over the row, or a sigmoid's derivative, intervenes."""

NOT_PLAIN = {
    "asympo": "divides each row by its own negative log-probability",
    "klpo": "has no advantages: rewards, and a KL to the sampler",
}
PLAIN_OPTIONS: dict[str, dict[str, Any]] = {"asyncwebrl": {"k": 1.0}, "spo": {"negative_scale": 1.0}}

BATCH_FIELDS = ("logp_behavior", "logp_proximal", "logp_old", "entropy", "values", "rewards", "sampled_logp_behavior",
                "top_logp_behavior")  # fmt: skip


def make(name: str, **options: Any) -> Any:
    return example(name, **(OPTIONS.get(name, {}) | options))


def complete_batch(seed: int = 0, rows: int = 6, width: int = 5) -> tuple[TokenBatch, Tensor]:
    """Every field, holes in the mask, a row without policy tokens, a late reward, several trajectories a group."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[:, -1] = True
    mask[1, :] = False
    mask[2, :-1] = False  # a one-token response
    logp = -0.2 - torch.rand(rows, width, generator=g, dtype=torch.float64) * 3
    near = [torch.minimum(logp + scale * normal(rows, width), torch.tensor(-0.05)) for scale in (0.6, 0.4, 0.5)]
    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, -1] = torch.tensor([0, 1, 2, 1, 0, 2]).double()[:rows]
    slow = torch.full((rows,), math.nan, dtype=torch.float64)
    trained_at = torch.full((rows,), -1)
    slow[-1], trained_at[-1] = 3.0, 5
    batch = TokenBatch(
        mask=mask, logp_behavior=near[0], logp_proximal=near[1], logp_old=near[2], rewards=rewards,
        tokens=torch.zeros(rows, width, dtype=torch.int64),
        entropy=torch.rand(rows, width, generator=g, dtype=torch.float64) * 2, values=normal(rows, width),
        versions=torch.randint(3, 8, (rows, width), generator=g), version=8,
        group=torch.arange(rows) // 3, trajectory=torch.arange(rows) + 10,
        reward_fast=rewards.sum(1), reward_slow=slow, trained_at=trained_at,
        sampled_tokens=torch.randint(1, 9, (rows, width, 2), generator=g),
        sampled_logp_behavior=-1 - normal(rows, width, 2).abs(),
        top_tokens=torch.arange(1, 4).expand(rows, width, 3),
        top_logp_behavior=-2 - normal(rows, width, 3).abs(),
    )  # fmt: skip
    return batch, logp


def evaluate(
    objective: Any, batch: TokenBatch, logp: Tensor, values: Tensor | None = None, advantages: Tensor | None = None
) -> Any:
    """The loss; the log-probabilities of recorded alternatives move with the sampled token's."""
    extra = {}
    if "sampled" in objective.needs:
        extra["sampled_logp_current"] = batch.need("sampled_logp_behavior")[0].detach() + 0.1 * logp[..., None]
    if "top" in objective.needs:
        extra["top_logp_current"] = batch.need("top_logp_behavior")[0].detach() + 0.1 * logp[..., None]
    return objective(batch.replace(**extra), logp, values, advantages)


def gradient(
    objective: Any, batch: TokenBatch, logp: Tensor, advantages: Tensor | None = None, values: Tensor | None = None
) -> tuple[Any, Tensor]:
    logp = logp.clone().requires_grad_()
    loss = evaluate(objective, batch, logp, values, advantages)
    (grad,) = torch.autograd.grad(loss.total, logp)
    return loss, grad


def some_advantages(batch: TokenBatch, seed: int = 2) -> Tensor:
    return torch.randn(batch.rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value(loss: Any) -> float:
    return float(loss.total.detach())


@pytest.mark.parametrize("name", ALL)
def test_every_objective_is_called_alike(name: str) -> None:
    call = inspect.signature(type(make(name)).__call__)
    assert list(call.parameters) == ["self", "batch", "logp", "values", "advantages"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [n for n in ALL if n not in NOT_PLAIN])
def test_unit_ratio_gives_the_plain_policy_gradient(name: str, dtype: torch.dtype) -> None:
    batch, logp = complete_batch()
    logp, a = logp.to(dtype), some_advantages(batch).to(dtype)
    batch = batch.replace(
        logp_behavior=logp, logp_proximal=logp, logp_old=logp, trained_at=torch.full((batch.rows,), -1),
        reward_slow=torch.full((batch.rows,), math.nan, dtype=dtype),
    )  # fmt: skip
    objective = make(name, **PLAIN_OPTIONS.get(name, {}))
    same = {"aggregation": objective.aggregation, "max_length": objective.max_length}
    plain = gradient(make("reinforce", **same), batch, logp, a)[1]
    assert bool((plain[batch.mask] != 0).all())
    got = gradient(objective, batch, logp, a)[1]
    if name in CLOSE:
        torch.testing.assert_close(got, plain, rtol=1e-5 if dtype is torch.float32 else 1e-13, atol=0)
    else:
        assert torch.equal(got, plain)


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_permuted_rows_and_relabelled_groups_and_trajectories_change_nothing(name: str, ready: bool) -> None:
    batch, logp = complete_batch()
    a = some_advantages(batch) if ready else None
    loss, grad = gradient(make(name), batch, logp, a)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = batch.select(order)
    moved = moved.replace(group=7 - 3 * moved.group, trajectory=100 - moved.trajectory)
    again, moved_grad = gradient(make(name), moved, logp[order], None if a is None else a[order])
    assert value(again) == pytest.approx(value(loss), abs=1e-12)
    torch.testing.assert_close(moved_grad, grad[order], atol=1e-13, rtol=0)


@pytest.mark.parametrize("fill", [math.nan, math.inf, 99.0])
@pytest.mark.parametrize("name", ALL)
def test_masked_places_may_hold_anything(name: str, fill: float) -> None:
    batch, logp = complete_batch()
    batch = batch.replace(rewards=torch.where(batch.mask, batch.rewards, 0.0))
    loss, grad = gradient(make(name), batch, logp)
    off = ~batch.mask
    dirty = {}
    for field in BATCH_FIELDS:
        x = getattr(batch, field)
        if field != "rewards":
            dirty[field] = torch.where(off if x.ndim == 2 else off[..., None], fill, x)
    dirty["versions"] = torch.where(off, -(10**9), batch.versions)
    again, again_grad = gradient(make(name), batch.replace(**dirty), torch.where(off, fill, logp))
    assert torch.equal(again.total, loss.total)
    assert torch.equal(again_grad, grad)
    assert again.metrics.report() == loss.metrics.report()


@pytest.mark.parametrize("name", ALL)
def test_extra_masked_columns_full_of_nan_change_nothing(name: str) -> None:
    batch, logp = complete_batch()
    loss, grad = gradient(make(name), batch, logp)

    def widen(x: Tensor, fill: Any = math.nan) -> Tensor:
        return torch.cat([x, torch.full((x.shape[0], 2, *x.shape[2:]), fill, dtype=x.dtype)], 1)

    wide = batch.replace(
        mask=widen(batch.mask, False), versions=widen(batch.versions, 0), tokens=widen(batch.tokens, 0),
        sampled_tokens=widen(batch.sampled_tokens, 0), top_tokens=widen(batch.top_tokens, 0),
        length=torch.full((batch.rows,), logp.shape[1]), **{f: widen(getattr(batch, f)) for f in BATCH_FIELDS},
    )  # fmt: skip
    again, wide_grad = gradient(make(name), wide, widen(logp))
    assert value(again) == pytest.approx(value(loss), abs=1e-14)
    torch.testing.assert_close(wide_grad[:, :-2], grad, atol=1e-14, rtol=0)
    assert bool((wide_grad[:, -2:] == 0).all())


@pytest.mark.parametrize("name", ALL)
def test_gradient_flows_only_through_logp_and_values(name: str) -> None:
    batch, logp = complete_batch()
    sources = {f: getattr(batch, f).clone().requires_grad_() for f in BATCH_FIELDS}
    for late in ("reward_fast", "reward_slow"):
        sources[late] = getattr(batch, late).clone().requires_grad_()
    a = some_advantages(batch).requires_grad_()
    values, logp = torch.zeros_like(logp).requires_grad_(), logp.clone().requires_grad_()
    evaluate(make(name), batch.replace(**sources), logp, values, a).total.backward()
    assert logp.grad is not None
    assert bool((logp.grad != 0).any())
    assert values.grad is not None
    assert bool((values.grad != 0).any())
    assert a.grad is None
    for field, source in sources.items():
        assert source.grad is None or bool((source.grad == 0).all()), field


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_micro_batches_add_up_to_the_batch(name: str, ready: bool) -> None:
    batch, logp = complete_batch()
    objective = make(name)
    values = torch.randn(logp.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    a = some_advantages(batch) if ready else objective.advantages(batch, logp)
    whole = evaluate(objective, batch, logp, values, a)
    _, whole_grad = gradient(objective, batch, logp, a)
    step = batch.replace(
        totals=batch.step_totals(), targets=objective.targets(batch, logp), statistics=objective.statistics(batch, logp)
    )
    for parts in ([[0, 1], [2, 3, 4, 5]], [[5], [0], [4, 1], [3, 2]]):
        losses, grad = [], torch.zeros_like(logp)
        for part in parts:
            rows = torch.tensor(part)
            losses.append(evaluate(objective, step.select(rows), logp[rows], values[rows], a[rows]))
            grad[rows] = gradient(objective, step.select(rows), logp[rows], a[rows])[1]
        assert sum(value(x) for x in losses) == pytest.approx(value(whole), abs=1e-12)
        torch.testing.assert_close(grad, whole_grad, atol=1e-13, rtol=0)
        metrics = losses[0].metrics
        for more in losses[1:]:
            metrics = metrics + more.metrics
        assert metrics.report() == pytest.approx(whole.metrics.report(), abs=1e-12)


@contextmanager
def frozen_stop_gradients(tape: list[Tensor] | None) -> Iterator[list[Tensor]]:
    """Record what every ``detach`` returns, or, given a tape, return that instead: stop-gradients as constants."""
    original: Callable[[Tensor], Tensor] = Tensor.detach
    made: list[Tensor] = []
    play = iter(tape or [])

    def detach(x: Tensor) -> Tensor:
        made.append(original(x) if tape is None else next(play))
        return made[-1]

    Tensor.detach = detach  # type: ignore[assignment]
    try:
        yield made
    finally:
        Tensor.detach = original  # type: ignore[assignment]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_autograd_agrees_with_finite_differences_when_stop_gradients_are_held(name: str, own: bool) -> None:
    """Of the loss as written: for score forms the weights, for clips the decisions are constants."""
    batch, logp = complete_batch()
    objective = make(name)
    a = objective.advantages(batch, logp) if own else some_advantages(batch)
    _, grad = gradient(objective, batch, logp, a)
    with frozen_stop_gradients(None) as tape:
        evaluate(objective, batch, logp, None, a)
    for i, t in batch.mask.nonzero().tolist():
        step = torch.zeros_like(logp)
        step[i, t] = 1e-6
        ends = []
        for end in (logp + step, logp - step):
            with frozen_stop_gradients(tape):
                ends.append(evaluate(objective, batch, end, None, a).total)
        assert float((ends[0] - ends[1]) / 2e-6) == pytest.approx(float(grad[i, t]), abs=1e-8), (i, t)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_log_ratios_of_500_stay_finite(name: str, dtype: torch.dtype, sign: float) -> None:
    batch, logp = complete_batch()
    far = sign * torch.tensor([500.0, -500.0, 500.0, 0.0, 500.0], dtype=torch.float64)
    logp = -torch.ones_like(logp)
    fields = {f: getattr(batch, f).to(dtype) for f in BATCH_FIELDS}
    fields |= {"logp_behavior": (logp + far).to(dtype), "logp_proximal": (logp + far - sign * 500).to(dtype)}
    fields |= {"reward_fast": batch.reward_fast.to(dtype), "reward_slow": batch.reward_slow.to(dtype)}
    loss, grad = gradient(make(name), batch.replace(**fields), logp.to(dtype), some_advantages(batch).to(dtype))
    assert bool(loss.total.isfinite())
    assert bool(grad.isfinite().all())
    assert all(math.isfinite(v) for v in loss.metrics.report().values())


@pytest.mark.parametrize("name", ALL)
def test_no_policy_tokens_give_zero_loss_and_zero_gradient(name: str) -> None:
    batch, logp = complete_batch()
    batch = batch.replace(
        mask=torch.zeros_like(batch.mask), rewards=torch.zeros_like(logp),
        **{f: torch.full_like(getattr(batch, f), math.nan) for f in BATCH_FIELDS if f != "rewards"},
    )  # fmt: skip
    values = torch.full_like(logp, math.nan).requires_grad_()
    loss, grad = gradient(make(name), batch, torch.full_like(logp, math.nan), values=values)
    assert value(loss) == 0
    assert bool((grad == 0).all())


OWN_BASELINE = {"klpo", "rac"}
"""Train on the reward itself, or add a late one: a group of one, or one without variance, still has a gradient."""


@pytest.mark.parametrize("case", ["groups of one", "no variance"])
@pytest.mark.parametrize("name", ALL)
def test_groups_without_information_have_no_gradient(name: str, case: str) -> None:
    batch, logp = complete_batch()
    if case == "groups of one":
        batch = batch.replace(group=torch.arange(batch.rows))
    else:
        rewards = torch.zeros_like(logp)
        rewards[:, -1] = 0.3
        batch = batch.replace(rewards=rewards)
    batch = batch.replace(logp_proximal=logp, logp_behavior=logp, logp_old=logp)
    objective = make(name)
    loss, grad = gradient(objective, batch, logp)
    assert bool(loss.total.isfinite())
    assert bool(grad.isfinite().all())
    if "values" not in objective.needs and name not in OWN_BASELINE:
        assert bool((grad == 0).all())


WIDE = {"clip_low": 1.0, "clip_high": 1e12}
IS_FORMS: dict[str, dict[str, Any]] = {
    "grpo": WIDE, "ppo": WIDE, "dual-clip-ppo": WIDE | {"dual_clip": 1e12}, "decoupled-ppo": WIDE | {"cap": 1e12},
    "asyncwebrl": WIDE | {"cap": 1e12, "dual_clip": 1e12, "k": 1.0}, "a3po": WIDE | {"cap": 1e12},
    "dr-grpo": WIDE | {"max_length": 1}, "gspo": WIDE | {"reference": "behavior"}, "tis": {"cap": 1e12},
    "mis": {"low": 0.0, "high": 1e12, "veto": 0.0}, "icepop": {"low": 0.0, "high": 1e12}, "cispo": WIDE,
    "m2po": {"threshold": 1e12}, "dppo": {"threshold": 1.0, "cap": 1e12}, "gmc-grpo": {"eps": 1e12},
    "tic-grpo": {"eps": 1e12}, "entr": WIDE | {"tau": 1e12}, "sat": WIDE | {"alpha": 1.0},
    "sat-gspo": WIDE | {"alpha": 1.0}, "rac": {"is_clip": 1e12}, "ppo-ewma": WIDE | {"cap": 1e12},
    "copc": {"keep": (0.0, math.inf)}, "brace": WIDE, "vtrace": {"rho_bar": 1e12}, "sao": {"e_l": 1.0, "e_h": 1e12},
}  # fmt: skip
"""Objectives whose weight on a token is r once every clip, cap and gate is open."""


def expected_gradient(name: str, options: dict[str, Any], a: Tensor) -> tuple[Tensor, Tensor]:
    """E_mu of the objective's gradient in the logits over the whole vocabulary, token by token, and the policy."""
    g = torch.Generator().manual_seed(3)
    vocabulary = a.numel()
    logits = torch.randn(vocabulary, generator=g, dtype=torch.float64, requires_grad=True)
    logmu = torch.log_softmax(torch.randn(vocabulary, generator=g, dtype=torch.float64), 0)
    middle = torch.log_softmax(torch.randn(vocabulary, generator=g, dtype=torch.float64), 0)
    objective = make(name, **options)
    total = torch.zeros((), dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    for v in range(vocabulary):
        logp = torch.log_softmax(logits, 0)[v].view(1, 1)
        batch = TokenBatch(
            mask=torch.ones(1, 1, dtype=torch.bool), logp_behavior=logmu[v].view(1, 1),
            logp_proximal=middle[v].view(1, 1), logp_old=middle[v].view(1, 1), entropy=zero + 1, values=zero,
            rewards=zero, versions=torch.zeros(1, 1, dtype=torch.int64), version=3, group=torch.tensor([0]),
            trajectory=torch.tensor([0]), reward_fast=zero[0], reward_slow=zero[0] * math.nan,
            trained_at=torch.tensor([-1]),
        )  # fmt: skip
        total = total + logmu[v].exp() * objective(batch, logp, None, a[v : v + 1]).total
    (grad,) = torch.autograd.grad(total, logits)
    return grad, torch.softmax(logits, 0).detach()


@pytest.mark.parametrize("name", [n for n in IS_FORMS if n in ALL])
def test_importance_sampling_is_unbiased_by_enumeration(name: str) -> None:
    """E_mu[r A s] = E_pi[A s]."""
    a = torch.randn(5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    grad, p = expected_gradient(name, IS_FORMS[name], a)
    torch.testing.assert_close(grad, -(p * (a - (p * a).sum())), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [n for n in IS_FORMS if n in ALL])
def test_a_constant_advantage_has_no_expected_gradient(name: str) -> None:
    grad, _ = expected_gradient(name, IS_FORMS[name], torch.full((5,), 2.5, dtype=torch.float64))
    torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-12, rtol=0)


HIGH, LOW = 3.0, 0.2
QUADRANTS: list[tuple[str, dict[str, Any], list[float]]] = [
    # A>0 r high, A>0 r low, A<0 r high, A<0 r low
    ("ppo", {}, [0, LOW, HIGH, 0]),
    ("grpo", {}, [0, LOW, HIGH, 0]),
    ("dr-grpo", {"max_length": 1}, [0, LOW, HIGH, 0]),
    ("decoupled-ppo", {}, [0, LOW, HIGH, 0]),
    ("a3po", {}, [0, LOW, HIGH, 0]),
    ("gspo", {}, [0, LOW, HIGH, 0]),
    ("dual-clip-ppo", {"dual_clip": 2.5}, [0, LOW, 0, 0]),
    ("dual-clip-ppo", {}, [0, LOW, HIGH, 0]),  # 3 is not above c = 3
    ("asyncwebrl", {"k": 1.0, "dual_clip": 2.5}, [0, LOW, 0, 0]),
    ("icepop", {"high": 2.0}, [0, 0, 0, 0]),
    ("icepop", {}, [HIGH, 0, HIGH, 0]),
    ("icepop", {"region": "bernoulli-kl", "threshold": 0.01}, [0, 0, 0, 0]),
    ("mis", {}, [0, 0, 0, 0]),
    ("m2po", {}, [0, 0, 0, 0]),
    ("cispo", {}, [1.1, 0.9, 1.1, 0.9]),
    ("cispo", {"e_l": 0.3, "e_h": 0.2}, [1.2, 0.7, 1.2, 0.7]),
    ("tis", {}, [2, LOW, 2, LOW]),
    ("tis", {"lo": 0.5, "hi": 1.5}, [1.5, 0.5, 1.5, 0.5]),
    ("topr", {}, [1, 1, 1, LOW]),
    ("reinforce", {}, [1, 1, 1, 1]),
    ("rloo", {}, [1, 1, 1, 1]),
    ("spo", {}, [1, 1, 0.2, 0.2]),
    ("sat", {}, [0, LOW, HIGH, 0]),
    ("sat-gspo", {}, [0, LOW, HIGH, 0]),
    ("gmc-grpo", {}, [0.75 * HIGH, 0.75 * LOW, 0.75 * HIGH, 0.75 * LOW]),  # C / sum r = 4 * 1.2 / 6.4
    ("gmc-grpo", {"eps": 1.0}, [HIGH, LOW, HIGH, LOW]),
    ("tic-grpo", {}, [1.2, LOW, 1.2, LOW]),
    ("tic-grpo", {"variant": "tic_zero"}, [0, LOW, 0, LOW]),
    ("entr", {"tau": 10.0}, [0, LOW, HIGH, 0]),
    ("entr", {"tau": 0.1}, [0, 0, 0, 0]),
    ("rac", {}, [1.2, LOW, 1.2, LOW]),
    ("ppo-ewma", {}, [0, LOW, HIGH, 0]),
    ("copc", {}, [0, 0, 0, 0]),
    ("brace", {}, [0, LOW, HIGH, 0]),
    ("vtrace", {}, [1, LOW, 1, LOW]),
    ("sao", {"e_l": 0.3, "e_h": 1.0}, [0, 0, 0, 0]),
    ("sao", {"e_l": 0.3, "e_h": 5.0}, [HIGH, 0, HIGH, 0]),
    ("dppo", {"threshold": 0.02}, [0, LOW, HIGH, 0]),
    ("dppo", {"divergence": "kl", "threshold": 0.005}, [0, LOW, HIGH, 0]),
    ("dppo", {}, [HIGH, LOW, HIGH, 0]),  # |p - mu| = .033 at r high, .2 at r low
]


@pytest.mark.parametrize(("name", "options", "expected"), [row for row in QUADRANTS if row[0] in ALL])
def test_quadrants_of_sign_and_ratio(name: str, options: dict[str, Any], expected: list[float]) -> None:
    """Four one-token trajectories of one group; current probability 0.0505."""
    r = torch.tensor([HIGH, LOW, HIGH, LOW], dtype=torch.float64)[:, None]
    a = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)[:, None]
    logp = torch.full((4, 1), math.log(0.0505), dtype=torch.float64)
    reference = logp - r.log()
    batch = TokenBatch(
        mask=torch.ones(4, 1, dtype=torch.bool), logp_behavior=reference, logp_proximal=reference, logp_old=reference,
        entropy=torch.ones(4, 1, dtype=torch.float64), group=torch.zeros(4, dtype=torch.int64),
        trajectory=torch.arange(4), values=torch.zeros_like(logp),
        versions=torch.zeros(4, 1, dtype=torch.int64), version=1,
        reward_fast=torch.zeros(4, dtype=torch.float64), trained_at=torch.full((4,), -1),
        reward_slow=torch.full((4,), math.nan, dtype=torch.float64),
    )  # fmt: skip
    _, grad = gradient(make(name, **options), batch, logp, a)
    assert (grad * -4 / a)[:, 0].tolist() == pytest.approx(expected, abs=1e-12)


SHIPPED = {
    "reinforce", "grpo", "dr-grpo", "rloo", "ppo", "dual-clip-ppo", "decoupled-ppo", "tis", "mis", "icepop", "gspo",
    "cispo", "topr", "sapo", "m2po", "dppo", "kimi-pmd", "a3po", "copc", "klpo", "gmc-grpo", "tic-grpo", "brace",
    "entr", "sat", "sat-gspo", "sao", "rac", "asympo", "spo", "ppo-ewma", "vtrace", "asyncwebrl",
}  # fmt: skip
UNTABLED = {
    "asympo": "no ratio: 1 / l_i everywhere",
    "sapo": "no threshold: fades smoothly",
    "kimi-pmd": "no ratio: a quadratic pull",
    "klpo": "no advantage",
}


def test_every_shipped_method_stands_in_the_quadrant_table() -> None:
    assert {name for name, _, _ in QUADRANTS} | set(UNTABLED) == SHIPPED
