"""KLPO's exact checks: a tree of two decisions by enumeration, the estimators' gaps, and its special cases."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives import get
from stretto.objectives.klpo_estimators import log1mexp, topk_kl

BETA = 0.4
Q = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
LOGITS = torch.tensor([[0.5, -0.2], [-0.6, 0.9]], dtype=torch.float64)
PATHS = [[(0, 0)], [(0, 1), (1, 0)], [(0, 1), (1, 1)]]
REWARDS = [0.2, 1.1, -0.5]
CHANCE = torch.tensor([0.3, 0.7 * 0.6, 0.7 * 0.4], dtype=torch.float64)
VISITS = torch.tensor([1.0, 0.7], dtype=torch.float64)
ADVANTAGES = torch.tensor([[-0.182, 0.078], [0.64, -0.96]], dtype=torch.float64)
GOLDEN, OBJECTIVE, VALUE = [0.1845730203, -0.1845730203], 1.3745647608726, 0.382


class Table:
    """A policy [N,V] of logits and one row a path, with everything that KLPO may ask for. ``draws`` [rows][M] holds,
    for each position of the path, the tokens drawn."""

    def __init__(self, logits: Tensor, q: Tensor = Q, paths: Any = PATHS, rewards: Any = REWARDS) -> None:
        self.logits, self.q, self.paths, self.rewards = logits.clone().requires_grad_(), q, paths, rewards

    def loss(self, objective: Any, row: int, draws: Any = None, head: Any = None, **options: Any) -> Any:
        p, path = torch.log_softmax(self.logits, 1), self.paths[row]
        nodes, tokens = torch.tensor(path).T
        fields: dict[str, Any] = {}
        if draws is not None:
            ids = torch.tensor(draws)
            fields = {"sampled_logp_behavior": self.q[nodes[:, None], ids][None],
                      "sampled_logp_current": p[nodes[:, None], ids][None]}  # fmt: skip
        if head is not None:
            ids = torch.tensor(head)
            fields = {"top_logp_behavior": self.q[nodes][:, ids][None], "top_logp_current": p[nodes][:, ids][None]}
        rewards = torch.zeros(1, len(path), dtype=torch.float64)
        rewards[0, -1] = self.rewards[row]
        batch = TokenBatch(mask=torch.ones(1, len(path), dtype=torch.bool), logp_behavior=self.q[nodes, tokens][None],
                           rewards=rewards)  # fmt: skip
        return objective(batch.replace(**fields), p[nodes, tokens][None], **options)

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, self.logits)[0]

    def expected(self, objective: Any, head: Any = (0, 1), **options: Any) -> Tensor:
        """Over the sampler's paths; the whole vocabulary as head."""
        asked = head if "top" in objective.needs else None
        return self.gradient(
            sum(c * self.loss(objective, i, head=asked, **options).total for i, c in enumerate(CHANCE.tolist()))
        )

    def expected_over_draws(self, objective: Any, m: int) -> Tensor:
        """The same over every combination of m draws at each position."""
        total = torch.zeros((), dtype=torch.float64)
        for row, chance in enumerate(CHANCE.tolist()):
            length = len(self.paths[row])
            for drawn in itertools.product(range(2), repeat=m * length):
                ids = [list(drawn[m * t : m * t + m]) for t in range(length)]
                weight = math.prod(float(self.q[s, v].exp()) for (s, _), at in zip(self.paths[row], ids, strict=True)
                                   for v in at)  # fmt: skip
                total = total + chance * weight * self.loss(objective, row, draws=ids).total
        return self.gradient(total)


def klpo(route: str = "token", estimator: str = "full", beta: float = BETA, **options: Any) -> Any:
    return get("klpo", route=route, estimator=estimator, beta=beta, **options)


def close(a: Tensor, b: Tensor, atol: float = 1e-9) -> None:
    assert torch.allclose(a, b, atol=atol, rtol=0), (a, b)


def residuals(logits: Tensor) -> Tensor:
    """A - beta (ell + KL) [N,V]."""
    ell = torch.log_softmax(logits, 1) - Q
    return ADVANTAGES - BETA * (ell - (Q.exp() * ell).sum(1, keepdim=True))


# --- the tree ----------------------------------------------------------------------------------------------------


