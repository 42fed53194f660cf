"""The world is exact, the lag is exact, and all objectives of a seed see the same contexts and noise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.tabular.delay import Delays
from stretto.tabular.lagged.learning import Plan, source, train
from stretto.tabular.lagged.world import Sampler, World

SMALL = World(contexts=3, vocab=3, depth=3, features=4, seed=1)


def policy(world: World, seed: int) -> np.ndarray:
    return world.policy(np.random.default_rng(seed).standard_normal((world.vocab, world.features)))


def paths(world: World) -> list[tuple[tuple[int, ...], list[int], int]]:
    """(tokens, states, leaf), by walking."""
    out = []
    for tokens in itertools.product(range(world.vocab), repeat=world.depth):
        states, at = [], 0
        for token in tokens:
            states.append(at)
            at = at * world.vocab + 1 + token
        out.append((tokens, states, at - world.states))
    return out


def test_return_and_divergence_equal_sums_over_all_sequences() -> None:
    p, q = policy(SMALL, 0), policy(SMALL, 1)
    j = kl = 0.0
    for c, (tokens, states, leaf) in itertools.product(range(SMALL.contexts), paths(SMALL)):
        lp, lq = p[c, states, tokens].sum(), q[c, states, tokens].sum()
        j += np.exp(lp) * SMALL.reward[c, leaf] / SMALL.contexts
        kl += np.exp(lq) * (lq - lp) / SMALL.contexts
    assert SMALL.values(p)[:, 0].mean() == pytest.approx(j, abs=1e-12)
    assert SMALL.divergence(q, p) == pytest.approx(kl, abs=1e-12)
    assert SMALL.divergence(p, p) == 0


def test_the_uniform_policy_has_the_return_of_chance() -> None:
    for world in (SMALL, World(success=0.1, depth=4), World(late=0.4)):
        uniform = world.policy(np.zeros((world.vocab, world.features)))
        assert world.values(uniform)[:, 0].mean() == pytest.approx(world.chance, abs=1e-12)
        assert world.chance < world.best
    assert World(late=0.4).chance == pytest.approx(0, abs=1e-12)


def test_success_marks_the_asked_share_of_leaves() -> None:
    world = World(depth=4, success=0.1)
    assert set(np.unique(world.reward)) == {0.0, 1.0}
    assert world.reward.mean(1) == pytest.approx(np.full(world.contexts, 0.1), abs=0.01)


def test_the_late_part_has_its_share_of_the_variance() -> None:
    world = World(contexts=400, late=0.25)
    assert world.slow.var() / world.reward.var() == pytest.approx(0.25, abs=0.03)
    assert not World().slow.any()


def test_the_world_is_not_realisable() -> None:
    world = World()
    logits = world.phi.reshape(-1, world.features)
    assert np.linalg.matrix_rank(logits) == world.features < len(logits) / 10


def test_engine_noise_is_a_distribution_of_its_own_for_each_version() -> None:
    world = World(engine_noise=0.02)
    p = policy(world, 0)
    first, second = world.engine(p, 3, seed=0), world.engine(p, 4, seed=0)
    assert np.exp(first).sum(-1) == pytest.approx(np.ones(first.shape[:2]), abs=1e-12)
    assert 0 < np.abs(np.exp(first) - np.exp(p)).mean() < 0.04
    assert not np.array_equal(first, second)
    assert np.array_equal(world.engine(p, 3, seed=0), first)
    assert World().engine(p, 3, seed=0) is p


def test_sampled_frequencies_are_the_behaviour_policys() -> None:
    world = World(contexts=1, vocab=3, depth=2, features=4)
    p = policy(world, 2)
    rows = Sampler(world, 1, 60_000, 0).sample(0, 0, p, p)
    expected = [np.exp(p[0, states, tokens].sum()) for tokens, states, _ in paths(world)]
    assert np.bincount(rows.leaf, minlength=9) / 60_000 == pytest.approx(expected, abs=0.01)
    assert rows.of_token(rows.behaviour).sum(1) == pytest.approx(np.log(np.take(expected, rows.leaf)))


def test_contexts_and_noise_do_not_depend_on_the_policy() -> None:
    world = World()
    sampler = Sampler(world, 8, 4, seed=3)
    p = policy(world, 0)
    one, other = sampler.sample(5, 0, p, p), sampler.sample(5, 2, p, p)
    assert np.array_equal(one.token, other.token)
    assert np.array_equal(sampler.sample(5, 0, policy(world, 1), p).context, one.context)
    assert not np.array_equal(sampler.sample(6, 0, p, p).token, one.token)
    assert len(set(one.context[::4])) == 8  # without replacement


def test_source_is_the_exact_lag() -> None:
    assert [source(k, 3) for k in range(7)] == [0, 0, 0, 0, 1, 2, 3]
    assert [source(k, 3, "window") for k in range(7)] == [0, 0, 0, 3, 3, 3, 6]
    assert [source(k, 0, "window") for k in range(3)] == [source(k, 0) for k in range(3)] == [0, 1, 2]


class Spy:
    """An objective that keeps what it was given."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.needs = inner, inner.needs | {"old"}
        self.seen: list[tuple[Any, torch.Tensor]] = []

    def __call__(self, batch: TokenBatch, logp: torch.Tensor, **others: Any) -> Any:
        self.seen.append((batch, logp.detach().clone()))
        return self.inner(batch, logp, **others)


