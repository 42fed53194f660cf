"""Dr.GRPO, RLOO, dual clip, IcePop, KPop, OPSM, GSPO, CISPO, TOPR, SAPO, M2PO, DPPO, Kimi's mirror descent and A-3PO
against numbers made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.gate import bernoulli_kl, near_both_ways, second_moment_limit, sequence_kept
from stretto.objectives.ratio import log1mexp, proxy_logp, proxy_share

MU, PROX, P = [0.5, 0.25, 0.8], [0.4, 0.3, 0.6], [0.45, 0.5, 0.2]
A = [1.0, -2.0, 3.0]
FLIPPED = [-1.0, 2.0, -3.0]
TOKEN = {"aggregation": "token-mean"}


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def three_tokens(**changes: Any) -> TokenBatch:
    """current/behaviour 0.9, 2, 0.25; proximal/behaviour 0.8, 1.2, 0.75; current/proximal 1.125, 5/3, 1/3."""
    fields: dict[str, Any] = {
        "mask": torch.ones(1, 3, dtype=torch.bool), "logp_behavior": tensor([MU]).log(),
        "logp_proximal": tensor([PROX]).log(), "group": torch.tensor([0]),
        "versions": torch.tensor([[5, 4, 3]]), "version": 5,
    }  # fmt: skip
    return TokenBatch(**(fields | changes))


def gradient(objective: Any, batch: TokenBatch, logp: Tensor, a: Any) -> tuple[Any, list[list[float]]]:
    logp = logp.clone().requires_grad_()
    loss = objective(batch, logp, advantages=tensor(a))
    (grad,) = torch.autograd.grad(loss.total, logp)
    return loss, grad.tolist()


def fade(r: float, tau: float) -> float:
    p = 1 / (1 + math.exp(-tau * (r - 1)))
    return 4 * p * (1 - p) * r


S = 0.625 ** (1 / 3)
MULTIPLIERS: list[tuple[str, dict[str, Any], list[float], list[float]]] = [
    ("dr-grpo", {"max_length": 3}, A, [0.9, 2, 0.25]),
    ("dr-grpo", {"max_length": 6}, A, [0.45, 1, 0.125]),
    ("rloo", {}, A, [1, 1, 1]),
    ("dual-clip-ppo", {"dual_clip": 1.5}, A, [0.9, 0, 0.25]),
    ("dual-clip-ppo", {"c": 2.5}, A, [0.9, 2, 0.25]),
    ("dual-clip-ppo", {}, FLIPPED, [0.9, 0, 0]),
    ("icepop", {}, A, [0.9, 2, 0]),
    ("icepop", {"lo": 0.2, "hi": 1.9}, A, [0.9, 0, 0.25]),
    ("icepop", {"numerator": "proximal", "low": 0.78}, A, [0.8, 1.2, 0]),
    ("icepop", {"level": "geometric"}, A, [0.45 ** (1 / 3)] * 3),
    ("icepop", {"region": "bernoulli-kl", "threshold": 0.2}, A, [0.9, 2, 0]),
    ("icepop", {"region": "bernoulli-kl"}, A, [0.9, 0, 0]),
    ("icepop", {"region": "bernoulli-kl", "numerator": "proximal", "threshold": 0.03}, A, [0.8, 1.2, 0]),
    ("cispo", {}, A, [0.9, 1.1, 0.9]),
    ("cispo", {"e": 0.05}, A, [0.95, 1.05, 0.95]),
    ("cispo", {"clip_low": 1.0, "clip_high": 2.0}, A, [0.9, 2, 0.25]),
    ("cispo", {"numerator": "proximal"}, A, [0.9, 1.1, 0.9]),
    ("topr", {}, A, [1, 1, 1]),
    ("topr", {}, FLIPPED, [0.9, 1, 0.25]),
    ("topr", {"level": "sequence"}, FLIPPED, [0.45, 1, 0.45]),
    ("sapo", {}, A, [fade(0.9, 1), fade(2, 1.05), fade(0.25, 1)]),
    ("sapo", {"tau_pos": 2.0, "tau_neg": 3.0}, A, [fade(0.9, 2), fade(2, 3), fade(0.25, 2)]),
    ("sapo", {"reference": "proximal"}, A, [fade(1.125, 1), fade(5 / 3, 1.05), fade(1 / 3, 1)]),
    ("m2po", {}, A, [0.9, 0, 0]),  # (log r)^2 = 0.0111, 0.480, 1.922
    ("m2po", {"tau": 0.3}, A, [0.9, 2, 0]),
    ("m2po", {"tau": 0.9}, A, [0.9, 2, 0.25]),
    ("m2po", {"tau": 0.01}, A, [0, 0, 0]),
    ("m2po", {"reference": "proximal", "tau": 0.2}, A, [1.125, 5 / 3, 0]),
    ("dppo", {}, A, [0.9, 2, 0.25]),  # |p - mu| = 0.05, 0.25, 0.6, but every update pulls back
    ("dppo", {}, FLIPPED, [0.9, 0, 0]),
    ("dppo", {"delta": 0.04}, FLIPPED, [0, 0, 0]),
    ("dppo", {"threshold": 0.3}, FLIPPED, [0.9, 2, 0]),
    ("dppo", {"threshold": 0.3, "cap": 1.5}, FLIPPED, [0.9, 1.5, 0]),
    ("dppo", {"divergence": "kl", "threshold": 0.1}, FLIPPED, [0.9, 0, 0]),  # KL(mu || p) = 0.005, 0.131, 0.832
    ("dppo", {"divergence": "kl", "threshold": 0.14}, FLIPPED, [0.9, 2, 0]),  # KL(p || mu) = 0.144
    ("a3po", {}, A, [0.9, 2, 0.25]),
    ("a3po", {}, FLIPPED, [0.9, 0, 0]),
    # the third token, two versions old: prox sqrt(.8 * .2) = .4, rho .5; linear: prox .5, rho .4
    ("a3po", {"clip_low": 0.55}, FLIPPED, [0.9, 0, 0.25]),
    ("a3po", {"clip_low": 0.55, "interpolation": "linear"}, FLIPPED, [0.9, 0, 0]),
    ("a3po", {"clip_low": 0.65, "interpolation": "linear"}, FLIPPED, [0.9, 0, 0.25]),
    ("a3po", {"correction": "truncate", "cap": 0.6}, A, [0.6 * 0.9, 0.6 * 2, 0.25]),
    ("a3po", {"correction": "truncate", "cap": 0.6, "interpolation": "linear"}, A, [0.54, 1.2, 0.6 * 0.4]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "a", "multiplier"), MULTIPLIERS)
def test_three_tokens(name: str, options: dict[str, Any], a: list[float], multiplier: list[float]) -> None:
    options = ({} if name == "dr-grpo" else TOKEN) | options
    if name == "icepop":  # by itself it would take the proximal policy, which the batch has
        options = {"numerator": "current"} | options
    _, grad = gradient(get(name, **options), three_tokens(), tensor([P]).log(), [a])
    assert grad[0] == pytest.approx([-m * x / 3 for m, x in zip(multiplier, a, strict=True)], abs=1e-9)


def test_losses_have_the_value_of_their_formula() -> None:
    def value(name: str, a: list[float] = A, **options: Any) -> float:
        logp = tensor([P]).log()
        return float(
            get(name, **({} if name == "dr-grpo" else TOKEN) | options)(three_tokens(), logp, None, tensor([a])).policy
        )

    def near(expected: float) -> Any:
        return pytest.approx(expected, abs=1e-9)

    def soft(r: float, tau: float) -> float:
        return 4 / tau / (1 + math.exp(-tau * (r - 1)))

    assert value("dr-grpo", max_length=7) == near(-(0.9 - 4 + 0.75) / 7)
    assert value("dual-clip-ppo", c=1.5) == near(-(0.9 - 3 + 0.75) / 3)
    assert value("sapo") == near(-(soft(0.9, 1) - 2 * soft(2, 1.05) + 3 * soft(0.25, 1)) / 3)
    assert value("m2po", tau=0.3) == near(-(0.9 - 4) / 3)
    assert value("topr", FLIPPED) == near(-(-0.9 * math.log(0.45) + 2 * math.log(0.5) - 0.75 * math.log(0.2)) / 3)
    assert value("cispo") == near(-(0.9 * math.log(0.45) - 2.2 * math.log(0.5) + 2.7 * math.log(0.2)) / 3)
    pull = sum(0.05 * math.log(p / lo) ** 2 for p, lo in zip(P, PROX, strict=True))
    plain = math.log(0.45) - 2 * math.log(0.5) + 3 * math.log(0.2)
    assert value("kimi-pmd") == near((pull - plain) / 3)
    assert value("a3po", FLIPPED) == near(-(-0.9 + 2 * 1.2 - 3 * 0.5 * 0.8) / 3)  # alpha 0, 0, 1/2; rho .9, 2, .5


def test_gspo_moves_a_sequence_as_one() -> None:
    """s = (current/proximal product)^(1/3) = .855; the mean advantage is 2/3."""
    logp = tensor([P]).log()
    loss, grad = gradient(get("gspo"), three_tokens(), logp, [A])
    assert float(loss.policy.detach()) == pytest.approx(-S * 2 / 3, abs=1e-9)
    assert grad[0] == pytest.approx([-S * 2 / 9] * 3, abs=1e-9)
    loss, grad = gradient(get("gspo"), three_tokens(), logp, [FLIPPED])
    assert float(loss.policy.detach()) == pytest.approx((1 - 3e-4) * 2 / 3, abs=1e-9)
    assert grad[0] == [0, 0, 0]
    _, grad = gradient(get("gspo", reference="behavior"), three_tokens(), logp, [A])
    assert grad[0] == pytest.approx([-(0.45 ** (1 / 3)) * 2 / 9] * 3, abs=1e-9)


def test_gspo_does_not_depend_on_the_length() -> None:
    """The same mean log-ratio has the same s, clip and loss at 10 and 10,000 tokens."""
    for d, loss in ((2e-4, -math.exp(2e-4)), (1e-3, -(1 + 4e-4))):
        for n in (10, 10_000):
            logp = torch.full((1, n), -1.0, dtype=torch.float64)
            batch = TokenBatch(mask=torch.ones(1, n, dtype=torch.bool), logp_proximal=logp - d)
            assert float(get("gspo")(batch, logp, None, tensor([1.0])).policy) == pytest.approx(loss, abs=1e-9)


def test_kimi_pulls_back_to_the_reference_and_rests_at_a_over_tau() -> None:
    logp = tensor([P]).log()
    for reference, lo in (("proximal", PROX), ("behavior", MU)):
        _, grad = gradient(get("kimi-pmd", tau=0.3, reference=reference), three_tokens(), logp, [A])
        expected = [-(a - 0.3 * math.log(p / q)) / 3 for a, p, q in zip(A, P, lo, strict=True)]
        assert grad[0] == pytest.approx(expected, abs=1e-9)
    rest = tensor([PROX]).log() + tensor([A]) / 0.3
    _, grad = gradient(get("kimi-pmd", tau=0.3), three_tokens(), rest, [A])
    assert grad[0] == pytest.approx([0, 0, 0], abs=1e-9)


def test_sapo_has_unit_slope_at_ratio_one_and_fades_on_both_sides() -> None:
    d = torch.linspace(-3, 3, 61, dtype=torch.float64)[None]
    logp = torch.full_like(d, -4.0)
    batch = TokenBatch(mask=torch.ones_like(d, dtype=torch.bool), logp_behavior=logp - d)
    for sign in (1.0, -1.0):
        grad = tensor(gradient(get("sapo", **TOKEN), batch, logp, [[sign] * 61])[1])[0] * -61 / sign
        assert float(grad[30]) == pytest.approx(1, abs=1e-9)
        gate = grad / d[0].exp()
        assert bool((gate[:30] < gate[1:31]).all())
        assert bool((gate[31:] < gate[30:-1]).all())
    positive, negative = (tensor(gradient(get("sapo"), batch, logp, [[s] * 61])[1]).abs() for s in (1.0, -1.0))
    assert bool((negative[0, 31:] < positive[0, 31:]).all())  # tau 1.05 fades sooner than 1.0


def brute_force_m2(x: list[float], tau: float) -> set[int]:
    """Indices dropped: the first i of the descending order, i smallest such that the mean of the rest is below tau."""
    order = sorted(range(len(x)), key=lambda k: -x[k])
    for i in range(len(x)):
        rest = [x[k] for k in order[i:]]
        if sum(rest) / len(rest) < tau:
            return set(order[:i])
    return set(order)


@pytest.mark.parametrize("seed", range(5))
def test_m2po_drops_the_fewest_outliers(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    d = 0.3 * torch.randn(4, 9, generator=g, dtype=torch.float64)
    mask = torch.rand(4, 9, generator=g) < 0.8
    for tau in (1e-4, 0.02, 0.04, 0.08, 10.0):
        kept = d.square() < second_moment_limit(torch.where(mask, d, 0.0), mask, tau)
        flat = d[mask].square().tolist()
        assert set((~kept[mask]).nonzero()[:, 0].tolist()) == brute_force_m2(flat, tau)


def test_m2po_drops_tied_tokens_together_and_looks_at_the_whole_step() -> None:
    d = tensor([[0.3, -0.3, 0.3, 0.1, 0.1]])
    mask = torch.ones(1, 5, dtype=torch.bool)
    assert float(second_moment_limit(d, mask, 0.05)) == pytest.approx(0.09)  # one would do: .04 < .05; all three go
    assert float(second_moment_limit(d, mask, 0.0581)) == math.inf
    assert float(second_moment_limit(d, torch.zeros_like(mask), 0.05)) == math.inf
    assert float(second_moment_limit(tensor([[0.5]]), mask[:, :1], 0.25)) == 0.25  # a mean at the threshold isn't below
    # a part of the step, on its own, would drop its outlier; in the step it is diluted
    logp = torch.full((2, 4), -1.0, dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.ones(2, 4, dtype=torch.bool), logp_behavior=logp - tensor([[0.45] + [0] * 3, [0] * 4])
    )
    objective = get("m2po")
    assert objective(batch, logp, None, tensor([1.0, 1.0])).metrics["gate/kept_tokens"] == 1
    part = batch.select(torch.tensor([0]))
    assert objective(part, logp[:1], None, tensor([1.0])).metrics["gate/kept_tokens"] == 0.75
    step = batch.replace(statistics=objective.statistics(batch, logp), totals=batch.step_totals())
    assert objective(step.select(torch.tensor([0])), logp[:1], None, tensor([1.0])).metrics["gate/kept_tokens"] == 1


def kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_bernoulli_kl_by_hand_and_at_the_edges() -> None:
    for p, q in ((0.5, 0.45), (0.25, 0.5), (0.8, 0.2), (1e-9, 1e-3), (0.999, 0.5)):
        assert float(bernoulli_kl(tensor(p).log(), tensor(q).log())) == pytest.approx(kl(p, q), abs=1e-9)
    assert float(bernoulli_kl(tensor(-0.7), tensor(-0.7))) == 0
    certain, half, never = tensor(0.0), tensor(0.5).log(), tensor(-500.0)
    assert float(bernoulli_kl(certain, half)) == pytest.approx(math.log(2), abs=1e-9)
    assert float(bernoulli_kl(half, certain)) == math.inf
    assert float(bernoulli_kl(certain, certain)) == 0
    assert float(bernoulli_kl(never, half)) == pytest.approx(math.log(2), abs=1e-9)
    assert float(bernoulli_kl(half, never)) == pytest.approx(0.5 * math.log(0.5) + 250 + 0.5 * math.log(0.5), abs=1e-9)
    assert float(bernoulli_kl(tensor(-math.inf), half)) == pytest.approx(math.log(2), abs=1e-9)


def test_log1mexp_keeps_its_digits() -> None:
    x = tensor([-1e-12, -1e-3, -0.5, -0.6931, -0.6932, -1.0, -30.0, -500.0, 0.0, -math.inf]).requires_grad_()
    y = log1mexp(x)
    exact = [math.log(-math.expm1(v)) for v in (-1e-12, -1e-3, -0.5, -0.6931, -0.6932, -1.0)]
    assert y[:6].tolist() == pytest.approx(exact, abs=1e-12)
    assert float(y[6].detach()) == pytest.approx(-math.exp(-30), rel=1e-12)
    assert y[7:].tolist() == [pytest.approx(0, abs=1e-200), -math.inf, 0]
    y[:8].sum().backward()
    assert bool(x.grad is not None and x.grad[:8].isfinite().all())


def test_kpop_bounds_likely_tokens_tightly_and_rare_ones_loosely() -> None:
    """The ratio says the opposite."""
    mu, p = tensor([[0.9, 1e-4]]).log(), tensor([[0.6, 4e-4]]).log()
    assert near_both_ways(p, mu, 0.05).tolist() == [[False, True]]
    batch = TokenBatch(mask=torch.ones(1, 2, dtype=torch.bool), logp_behavior=mu)
    for region, kept in (("ratio", [True, False]), ("bernoulli-kl", [False, True])):
        _, grad = gradient(get("icepop", region=region, high=2.0), batch, p, [[1.0, 1.0]])
        assert [g != 0 for g in grad[0]] == kept


def test_kpop_needs_both_directions() -> None:
    mu, p = tensor(0.5).log(), tensor(0.99).log()
    assert kl(0.5, 0.99) > 1.6
    assert kl(0.99, 0.5) < 0.65
    assert not bool(near_both_ways(p, mu, 1.0))
    assert not bool(near_both_ways(mu, p, 1.0))
    assert bool(near_both_ways(p, mu, 1.7))


def test_dppo_frees_rare_tokens_and_stops_likely_ones() -> None:
    """PPO the other way round: ratio 5 of a rare token is clipped, 1.19 of a likely one is not."""
    mu, p = tensor([[1e-3, 0.8]]).log(), tensor([[5e-3, 0.95]]).log()
    batch = TokenBatch(mask=torch.ones(1, 2, dtype=torch.bool), logp_behavior=mu)
    _, grad = gradient(get("dppo", threshold=0.1), batch, p, [[1.0, 1.0]])
    assert grad[0] == pytest.approx([-5 / 2, 0], abs=1e-9)
    _, grad = gradient(get("grpo", **TOKEN), batch, p, [[1.0, 1.0]])
    assert grad[0] == pytest.approx([0, -0.95 / 0.8 / 2], abs=1e-9)


def test_opsm_drops_bad_sequences_that_the_policy_has_left() -> None:
    """Rows: A < 0 left far, A < 0 left a little, A > 0 left far, A < 0 come nearer."""
    d = tensor([[-1.0, -0.5, 0.0], [-0.2, 0.0, 0.0], [-1.0, -0.5, 0.0], [1.0, 0.5, 0.0]])
    mask = torch.tensor([[True, True, False], [True, True, True], [True, True, False], [True, True, False]])
    a = tensor([-1.0, -1.0, 1.0, -1.0])
    kept = sequence_kept(d, a[:, None].expand_as(d), mask, 0.7)
    assert kept.all(1).tolist() == [False, True, True, True]
    assert bool(sequence_kept(d, a[:, None].expand_as(d), mask, 0.75).all())  # not above the threshold
    logp = torch.full_like(d, -3.0)
    batch = TokenBatch(mask=mask, logp_behavior=logp - d, logp_proximal=logp)
    wide = {"clip_low": 1.0, "clip_high": 9.0}
    plain = tensor(gradient(get("grpo", **wide), batch, logp, a.tolist())[1])
    loss, grad = gradient(get("grpo", delta=0.7, **wide), batch, logp, a.tolist())
    assert grad[0] == [0, 0, 0]
    assert grad[1:] == plain[1:].tolist()  # the denominators stay
    assert loss.metrics["gate/kept_tokens"] == pytest.approx(7 / 9)
    _, grad = gradient(get("grpo", opsm_delta=0.7, reference="proximal", **wide), batch, logp, a.tolist())
    assert all(any(row) for row in grad)


def test_rloo_is_the_groups_centred_advantage_without_its_own_share() -> None:
    rewards = torch.zeros(5, 2, dtype=torch.float64)
    rewards[:, 1] = tensor([0.0, 1.0, 5.0, 2.0, 4.0])
    batch = TokenBatch(mask=torch.ones(5, 2, dtype=torch.bool), rewards=rewards, group=torch.tensor([0, 0, 0, 1, 1]))
    a = get("rloo").advantages(batch)
    assert a[:, 0].tolist() == pytest.approx([0 - 3, 1 - 2.5, 5 - 0.5, 2 - 4, 4 - 2], abs=1e-9)
    centred = get("reinforce").advantages(batch)[:, 0]
    assert a[:, 0].tolist() == pytest.approx((centred * tensor([1.5, 1.5, 1.5, 2, 2])).tolist(), abs=1e-9)


def test_dr_grpo_weighs_tokens_alike_whatever_their_length_or_their_groups_spread() -> None:
    rewards = torch.zeros(4, 8, dtype=torch.float64)
    rewards[:, 0] = tensor([0.0, 1.0, 0.0, 10.0])
    mask = torch.arange(8) < torch.tensor([[2], [8], [5], [3]])
    logp = torch.full((4, 8), -1.0, dtype=torch.float64)
    batch = TokenBatch(mask=mask, rewards=rewards, group=torch.tensor([0, 0, 1, 1]), logp_behavior=logp)
    leaf = logp.clone().requires_grad_()
    get("dr-grpo", max_length=8)(batch, leaf).total.backward()
    assert leaf.grad is not None
    assert leaf.grad[:, 0].tolist() == pytest.approx([0.5 / 32, -0.5 / 32, 5 / 32, -5 / 32], abs=1e-9)
    assert bool(((leaf.grad == leaf.grad[:, :1]) | ~mask).all())


def test_proxy_share_by_staleness() -> None:
    versions = torch.tensor([[9, 8, 7, 6, 4, 0, 8]])
    assert proxy_share(versions, 8).tolist() == [[0, 0, 0, 0.5, 0.75, 0.875, 0]]


@pytest.mark.parametrize("kind", ["log-linear", "linear"])
def test_proxy_lies_between_the_two_policies(kind: Any) -> None:
    logp, behavior = tensor([P]).log(), tensor([MU]).log()
    for alpha in (0.0, 0.3, 1.0):
        got = proxy_logp(logp, behavior, alpha, kind)
        if kind == "linear":
            expected = [math.log((1 - alpha) * q + alpha * p) for p, q in zip(P, MU, strict=True)]
        else:
            expected = [(1 - alpha) * math.log(q) + alpha * math.log(p) for p, q in zip(P, MU, strict=True)]
        assert got[0].tolist() == pytest.approx(expected, abs=1e-12)
    far = proxy_logp(logp - 500, logp, 0.5, kind), proxy_logp(logp, logp - 500, 0.5, kind)
    middle = logp - (250 if kind == "log-linear" else math.log(2))
    assert torch.allclose(far[0], middle)
    assert torch.allclose(far[1], middle)
    assert torch.equal(proxy_logp(logp, logp, 0.3, kind), logp)


def test_a3po_of_fresh_tokens_is_ppo_bit_for_bit() -> None:
    batch = three_tokens(versions=torch.tensor([[5, 4, 5]]))
    for a in (A, FLIPPED):
        loss, grad = gradient(get("a3po", **TOKEN), batch, tensor([P]).log(), [a])
        ppo, ppo_grad = gradient(get("grpo", **TOKEN), batch, tensor([P]).log(), [a])
        assert torch.equal(loss.total, ppo.total)
        assert grad == ppo_grad


def test_the_log_linear_proxy_only_moves_the_clip() -> None:
    """rho = r^(1 - alpha): a clip e on rho is a clip at (1 -+ e)^(1 / (1 - alpha)) on r."""
    d = torch.linspace(-2, 2, 41, dtype=torch.float64)[None] + 0.003  # no ties with the ends
    logp = torch.full_like(d, -3.0)
    mask = torch.ones_like(d, dtype=torch.bool)
    for staleness in (2, 3, 5, 9):
        alpha = (staleness - 1) / staleness
        batch = TokenBatch(
            mask=mask, logp_behavior=logp - d, versions=torch.zeros(1, 41, dtype=torch.int64), version=staleness
        )
        low, high = 0.8 ** (1 / (1 - alpha)), 1.2 ** (1 / (1 - alpha))
        for sign in (1.0, -1.0):
            _, grad = gradient(get("a3po", cap=1e9, **TOKEN), batch, logp, [[sign] * 41])
            moved = get("grpo", clip_low=1 - low, clip_high=high - 1, **TOKEN)
            assert grad[0] == pytest.approx(gradient(moved, batch, logp, [[sign] * 41])[1][0], abs=1e-9)


def test_needs_and_corrects() -> None:
    options: dict[str, dict[str, Any]] = {"dr-grpo": {"max_length": 9}}
    methods = [
        "dr-grpo",
        "rloo",
        "dual-clip-ppo",
        "icepop",
        "gspo",
        "cispo",
        "topr",
        "sapo",
        "m2po",
        "dppo",
        "kimi-pmd",
        "a3po",
    ]
    made = {name: get(name, **options.get(name, {})) for name in methods}
    assert {name: set(o.needs) for name, o in made.items() if o.needs} == {
        "dual-clip-ppo": {"values"}, "gspo": {"proximal"}, "m2po": {"statistics"}, "kimi-pmd": {"proximal"},
    }  # fmt: skip
    assert [name for name, o in made.items() if not o.corrects] == ["rloo", "gspo", "kimi-pmd"]
    for name in ("gspo", "kimi-pmd", "sapo", "m2po", "grpo"):
        assert get(name, reference="behavior").corrects
        assert get(name, reference="old").needs >= {"old"}
        assert get(name, reference="old").corrects
        assert not get(name, reference="proximal").corrects


def test_missing_fields_and_impossible_options_are_named() -> None:
    logp = tensor([P]).log()
    for name, field in (
        ("gspo", "logp_proximal"),
        ("kimi-pmd", "logp_proximal"),
        ("a3po", "versions"),
        ("dppo", "logp_behavior"),
    ):
        with pytest.raises(DataError, match=f"{field} is missing"):
            get(name)(three_tokens(**{field: None}), logp, None, tensor([1.0]))
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("dr-grpo", {}, "max_length"),
        ("dual-clip-ppo", {"dual_clip": 1.0}, "dual_clip"),
        ("dual-clip-ppo", {"dual_clip": None}, "dual_clip"),
        ("icepop", {"low": 2.0, "high": 1.0}, "low < high"),
        ("icepop", {"threshold": 0.0}, "threshold"),
        ("icepop", {"region": "bernoulli-kl", "level": "sequence"}, "level"),
        ("cispo", {"clip_low": 1.5}, "clip_low"),
        ("sapo", {"tau_neg": 0.0}, "tau_neg"),
        ("m2po", {"threshold": 0.0}, "threshold"),
        ("dppo", {"cap": 0.0}, "cap"),
        ("dppo", {"threshold": -1.0}, "threshold"),
        ("kimi-pmd", {"tau": -1.0}, "tau"),
        ("a3po", {"reference": "old"}, "reference"),
        ("gspo", {"clip_high": -1.0}, "clip_high"),
    ]
    for name, options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            get(name, **options)


def test_the_formulas_symbols_are_understood() -> None:
    assert get("tis", C=3.0).cap == 3
    assert (get("tis", lo=0.5, hi=2.5).floor, get("tis", lo=0.5, hi=2.5).cap) == (0.5, 2.5)
    assert (get("mis", lo=0.4, hi=2.5).low, get("mis", lo=0.4, hi=2.5).high) == (0.4, 2.5)
    assert (get("gspo", e_l=1e-4, e_h=2e-4).clip_low, get("gspo", e_l=1e-4, e_h=2e-4).clip_high) == (1e-4, 2e-4)
    assert get("decoupled-ppo", C=4.0).cap == 4
