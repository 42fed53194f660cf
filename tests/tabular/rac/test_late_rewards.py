"""Late rewards: mass, slack, the bias that it leaves, and the queue."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.objectives.temporal import vtrace
from stretto.tabular.delay import Delays
from stretto.tabular.mdp import MDP, uniform_policy
from stretto.tabular.rac.late_reward_learning import LateRewardPPO, RetroactiveVTrace
from stretto.tabular.rac.late_rewards import (
    LateRewardMDP,
    LateRewards,
    advantage,
    advantage_bias,
    arrival_mass,
    clipped_mean,
    rac5,
    soft_policy_bias,
    total_mass,
    waiting_mass,
    waiting_time,
)

PHI = 0.99086


def test_masses() -> None:
    assert arrival_mass(0.3, PHI) == pytest.approx(0.979119, abs=5e-7)
    assert 1 / (1 - arrival_mass(0.3, PHI)) == pytest.approx(47.89, abs=5e-3)
    assert arrival_mass(1e-17) == 1
    assert waiting_mass(0.3, 0) == pytest.approx(0.3, abs=1e-15)
    assert waiting_mass(0.3, 4) == pytest.approx(0.83193, abs=1e-12)
    for last in (0, 1, 7):
        d = np.arange(last + 1)
        assert arrival_mass(0.3, PHI, last) == pytest.approx((0.3 * 0.7**d * PHI**d).sum(), abs=1e-14)
    assert arrival_mass(0.3, PHI, 2000) == pytest.approx(arrival_mass(0.3, PHI), abs=1e-14)


def test_the_expected_wait_against_enumeration() -> None:
    chance = 0.3 * 0.7 ** np.arange(200)
    for wait, channels in ((0, 1), (3, 1), (5, 2)):
        longest = np.maximum.outer(np.arange(200), np.arange(200)) if channels == 2 else np.arange(200)
        joint = np.outer(chance, chance) if channels == 2 else chance
        assert waiting_time(0.3, wait, channels) == pytest.approx(1 + (joint * np.minimum(longest, wait)).sum())


@settings(max_examples=80)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.floats(0, 1), st.data())
def test_the_mass_of_a_sub_stochastic_kernel_is_a_share(
    chance: list[float], total: float, decay: float, data: st.DataObject
) -> None:
    p = np.array(chance)
    p = p / p.sum() * total if p.sum() > 0 else p
    weight = np.array(data.draw(st.lists(st.floats(0, 1), min_size=len(p), max_size=len(p))))
    assert 0 <= total_mass(p, weight) <= 1
    assert 0 <= arrival_mass(0.01 + 0.99 * total, decay, len(p)) <= 1 + 1e-15


def test_published_biases() -> None:
    for channels, published in ((1, 0.794150), (2, 1.802140), (4, 1.716636)):
        world = rac5(channels)
        policy = uniform_policy(world.mdp)
        assert np.abs(advantage_bias(world, policy, 0.0)).max() == pytest.approx(published, abs=5e-7)
        for r in (0.3, 0.979):
            bias = np.abs(advantage_bias(world, policy, r)).max()
            assert bias == pytest.approx((1 - r) * published, abs=1e-6)
    for r, published in ((0.0, 1.743851), (0.5, 0.408129), (0.9, 0.094227), (0.979, 0.020209)):
        assert soft_policy_bias(rac5(2), r) == pytest.approx(published, abs=5e-7)


def test_the_bias_is_what_the_learner_lacks_linear_in_the_slack_and_channels_add() -> None:
    world = rac5(3)
    policy = np.random.default_rng(2).dirichlet(np.ones(3), 5)
    true = advantage(world.with_mass(1.0), policy)
    mass = np.array([0.2, 0.9, 0.55])
    assert advantage_bias(world, policy, mass) == pytest.approx(
        advantage(world.with_mass(mass), policy) - true, abs=1e-12
    )
    alone = [advantage_bias(LateRewardMDP(world.mdp, world.channels[c : c + 1]), policy, mass[c]) for c in range(3)]
    assert advantage_bias(world, policy, mass) == pytest.approx(sum(alone), abs=1e-12)
    slack = np.linspace(0, 1, 9)
    bias = np.array([np.abs(advantage_bias(world, policy, 1 - s)).max() for s in slack])
    dropped = np.abs(advantage(MDP(world.mdp.transitions, world.channels.sum(0), world.mdp.gamma), policy)).max()
    assert bias == pytest.approx(slack * dropped, abs=1e-12)
    assert (advantage_bias(world, policy, 1.0) == 0).all()


def test_a_perfect_placeholder_needs_no_correction() -> None:
    world = rac5(2)
    policy = uniform_policy(world.mdp)
    assert (advantage_bias(world, policy, [0.1, 0.4], world.channels) == 0).all()
    constant = np.array([0.5, -2.0])[:, None, None]  # a constant has no advantage: it can't help or harm
    assert advantage_bias(world, policy, 0.4, constant) == pytest.approx(advantage_bias(world, policy, 0.4), abs=1e-12)


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=15),
    st.lists(st.floats(0, 0.3), min_size=1, max_size=3),
    st.floats(0, 1),
    st.none() | st.integers(0, 6),
)
def test_pushed_mass_is_injected_dropped_or_pending(
    delays: list[list[int]], spread: list[float], decay: float, last: int | None
) -> None:
    queue: LateRewards[int] = LateRewards(spread, decay, last)
    given_out = 0.0
    for t in range(len(delays) + 14):
        for i, delay in enumerate(delays[t] if t < len(delays) else []):
            queue.push(t, i, delay)
        given_out += sum(weight for _, weight in queue.due(t))
        assert queue.injected == pytest.approx(given_out, abs=1e-12)
        assert queue.pushed == pytest.approx(queue.injected + queue.dropped + queue.pending, abs=1e-9)
    assert queue.pending == pytest.approx(0, abs=1e-9)
    expected = [decay**d * sum(spread) for step in delays for d in step if last is None or d <= last]
    assert queue.injected == pytest.approx(sum(expected), abs=1e-9)


def test_arrivals_of_one_step_commute() -> None:
    totals = []
    for order in ((0, 1, 2), (2, 1, 0)):
        queue: LateRewards[int] = LateRewards((0.5, 0.5), 0.9)
        for t, delay in ((0, 3), (1, 2), (2, 1)):  # all ready at 3
            for i in order:
                queue.push(t, i, delay)
        given_out = np.zeros((6, 3))
        for t in range(6):
            for i, weight in queue.due(t):
                given_out[t, i] += weight
        totals.append(given_out)
    assert totals[0] == pytest.approx(totals[1], abs=1e-15)
    assert totals[0][[3, 4]] == pytest.approx(0.5 * (0.9**3 + 0.9**2 + 0.9))
    assert totals[0].sum() == pytest.approx(3 * (0.9**3 + 0.9**2 + 0.9))


def _trained(residuals: torch.Tensor, delays: torch.Tensor) -> dict[int, list[torch.Tensor]]:
    """What a trainer adds up for each batch over 12 steps, ``residuals`` [C,B,T] with ``delays`` [C,B] at step 0."""
    learner = RetroactiveVTrace(0.9, 0.95, 1.2, 1.0, spread=(0.5, 0.3), decay=0.9)
    total: dict[int, list[torch.Tensor]] = {}
    for t in range(12):
        batch, w, _ = rows(t)
        late = residuals if t == 0 else torch.zeros_like(residuals)
        for at, *parts in learner.step(t, batch, w, late, delays):
            for i, part in enumerate(parts):
                total.setdefault(at, [torch.zeros_like(part) for _ in range(2)])[i] += part
    return total


def test_in_the_trainer_channels_add_their_order_is_free_and_a_perfect_placeholder_does_nothing() -> None:
    _, _, residuals = rows(0)
    delays = torch.tensor([[3, 0, 5], [5, 3, 3]])
    nothing = torch.zeros_like(residuals)
    both, swapped = _trained(residuals, delays), _trained(residuals.flip(0), delays.flip(0))
    one, other = (_trained(residuals * keep[:, None, None], delays) for keep in torch.eye(2, dtype=torch.float64))
    none = _trained(nothing, delays)
    for at in both:
        for i in range(2):
            torch.testing.assert_close(both[at][i], swapped[at][i], rtol=0, atol=1e-13)
            torch.testing.assert_close(both[at][i], one[at][i] + other[at][i] - none[at][i], rtol=0, atol=1e-13)
    batch, w, _ = rows(0)
    for mine, theirs in zip(none[0], vtrace(batch, w, 1.2, 1.0, 0.9, 0.95), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-14)
    assert not torch.allclose(both[0][0], none[0][0])


def test_a_simulated_queue_has_the_mass_of_the_formula() -> None:
    n = 20_000
    for last in (None, 6):
        queue: LateRewards[int] = LateRewards(decay=PHI, last=last)
        delays = Delays("geometric", 1 / 0.3 - 1, 3)
        for t, delay in enumerate(delays.first(n)):
            queue.push(t, t, int(delay))
            queue.due(t)
        queue.due(n + 1000)
        mass, square = arrival_mass(0.3, PHI, last), arrival_mass(0.3, PHI**2, last)
        assert abs(queue.injected / n - mass) < 4 * math.sqrt((square - mass**2) / n)


def rows(seed: int) -> tuple[TokenBatch, torch.Tensor, torch.Tensor]:
    """Batch of fast rewards, ratios, and residuals of two channels."""
    g = torch.Generator().manual_seed(seed)
    shape = (3, 5)
    draw = lambda *s: torch.randn(*s, generator=g, dtype=torch.float64)  # noqa: E731
    mask = torch.arange(5)[None] < torch.tensor([[5], [3], [4]])
    batch = TokenBatch(
        mask=mask,
        rewards=draw(*shape) * mask,
        values=draw(*shape),
        bootstrap=draw(3),
        truncated=torch.tensor([True, False, True]),
    )
    return batch, draw(*shape).exp(), draw(2, *shape) * mask


def test_without_delay_it_is_v_trace_bit_for_bit() -> None:
    learner = RetroactiveVTrace(0.9, 0.95, 1.2, 1.0)
    for t in range(4):
        batch, w, residual = rows(t)
        out = learner.step(t, batch, w, residual, torch.zeros(2, 3, dtype=torch.int64))
        assert [at for at, *_ in out] == [t]
        whole = batch.replace(rewards=batch.rewards + (residual[0] + residual[1]))
        for mine, theirs in zip(out[0][1:], vtrace(whole, w, 1.2, 1.0, 0.9, 0.95), strict=True):
            assert torch.equal(mine, theirs)


def test_whenever_it_comes_the_total_is_that_of_v_trace() -> None:
    learner = RetroactiveVTrace(0.9, 0.95, 1.2, 1.0, spread=(0.5, 0.3, 0.2))
    delays = Delays("geometric", 2.0, 5)
    total: dict[int, list[torch.Tensor]] = {}
    late = 0
    for t in range(60):
        batch, w, residual = rows(t) if t < 20 else (rows(0)[0], rows(0)[1], torch.zeros(2, 3, 5, dtype=torch.float64))
        waits = torch.from_numpy(delays.sample(t, 6).reshape(2, 3))
        for at, *parts in learner.step(t, batch, w, residual, waits):
            late += at < t
            for i, part in enumerate(parts):
                total.setdefault(at, [torch.zeros(3, 5, dtype=torch.float64) for _ in range(2)])[i] += part
    assert late > 40
    for t in range(20):
        batch, w, residual = rows(t)
        whole = batch.replace(rewards=batch.rewards + residual.sum(0))
        for mine, theirs in zip(total[t], vtrace(whole, w, 1.2, 1.0, 0.9, 0.95), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_the_objectives_say_the_same_without_delay() -> None:
    """The gradient of ``rac`` on rows whose slow reward is there is that of ``vtrace`` on the whole reward."""
    g = torch.Generator().manual_seed(0)
    n = 6
    fast, slow = torch.randn(2, n, generator=g, dtype=torch.float64)
    start = torch.full((n, 1), -1.0, dtype=torch.float64)
    behavior = start - 0.3 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.ones(n, 1, dtype=torch.bool),
        logp_behavior=behavior,
        reward_fast=torch.zeros(n, dtype=torch.float64),
        reward_slow=slow,
        trained_at=torch.full((n,), -1),
        version=7,
        rewards=(fast + slow)[:, None],
        values=torch.zeros(n, 1, dtype=torch.float64),
    )
    gradients = []
    for objective, advantages in (
        (get("rac", is_clip=0.2, slow_mode="add"), fast[:, None]),
        (get("vtrace", rho_bar=1.2), vtrace(batch, (start - behavior).exp(), 1.2, 1.0, 1.0, 1.0)[1]),
    ):
        logp = start.clone().requires_grad_()
        objective(batch, logp, advantages=advantages).policy.backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-15)


def test_the_clipped_ratio_is_only_unbiased_where_nothing_is_clipped() -> None:
    g = np.random.default_rng(0)
    for rho_bar, low, high in ((1.0, 0.7, 0.85), (2.0, 0.8, 0.99), (5.0, 0.97, 1.0)):
        mean = np.mean([clipped_mean(*g.dirichlet(np.full(3, 3.0), (2, 5)), rho_bar) for _ in range(200)])
        assert low < mean < high
    mu, pi = g.dirichlet(np.full(3, 3.0), (2, 5))
    assert clipped_mean(mu, pi, 1e9) == pytest.approx(1)
    assert clipped_mean(mu, mu, 1.0) == pytest.approx(1)


def test_correction_learns_what_dropping_cannot() -> None:
    world = rac5(2)
    for seed in range(3):
        drop, rac, full = (LateRewardPPO(arm).train(world, 200, seed) for arm in ("drop", "rac", "full"))  # type: ignore[arg-type]
        assert drop[0] < 13 < 17.5 < rac[0]
        assert abs(rac[0] - full[0]) < 1
        assert rac[1] == full[1] == 200
    assert LateRewardPPO("wait", 10).train(world, 200, 0)[1] < 50


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    world = rac5(2)
    policy = uniform_policy(world.mdp)
    for call, words in (
        (lambda: rac5(-1), "rac5: channels"),
        (lambda: LateRewardMDP(world.mdp, np.zeros((2, 5, 2))), "LateRewardMDP: channels"),
        (lambda: arrival_mass(0.0), "arrival_mass: q"),
        (lambda: arrival_mass(0.3, 1.1), "arrival_mass: decay"),
        (lambda: arrival_mass(0.3, 1.0, -1), "arrival_mass: last"),
        (lambda: waiting_time(0.3, -1), "waiting_time: wait"),
        (lambda: total_mass([0.9, 0.2], [1.0, 1.0]), "total_mass: sum of chance"),
        (lambda: total_mass([0.9], [1.2]), "total_mass: largest of weight"),
        (lambda: advantage_bias(world, policy * 2, 0.5), "policy"),
        (lambda: advantage_bias(world, policy, [math.nan, 0]), "advantage_bias: mass"),
        (lambda: advantage_bias(world, policy, [0.1, 0.2, 0.3]), "advantage_bias: mass"),
        (lambda: advantage_bias(world, policy, 1.5), "advantage_bias: largest of mass"),
        (lambda: advantage_bias(world, policy, 0.5, np.zeros((3, 5, 3))), "advantage_bias: placeholders"),
        (lambda: world.with_mass(-1), "LateRewardMDP.with_mass: smallest of mass"),
        (lambda: soft_policy_bias(world, 0.5, 0.0), "temp"),
        (lambda: clipped_mean(policy * 2, policy, 1.0), "clipped_mean: behaviour"),
        (lambda: RetroactiveVTrace(1.5), "RetroactiveVTrace: gamma"),
        (lambda: LateRewardPPO("rac", decay=2.0), "LateRewardPPO: decay"),
        (lambda: LateRewardPPO("rac").train(world, 5.0, -1), "LateRewardPPO.train: seed"),
        (lambda: clipped_mean(policy, policy, 0.0), "clipped_mean: rho_bar"),
        (lambda: clipped_mean(policy, policy[:2], 1.0), "clipped_mean: policy"),
        (lambda: LateRewards((0.9, 0.2)), "LateRewards: sum of spread"),
        (lambda: LateRewards(decay=2.0), "LateRewards: decay"),
        (lambda: LateRewards().push(0, 0, -1), "LateRewards.push: delay"),
        (lambda: LateRewardPPO("late"), "LateRewardPPO: arm"),  # type: ignore[arg-type]
        (lambda: LateRewardPPO("rac", q=0.0), "LateRewardPPO: q"),
        (lambda: LateRewardPPO("rac", wait=5), "LateRewardPPO: wait = 5 has no effect"),
        (lambda: LateRewardPPO("rac").train(world, 0.0, 0), "LateRewardPPO.train: time"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