@pytest.mark.parametrize("refresh", ["constant", "window"])
def test_each_batch_carries_the_log_probabilities_of_its_own_version(refresh: Any) -> None:
    spy, lag = Spy(get("tis")), 3
    train(SMALL, spy, lag=lag, refresh=refresh, steps=9, prompts=3, group=4, lr=0.2)
    own = [logp for _, logp in spy.seen]
    for step, (batch, logp) in enumerate(spy.seen):
        version = source(step, lag, refresh)
        assert batch.version == step
        assert batch.versions.unique().tolist() == [version]
        assert torch.equal(batch.logp_behavior, batch.logp_old)
        assert torch.allclose(batch.logp_proximal, logp, rtol=0, atol=1e-12)
        if version == step:
            assert torch.allclose(batch.logp_behavior, logp, rtol=0, atol=1e-12)
        else:
            assert not torch.allclose(batch.logp_behavior, logp, rtol=0, atol=1e-6)
    assert torch.allclose(own[0], torch.full_like(own[0], -np.log(3)), rtol=0, atol=1e-12)  # starts uniform


def test_runs_repeat_and_on_policy_learning_approaches_the_best_reachable() -> None:
    curve = train(SMALL, get("reinforce"), steps=80, lr=0.2)
    again = train(SMALL, get("reinforce"), steps=80, lr=0.2)
    assert np.array_equal(curve.j, again.j)
    assert curve.j[0] == pytest.approx(0, abs=1e-12)
    assert curve.final > 0.4 * SMALL.best
    assert np.allclose(curve.kl, 0)
    assert 0 < curve.area < curve.final


def test_without_lag_ratio_methods_are_the_plain_policy_gradient() -> None:
    """One update a batch and no engine noise: all ratios are 1."""
    plain = train(SMALL, get("reinforce", std=True), steps=20)
    for name in ("tis", "decoupled-ppo", "grpo", "gmc-grpo", "sat"):
        assert np.allclose(train(SMALL, get(name), steps=20).j, plain.j, atol=1e-9), name


def test_lag_drifts_from_the_behaviour_policy_and_clips_move_fewer_tokens() -> None:
    plain = train(SMALL, get("reinforce", std=True), lag=16, refresh="window", steps=48)
    clipped = train(SMALL, get("grpo"), lag=16, refresh="window", steps=48)
    assert plain.kl[::16] == pytest.approx([0, 0, 0], abs=1e-12)
    assert (plain.kl[15::16] > 0.05).all()
    assert clipped.kl.mean() < plain.kl.mean()
    assert clipped.moved[8:16].mean() < plain.moved[8:16].mean()


