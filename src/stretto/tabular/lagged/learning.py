"""Learning at an exact lag in the small world of ``stale_world``: the one loop of the tabular learning experiments.

Step k (0, 1, ...) turns version k into k + 1 and trains on rows that version ``source(k, lag, refresh)`` sampled. The
objective is a real one of ``stretto.objectives``; contexts and sampling noise are the same for all objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from stretto.data.arrays import Array, Floats, Ints
from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives.interface import AwaitsRewards, LossWithNeeds, ReadsTop
from stretto.tabular.delay import DelayLine, Delays
from stretto.tabular.lagged.world import Rows, Sampler, World

Refresh = Literal["constant", "window"]
Critic = Literal["exact", "learned", "running-mean"]
_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to learn. ``lag`` and ``refresh``: see ``source``. ``prompts`` x ``group`` sequences a step, ``epochs``
    updates on each batch, weights start at 0 (the uniform policy).

    ``critic``, for objectives that need values: ``exact``, of the current policy by enumeration; ``learned``, one
    number per state, moved by the objective's critic loss (each visit by ``critic_lr`` of the way to the mean target);
    ``running-mean`` of the rewards that the context had so far (each moves it by 1/8).

    ``reward``: ``all``, or ``fast``: the late part is never used. ``delays``: rows train on the fast part, and come
    back, for objectives with late rewards, when the late part arrives (RAC, arXiv 2606.27580).

    Raises ``ConfigError`` on what makes no sense.
    """

    lag: int = 0
    refresh: Refresh = "constant"
    steps: int = 300
    prompts: int = 8
    group: int = 8
    lr: float = 0.5
    optimizer: Literal["sgd", "adam"] = "adam"
    epochs: int = 1
    critic: Critic | None = None
    critic_lr: float = 0.1
    reward: Literal["all", "fast"] = "all"
    delays: Delays | None = None

    def __post_init__(self) -> None:
        if self.lag < 0 or min(self.steps, self.prompts, self.group, self.epochs) < 1:
            raise ConfigError("Plan: lag >= 0, and at least one step, prompt, row of a group and epoch")
        if self.optimizer not in _OPTIMIZERS or self.refresh not in ("constant", "window"):
            raise ConfigError(f"Plan: no optimizer {self.optimizer!r} or refresh {self.refresh!r}")


class PlanChanges(TypedDict, total=False):
    """Fields of a ``Plan`` that differ from another's."""

    lag: int
    refresh: Refresh
    steps: int
    prompts: int
    group: int
    lr: float
    optimizer: Literal["sgd", "adam"]
    epochs: int
    critic: Critic | None
    critic_lr: float
    reward: Literal["all", "fast"]
    delays: Delays | None