def test_the_tree_is_the_paper_s() -> None:
    assert float(CHANCE @ torch.tensor(REWARDS, dtype=torch.float64)) == pytest.approx(VALUE, abs=1e-12)
    kl = (Q.exp() * (Q - torch.log_softmax(LOGITS, 1))).sum(1)
    assert float(kl[0]) == pytest.approx(0.2823217468, abs=1e-10)
    population = (VISITS @ (Q.exp() * residuals(LOGITS).square()).sum(1)) / (2 * BETA)
    assert float(population) == pytest.approx(OBJECTIVE, abs=1e-12)


EXACT = [("sequence", "full"), ("token", "full"), ("sequence", "binary"), ("token", "binary")]


@pytest.mark.parametrize(("route", "estimator"), EXACT)
def test_the_expected_gradient_is_the_closed_form(route: str, estimator: str) -> None:
    grad = Table(LOGITS).expected(klpo(route, estimator))
    assert grad[0].tolist() == pytest.approx(GOLDEN, abs=1e-10)
    close(grad, -VISITS[:, None] * Q.exp() * residuals(LOGITS))


@pytest.mark.parametrize("estimator", ["full", "binary"])
def test_the_expected_square_is_the_population_objective_plus_the_value(estimator: str) -> None:
    """With two tokens binary is full, so both."""
    table, total = Table(LOGITS), 0.0
    for row, chance in enumerate(CHANCE.tolist()):
        loss = table.loss(klpo("sequence", estimator), row, head=(0, 1) if estimator == "full" else None)
        total += chance * loss.metrics["klpo/objective"]
    assert total == pytest.approx(OBJECTIVE + VALUE**2 / (2 * BETA), abs=1e-12)


@pytest.mark.parametrize(("route", "estimator"), EXACT)
def test_at_the_gibbs_policy_nothing_moves(route: str, estimator: str) -> None:
    q_values = ADVANTAGES + torch.tensor([[VALUE], [0.46]], dtype=torch.float64)
    grad = Table(Q + q_values / BETA).expected(klpo(route, estimator))
    close(grad, torch.zeros_like(grad), 1e-12)


@pytest.mark.parametrize("head", [(0, 1), (1, 0)])
@pytest.mark.parametrize("route", ["token", "sequence"])
def test_two_tokens_make_binary_full_and_a_whole_head_top_k_full_per_sample(route: str, head: tuple[int, int]) -> None:
    table = Table(LOGITS)
    for row in range(3):
        full = table.gradient(table.loss(klpo(route, "full"), row, head=head).total)
        close(table.gradient(table.loss(klpo(route, "binary"), row).total), full, 1e-12)
        # the floors cancel: both tails are the floor
        close(table.gradient(table.loss(klpo(route, "topk"), row, head=head).total), full, 1e-12)


# --- draws ---------------------------------------------------------------------------------------------------------


def test_the_expectation_over_draws_is_the_full_control() -> None:
    table = Table(LOGITS)
    full = table.expected(klpo("token", "full"))
    for m in (1, 2):
        close(table.expected_over_draws(klpo("token", "mc", M=m), m), full, 1e-14)


def test_leaving_one_column_out_makes_the_sequence_route_unbiased() -> None:
    table = Table(LOGITS)
    error = table.expected_over_draws(klpo("sequence", "mc", M=2), 2) - table.expected(klpo("sequence", "full"))
    assert float(error.abs().max()) < 1e-15


def test_the_value_from_draws_is_unbiased_and_may_be_negative() -> None:
    table, total, least = Table(LOGITS), 0.0, math.inf
    objective = klpo("sequence", "mc", M=2)
    for row, chance in enumerate(CHANCE.tolist()):
        length = len(PATHS[row])
        for drawn in itertools.product(range(2), repeat=2 * length):
            ids = [list(drawn[2 * t : 2 * t + 2]) for t in range(length)]
            weight = math.prod(float(Q[s, v].exp()) for (s, _), at in zip(PATHS[row], ids, strict=True) for v in at)
            value = table.loss(objective, row, draws=ids).metrics["klpo/objective"]
            total, least = total + chance * weight * value, min(least, value)
    assert total == pytest.approx(OBJECTIVE + VALUE**2 / (2 * BETA), abs=1e-12)
    assert least < 0