@pytest.mark.parametrize("critic", ["exact", "learned", "running-mean"])
def test_critics_approach_the_value_of_the_policy(critic: Any) -> None:
    spy = Spy(get("ppo", gae_lambda=1.0))
    curve = train(SMALL, spy, critic=critic, steps=120, lr=0.02, critic_lr=0.1)
    assert curve.final > 0.1
    returns = torch.cat([batch.rewards.sum(1) for batch, _ in spy.seen[-20:]])
    values = torch.cat([batch.values[:, 0] for batch, _ in spy.seen[-20:]])
    assert (returns - values).square().mean() < returns.square().mean()
    assert (returns - values).mean().abs() < 0.15
    last = spy.seen[-1][0].values
    assert torch.equal(last[:, 0], last[:, -1]) == (critic == "running-mean")


def test_late_rewards_come_back_once_as_rows_of_their_own() -> None:
    world = World(contexts=3, vocab=3, depth=2, features=4, late=0.5)
    spy = Spy(get("rac", std=False))
    spy.lifetime = 50  # type: ignore[attr-defined]
    train(world, spy, steps=6, prompts=2, group=2, delays=Delays("constant", 2))
    for step, (batch, _) in enumerate(spy.seen):
        back = batch.trained_at >= 0
        assert int(back.sum()) == (4 if step >= 2 else 0)
        assert batch.trained_at[back].unique().tolist() == ([step - 2] if step >= 2 else [])
        assert batch.reward_slow.isnan().equal(~back)
        if step >= 2:
            first = spy.seen[step - 2][0]
            fresh = first.trained_at < 0
            assert batch.tokens[back].equal(first.tokens[fresh])
            assert batch.logp_behavior[back].equal(first.logp_behavior[fresh])
            assert batch.reward_fast[back].equal(first.reward_fast[fresh])
    fast = train(world, get("rac", std=False), steps=40, lr=0.05, reward="fast")
    corrected = train(world, get("rac", std=False), steps=40, lr=0.05, delays=Delays("constant", 2))
    assert corrected.final > fast.final


def test_a_run_whose_weights_are_no_numbers_any_more_ends_as_the_uniform_policy() -> None:
    curve = train(World(success=0.1), get("reinforce"), steps=30, lr=float("inf"), optimizer="sgd")
    assert curve.diverged == 0
    assert curve.j[1:] == pytest.approx(np.full(30, World(success=0.1).chance))
    assert np.isnan(curve.kl[1:]).all()


def test_a_run_whose_policy_the_objective_refuses_ends_as_the_uniform_policy() -> None:
    class Refuses:
        """Refuses its third batch."""

        needs: frozenset[str] = frozenset()

        def __init__(self, good: int) -> None:
            self.plain, self.left = get("reinforce"), good

        def __call__(self, *args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise DataError("a probability that rounds to 1")
            return self.plain(*args, **more)

    world = World(seed=0)
    curve = train(world, Refuses(2), Plan(steps=6, lag=0))
    assert curve.diverged == 2
    assert (curve.j[3:] == world.chance).all()
    with pytest.raises(DataError, match="rounds to 1"):  # what is wrong from the beginning is an error
        train(world, Refuses(0), Plan(steps=6, lag=0))


def test_klpo_gets_the_whole_vocabulary() -> None:
    assert train(SMALL, get("klpo", estimator="full"), steps=40, lr=0.05).final > 0.1


def test_settings_that_make_no_sense_are_refused() -> None:
    plans: list[dict[str, Any]] = [{"lag": -1}, {"steps": 0}, {"optimizer": "lion"}, {"refresh": "never"}]
    for plan in plans:
        with pytest.raises(ConfigError):
            Plan(**plan)
    worlds: list[dict[str, Any]] = [{"depth": 0}, {"vocab": 1}, {"late": 1.0}, {"success": 0.0}]
    for world in [*worlds, {"success": 0.1, "late": 0.5}]:
        with pytest.raises(ConfigError):
            World(**world)
    needy: list[tuple[str, dict[str, Any]]] = [("ppo", {}), ("klpo", {}), ("grpo", {"delays": Delays("constant", 2)})]
    for name, changes in needy:
        with pytest.raises(ConfigError):
            train(SMALL, get(name), **changes)