@dataclass(frozen=True)
class Curve:
    """What a run did. ``j`` [steps + 1]: exact J of each version; ``kl`` [steps]: KL(behaviour || current) of whole
    sequences in nats at the start of the step; ``moved`` [steps]: share of the policy tokens through whose
    log-probability the loss has a gradient (the rest is masked, clipped, or has no advantage). ``diverged``: the
    step after which the weights weren't finite, or in which the objective refused the policy, None if neither came;
    from there on J is the uniform policy's, and kl and moved are NaN. ``weights`` [vocabulary, features]: the last
    ones."""

    j: Floats
    kl: Floats
    moved: Floats
    diverged: int | None = None
    weights: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def final(self) -> float:
        """Mean exact return J over the last tenth of the run's versions."""
        return float(self.j[-max(len(self.j) // 10, 1) :].mean())

    @property
    def area(self) -> float:
        """Mean exact return J over all versions of the run: high for what learns early."""
        return float(self.j.mean())


def source(step: int, lag: int, refresh: Refresh = "constant") -> int:
    """Version that samples what ``step`` trains on: max(0, step - lag) under a ``constant`` lag; under ``window``
    the last multiple of ``lag`` (the sampler is refreshed every ``lag`` steps). Lag 0 is on-policy."""
    if refresh == "constant":
        return max(0, step - lag)
    return step // lag * lag if lag else step


def train(
    world: World,
    objective: LossWithNeeds,
    plan: Plan | None = None,
    *,
    seed: int = 0,
    start: Tensor | None = None,
    first_step: int = 0,
    **changes: Unpack[PlanChanges],
) -> Curve:
    """Learn in ``world`` with ``objective`` by ``plan`` (default: ``Plan()``), with ``changes`` of its fields.

    ``start`` and ``first_step``: go on from these weights as the run of this seed does from that step, with a fresh
    optimizer; the sampler holds ``start`` until it is refreshed.
    """
    plan = replace(plan or Plan(), **changes)
    loop = _Loop(world, objective, plan, seed)
    if start is not None:
        loop.weights.data.copy_(start)
    kept: dict[int, tuple[Floats, Floats]] = {}  # version -> the engine's and the trainer's log-probabilities
    j, kl, moved = np.full(plan.steps + 1, world.chance), np.full(plan.steps, np.nan), np.full(plan.steps, np.nan)
    for index in range(plan.steps):
        step = first_step + index
        now = loop.policy()
        kept[step] = (world.engine(now, step, seed), now)
        version = max(source(step, plan.lag, plan.refresh), first_step)
        for old in [v for v in kept if v < version]:
            del kept[old]
        j[index], kl[index] = loop.score(now), world.divergence(kept[version][0], now)
        try:
            moved[index] = loop.step(step, version, *kept[version], now)
        except DataError:  # the policy has become so sharp that the objective refuses its probabilities
            if not index:
                raise
            return Curve(j, kl, moved, index, loop.weights.detach())
        if not torch.isfinite(loop.weights).all():
            return Curve(j, kl, moved, index, loop.weights.detach())
    j[plan.steps] = loop.score(loop.policy())
    return Curve(j, kl, moved, None, loop.weights.detach().clone())


class _Loop:
    """Weights, critic and late rewards; turns rows into batches, and batches into updates."""

    def __init__(self, world: World, objective: LossWithNeeds, plan: Plan, seed: int) -> None:
        self.world, self.objective, self.plan = world, objective, plan
        self.sampler = Sampler(world, plan.prompts, plan.group, seed)
        self.reward = world.fast if plan.reward == "fast" or plan.delays else world.reward
        self.phi = torch.from_numpy(world.phi)
        self.weights = torch.zeros(world.vocab, world.features, dtype=torch.float64, requires_grad=True)
        self.optimizer = _OPTIMIZERS[plan.optimizer]([self.weights], lr=plan.lr)
        shape = (world.contexts, world.states)
        self.learned = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        self.values = np.zeros(shape)  # of the critics that aren't learned by gradient
        lifetime = objective.lifetime if isinstance(objective, AwaitsRewards) else None
        self.line: DelayLine[Rows] = DelayLine(lifetime=lifetime)
        self.needs = objective.needs
        head = "top" in self.needs and not (isinstance(objective, ReadsTop) and objective.top is None)
        if head or "sampled" in self.needs or (plan.delays and "late" not in self.needs):
            raise ConfigError("train: samples beside a token, top-K, and delays without late rewards aren't offered")
        if "values" in self.needs and plan.critic is None:
            raise ConfigError("train: the objective needs values: set critic")

    def policy(self) -> Floats:
        """[C,S,V]."""
        return self.world.policy(self.weights.detach().numpy())

    def score(self, logp: Floats) -> float:
        """J of the policy; keeps V for the exact critic."""
        values = self.world.values(logp)
        if self.plan.critic == "exact":
            self.values = values if self.reward is self.world.reward else self.world.values(logp, self.reward)
        return float(values[:, 0].mean())

    def step(self, step: int, version: int, behaviour: Floats, old: Floats, now: Floats) -> float:
        """One batch; the share of its tokens that moved the weights."""
        rows = self.sampler.sample(step, version, behaviour, old)
        fresh = len(rows.context)
        trained_at = np.full(fresh, -1)
        if self.plan.delays:
            back = self.line.due(step)
            trained_at = np.concatenate([trained_at, *(np.full(len(r.context), int(put)) for r, put in back)])
            delays = self.plan.delays.sample(step, fresh)
            for delay in np.unique(delays):  # a reward is never earlier than the next step
                self.line.push(step, rows.take(np.flatnonzero(delays == delay)), max(int(delay), 1))
            rows = Rows.join([rows, *(r for r, _ in back)])
        batch = self.batch(rows, step, now, trained_at)
        moved = float(np.mean([self.update(batch, rows) for _ in range(self.plan.epochs)]))
        if self.plan.critic == "running-mean":
            for context, reward in zip(rows.context[:fresh], self.reward[rows.context, rows.leaf][:fresh], strict=True):
                self.values[context] += (reward - self.values[context, 0]) / 8
        return moved

    def batch(self, rows: Rows, step: int, now: Floats, trained_at: Ints) -> TokenBatch:
        """The rows as an objective sees them."""
        here = (rows.context[:, None], rows.state)
        reward = self.reward[rows.context, rows.leaf]
        rewards = np.zeros(rows.token.shape)
        rewards[:, -1] = reward
        extra: dict[str, Array] = {}
        if "values" in self.needs:
            extra["values"] = (
                self.learned.detach().numpy()[here] if self.plan.critic == "learned" else self.values[here]
            )
        if "late" in self.needs:
            slow = np.where(trained_at < 0, np.nan, self.world.reward[rows.context, rows.leaf])
            extra |= {"reward_fast": reward, "reward_slow": slow, "trained_at": trained_at}
        if "top" in self.needs:
            every = np.broadcast_to(np.arange(self.world.vocab), rows.behaviour.shape)
            extra |= {"top_logp_behavior": rows.behaviour, "top_tokens": every.copy()}
        if "old" in self.needs:
            extra["logp_old"] = rows.of_token(rows.old)
        batch = TokenBatch(
            mask=torch.ones(rows.token.shape, dtype=torch.bool),
            tokens=torch.from_numpy(rows.token),
            logp_behavior=torch.from_numpy(rows.of_token(rows.behaviour)),
            logp_proximal=torch.from_numpy(rows.of_token(now[here])),
            entropy=torch.from_numpy(-(np.exp(rows.behaviour) * rows.behaviour).sum(-1)),
            rewards=torch.from_numpy(rewards),
            versions=torch.from_numpy(rows.version)[:, None].expand(rows.token.shape),
            group=torch.from_numpy(rows.group),
            trajectory=torch.from_numpy(rows.number),
            version=step,
        )
        return batch.replace(**{name: torch.from_numpy(value) for name, value in extra.items()})

    def update(self, batch: TokenBatch, rows: Rows) -> float:
        """One optimizer step; the share of tokens that moved it."""
        context, state = torch.from_numpy(rows.context)[:, None], torch.from_numpy(rows.state)
        head = torch.log_softmax(self.phi[context, state] @ self.weights.T, -1)
        logp = head.gather(-1, torch.from_numpy(rows.token)[..., None])[..., 0]
        logp.retain_grad()
        learns = "values" in self.needs and self.plan.critic == "learned"
        values = self.learned[context, state] if learns else None
        if "top" in self.needs:
            batch = batch.replace(top_logp_current=head)
        loss = self.objective(batch, logp, values=values)
        self.weights.grad = self.learned.grad = None
        loss.total.backward()
        self.optimizer.step()
        if self.learned.grad is not None:
            visits = torch.zeros_like(self.learned).index_put((context, state), logp.new_ones(()), accumulate=True)
            error = batch.mask.sum() * self.learned.grad / visits.clamp(min=1)  # the loss is a mean over tokens
            with torch.no_grad():
                self.learned -= (1 - (1 - self.plan.critic_lr) ** visits) * error
        return _share(logp.grad)


def _share(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float((gradient != 0).double().mean())