def test_one_column_for_residual_and_score_would_be_biased_by_beta_times_their_covariance() -> None:
    """Why columns are kept apart: at one state, the shared column adds beta Cov_q(ell, score); the mean residual of
    all M columns still has 1/M of it. Ours has none."""
    bandit = Table(LOGITS[:1], Q[:1], [[(0, 0)], [(0, 1)]], [0.2, -0.7])
    q, p = Q[0].exp(), torch.log_softmax(LOGITS[0], 0)
    ell, score = p - Q[0], torch.eye(2, dtype=torch.float64) - p.exp()
    covariance = (q[:, None] * ell[:, None] * (score - q @ score)).sum(0)

    def biased(m: int) -> Tensor:
        """The mean of all M columns' residuals for every column's score."""
        total = torch.zeros(2, dtype=torch.float64)
        for a in range(2):
            for drawn in itertools.product(range(2), repeat=m):
                at = list(drawn)
                d = bandit.rewards[a] - BETA * (ell[a] - ell[at].mean())
                total -= q[a] * q[at].prod() * d * (score[a] - score[at].mean(0))
        return total

    total = torch.zeros((), dtype=torch.float64)
    for a, x, y in itertools.product(range(2), repeat=3):
        loss = bandit.loss(klpo("sequence", "mc", M=2), a, draws=[[x, y]])
        total = total + q[a] * q[x] * q[y] * loss.total
    ours = bandit.gradient(total)[0]
    full = sum(q[a] * bandit.loss(klpo("sequence", "full"), a, head=(0, 1)).total for a in range(2))
    close(ours, bandit.gradient(full)[0], 1e-15)
    for m in (1, 2, 3):
        close(biased(m) - ours, BETA * covariance / m, 1e-14)
    assert float(covariance.abs().max()) > 0.05


def test_duplicate_draws_count_as_often_as_they_fell() -> None:
    table = Table(LOGITS)
    twice = table.gradient(table.loss(klpo("token", "mc"), 0, draws=[[1, 1, 0]]).total)
    p = torch.log_softmax(LOGITS[0], 0)
    h = 0.2 - BETA * (p[0] - Q[0, 0])
    expected = -h * (torch.tensor([1.0, 0.0]) - torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    close(twice[0], expected)


# --- top-K and binary ---------------------------------------------------------------------------------------------

WIDE_Q = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
WIDE_P = torch.tensor([[0.4, 0.4, 0.1, 0.1]], dtype=torch.float64).log()


def wide(objective: Any, token: int, head: Any = None) -> Any:
    return Table(WIDE_P, WIDE_Q, [[(0, v)] for v in range(4)], [1.0] * 4).loss(objective, token, head=head)


def test_divergences_of_four_tokens_and_their_gaps() -> None:
    full = wide(klpo("token", "full"), 0, head=range(4)).metrics["klpo/kl"]
    assert full == pytest.approx(0.05142956, abs=1e-8)
    q, p = WIDE_Q[0].exp(), WIDE_P[0].exp()
    binary = [wide(klpo("token", "binary"), v).metrics["klpo/kl"] for v in range(4)]
    assert binary[:2] == pytest.approx([0.02041100, 0.02160085], abs=1e-8)
    for v in range(4):
        others = [u for u in range(4) if u != v]
        a, b = q[others] / q[others].sum(), p[others] / p[others].sum()
        gap = (1 - q[v]) * (a * (a / b).log()).sum()
        assert full - binary[v] == pytest.approx(float(gap), abs=1e-12)
    for k in (1, 2, 3):
        topk = wide(klpo("token", "topk"), 0, head=range(k)).metrics["klpo/kl"]
        a, b = q[k:] / q[k:].sum(), p[k:] / p[k:].sum()
        assert full - topk == pytest.approx(float(q[k:].sum() * (a * (a / b).log()).sum()), abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_both_routes_of_top_k_have_the_same_direction(k: int) -> None:
    """The control of the token route is minus the gradient of the head's KL, tail included."""
    p = WIDE_P.clone().requires_grad_()
    logp = torch.log_softmax(p, 1)
    kl = topk_kl(logp[:, :k], WIDE_Q[:, :k], 1e-6)
    (through_kl,) = torch.autograd.grad(kl.sum(), p)
    loss = wide(klpo("token", "topk"), 0, head=range(k))
    table = Table(WIDE_P, WIDE_Q, [[(0, 0)]], [1.0])
    loss = table.loss(klpo("token", "topk"), 0, head=range(k))
    h = 1.0 - BETA * (WIDE_P[0, 0] - WIDE_Q[0, 0])
    own = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64) - WIDE_P.exp()
    close(table.gradient(loss.total), -h * (own + through_kl), 1e-12)


def test_a_floored_trainer_tail_has_no_derivative() -> None:
    logp = torch.tensor([[0.7, 0.3 - 1e-9]], dtype=torch.float64).log().requires_grad_()
    q = torch.tensor([[0.6, 0.3]], dtype=torch.float64).log()
    (grad,) = torch.autograd.grad(topk_kl(logp, q, 1e-6).sum(), logp)
    close(grad, -q.exp(), 1e-15)


def test_a_token_that_the_sampler_never_draws_costs_nothing() -> None:
    q = torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64).log()
    table = Table(torch.zeros(1, 3, dtype=torch.float64), q, [[(0, 0)]], [1.0])
    loss = table.loss(klpo("sequence", "full"), 0, head=range(3))
    expected = 0.25 * math.log(0.25 * 3) + 0.75 * math.log(0.75 * 3)
    assert loss.metrics["klpo/kl"] == pytest.approx(expected, abs=1e-12)
    assert bool(table.gradient(loss.total).isfinite().all())


def test_log1mexp_keeps_its_digits_on_both_sides() -> None:
    x = torch.tensor([-1e-12, -1e-3, -math.log(2), -1.0, -40.0, -700.0], dtype=torch.float64).requires_grad_()
    y = log1mexp(x)
    assert y.tolist()[:1] == pytest.approx([math.log(1e-12)], rel=1e-12)
    assert y.tolist()[1:5] == pytest.approx([math.log(-math.expm1(v)) for v in x.tolist()[1:5]], rel=1e-12)
    assert float(y[5]) == pytest.approx(-math.exp(-700), rel=1e-12)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.tolist() == pytest.approx([1 / math.expm1(-v) * -1 for v in x.tolist()], rel=1e-9)


def test_what_an_estimator_cannot_work_with_is_an_error() -> None:
    with pytest.raises(DataError, match="whole vocabulary"):
        wide(klpo("token", "full"), 0, head=range(3))
    one = torch.tensor([[0.0, -2.0]], dtype=torch.float64)
    batch = TokenBatch(mask=torch.ones(1, 2, dtype=torch.bool), logp_behavior=one, rewards=torch.ones(1, 2).double())
    with pytest.raises(DataError, match=r"logp_behavior of 1 policy tokens"):
        klpo("token", "binary")(batch, one - 1)
    with pytest.raises(DataError, match="sampled_logp_current is missing"):
        klpo("token", "mc")(batch, one - 1)
    with pytest.raises(DataError, match=r"sampled_logp_behavior is missing"):
        klpo("token", "mc")(batch.replace(sampled_logp_current=one[..., None]), one - 1)
    with pytest.raises(DataError, match="at least two samples"):
        klpo("sequence", "mc")(
            batch.replace(sampled_logp_behavior=one[..., None], sampled_logp_current=one[..., None]), one - 1
        )


# --- special cases ---------------------------------------------------------------------------------------------------


def bandit(seed: int, actions: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Sampler q and current logits of one decision, and an antisymmetric preference score s(y, y')."""
    g = torch.Generator().manual_seed(seed)
    q = torch.log_softmax(torch.randn(1, actions, generator=g, dtype=torch.float64), 1)
    logits = torch.randn(1, actions, generator=g, dtype=torch.float64)
    raw = torch.randn(actions, actions, generator=g, dtype=torch.float64)
    return q, logits, raw - raw.T


def population(objective: Any, logits: Tensor, q: Tensor, f: Tensor, **options: Any) -> tuple[Tensor, float]:
    """Expected gradient and expected klpo/objective over the sampler's actions, with rewards f."""
    actions = q.shape[1]
    table = Table(logits, q, [[(0, v)] for v in range(actions)], f.tolist())
    head = range(actions) if "top" in objective.needs else None
    losses = [table.loss(objective, v, head=head, **options) for v in range(actions)]
    chance = q[0].exp().tolist()
    total = sum(c * x.total for c, x in zip(chance, losses, strict=True))
    return table.gradient(total), sum(c * x.metrics["klpo/objective"] for c, x in zip(chance, losses, strict=True))


@pytest.mark.parametrize("route", ["token", "sequence"])
def test_rebel_is_a_pair_with_the_intercept_differenced_away(route: str) -> None:
    """REBEL (arXiv 2404.16767): E over pairs of ((1/eta)(l(y) - l(y')) - (R - R'))^2, eta = 1/beta, has 4 beta times
    KLPO's gradient; half of it, over beta^2, is the variance of R/beta - ell."""
    q, logits, s = bandit(0)
    f, chance = s[0], q[0].exp()
    leaf = logits.clone().requires_grad_()
    ell = (torch.log_softmax(leaf, 1) - q)[0]
    x = BETA * (ell[:, None] - ell) - (f[:, None] - f)
    rebel = (chance[:, None] * chance * x.square()).sum()
    grad, value = population(klpo(route, "full"), logits, q, f)
    close(grad, torch.autograd.grad(rebel, leaf)[0] / (4 * BETA), 1e-12)
    spread = f / BETA - ell.detach()
    variance = chance @ (spread - chance @ spread).square()
    assert float(rebel) / (2 * BETA**2) == pytest.approx(float(variance), abs=1e-12)
    assert value == pytest.approx(float(rebel) / (4 * BETA) + float(chance @ f) ** 2 / (2 * BETA), abs=1e-12)


def test_sppo_drops_the_divergence() -> None:
    """SPPO (arXiv 2405.00675): (l - eta (P(y beats q) - 1/2))^2 with eta = 1/beta, per sample; its KL is dropped, which
    is a control without gradient."""
    q, logits, s = bandit(1)
    wins = torch.sigmoid(s) @ q[0].exp()  # P(y beats y') + P(y' beats y) = 1
    assert float(wins @ q[0].exp()) == pytest.approx(0.5, abs=1e-12)
    for y in range(5):
        leaf = logits.clone().requires_grad_()
        ell = (torch.log_softmax(leaf, 1) - q)[0, y]
        sppo = BETA / 2 * (ell - (wins[y] - 0.5) / BETA).square()
        batch = TokenBatch(mask=torch.ones(1, 1, dtype=torch.bool), logp_behavior=q[:, y : y + 1],
                           sampled_logp_behavior=torch.zeros(1, 1, 1, dtype=torch.float64),
                           sampled_logp_current=torch.zeros(1, 1, 1, dtype=torch.float64))  # fmt: skip
        logp = torch.log_softmax(leaf, 1)[:, y : y + 1]
        loss = klpo("token", "mc")(batch, logp, None, wins[y : y + 1] - 0.5)
        close(torch.autograd.grad(loss.total, leaf)[0], torch.autograd.grad(sppo, leaf)[0], 1e-14)


@pytest.mark.parametrize("route", ["token", "sequence"])
def test_gpo_s_score_has_mean_zero_so_nothing_but_the_residual_s_variance_is_left(route: str) -> None:
    """GPO (arXiv 2410.02197): f(y) = E_q s(y, y') of an antisymmetric score, so the objective has no value term, and
    the minimum is the Gibbs policy q exp(f/beta)."""
    q, logits, s = bandit(2)
    chance = q[0].exp()
    f = s @ chance
    assert float(f @ chance) == pytest.approx(0, abs=1e-12)
    leaf = logits.clone().requires_grad_()
    ell = (torch.log_softmax(leaf, 1) - q)[0]
    gpo = BETA / 2 * (chance @ (f / BETA - ell + chance @ ell).square())
    grad, value = population(klpo(route, "full"), logits, q, f)
    assert value == pytest.approx(float(gpo), abs=1e-12)
    close(grad, torch.autograd.grad(gpo, leaf)[0], 1e-12)
    at_rest, nothing = population(klpo(route, "full"), q + f / BETA, q, f)
    close(at_rest, torch.zeros_like(at_rest), 1e-12)
    assert nothing == pytest.approx(0, abs=1e-20)


def test_bpo_is_the_trajectory_residual_with_the_binary_weight() -> None:
    """BPO (arXiv 2609.15987, e = 0): -omega (R - V) logp per token, omega = (1 - mu)/(1 - pi)."""
    table = Table(LOGITS)
    for row, path in enumerate(PATHS):
        nodes, tokens = torch.tensor(path).T
        p = torch.log_softmax(table.logits, 1)[nodes, tokens]
        omega = (1 - Q[nodes, tokens].exp()) / (1 - p.detach().exp())
        bpo = table.gradient(-((REWARDS[row] - VALUE) * omega * p).sum())
        a = torch.tensor([REWARDS[row] - VALUE], dtype=torch.float64)
        for route in ("token", "sequence"):
            loss = table.loss(klpo(route, "binary", beta=1e-15), row, advantages=a)
            close(table.gradient(loss.total), bpo, 1e-12)
