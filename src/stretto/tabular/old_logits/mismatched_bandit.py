"""A bandit trained on samples of many versions, by an engine that isn't quite the trainer: what "old" logits are for.

Each version's engine computes the trainer's logits plus a noise of its own, fixed for the version. The ratio of the
current policy to the engine's splits into the mismatch at the sample's version and the staleness since; splitting it
needs the trainer's log-probability at that version, which four routes supply more or less exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives.decoupled_ppo import DecoupledPPO
from stretto.objectives.ewma import Ewma, beta_of_lag
from stretto.objectives.ratio import proxy_logp

Route = Literal["exact", "ewma", "proxy", "recompute"]
"""``exact``: weights of each version are kept; ``ewma``: an average of weights that trails by half the lag bound;
``proxy``: halfway between engine and current policy; ``recompute``: the current policy, as if it were the old one."""


@dataclass(frozen=True)
class MismatchedBandit:
    """``features`` [contexts, d], ``rewards`` [contexts, actions], ``noise`` the engine's standard deviation in
    logits."""

    features: Tensor
    rewards: Tensor
    noise: float

    def logp(self, weights: Tensor) -> Tensor:
        """The trainer's log-probabilities [contexts, actions] with ``weights`` [d, actions]; the engine's differ by its
        noise."""
        return (self.features @ weights).log_softmax(1)

    def value(self, weights: Tensor) -> float:
        """Exact expected reward of the trainer's policy with ``weights`` [d, actions], all contexts alike."""
        return float((self.logp(weights).exp() * self.rewards).sum(1).mean())


def sample_mismatched_bandit(
    seed: int, contexts: int = 24, actions: int = 6, size: int = 8, noise: float = 0.05
) -> MismatchedBandit:
    """A random bandit: features N(0,1)/sqrt(size) and rewards N(0,1), sampled from ``default_rng(seed)`` in this
    order."""
    rng = np.random.default_rng(seed)
    features = torch.from_numpy(rng.standard_normal((contexts, size)) / math.sqrt(size))
    return MismatchedBandit(features, torch.from_numpy(rng.standard_normal((contexts, actions))), noise)


@dataclass(frozen=True)
class Result:
    """Means over all samples of a run: ``error`` |log-probability of the route - exact one|; ``differs``: share for
    which the objective's decision (the sample's gradient counts, or gate or clip stop it) isn't the one under exact
    log-probabilities;
    ``dropped``: share whose first factor the objective drops. ``value``: expected reward, mean over the last 20 steps.
    """

    error: float
    differs: float
    dropped: float
    value: float


def train(
    world: MismatchedBandit,
    objective: DecoupledPPO,
    route: Route,
    lag_bound: int,
    seed: int,
    steps: int = 240,
    rate: float = 1.0,
    samples: int = 64,
) -> Result:
    """SGD from uniform on ``samples`` a step, each of a version that lags uniformly by 0 .. ``lag_bound`` updates.

    ``objective``: decoupled PPO with ``reference="old"``, one that can ``weight`` (its gate on the first factor).
    Advantages are R - E[R] under the exact old policy whatever the route, so that only its log-probabilities differ.
    """
    if lag_bound < 0 or steps < 20:
        raise ConfigError(f"train: need lag_bound >= 0 and steps >= 20, got {lag_bound} and {steps}")
    rng = np.random.default_rng([seed, 1])
    weights = torch.zeros(world.features.shape[1], world.rewards.shape[1], dtype=torch.float64, requires_grad=True)
    update = torch.optim.SGD([weights], lr=rate)
    ewma = Ewma(beta_of_lag(lag_bound / 2), [weights])
    snapshots: list[Tensor] = []
    engines: list[Tensor] = []
    sums = np.zeros(3)
    values = []
    for step in range(steps):
        snapshots.append(world.logp(weights.detach()))
        noise = torch.from_numpy(world.noise * rng.standard_normal(world.rewards.shape))
        engines.append((world.features @ weights.detach() + noise).log_softmax(1))
        context = torch.from_numpy(rng.integers(len(world.features), size=samples))
        version = torch.from_numpy(np.maximum(step - rng.integers(lag_bound + 1, size=samples), 0))
        first = max(step - lag_bound, 0)
        at = (version - first, context)
        engine, trainer = torch.stack(engines[first:])[at], torch.stack(snapshots[first:])[at]
        action = _sample(engine.exp(), torch.from_numpy(rng.random(samples)))
        behavior, exact = _pick(engine, action), _pick(trainer, action)
        logp = _pick(world.logp(weights)[context], action)
        if route == "exact":
            old = exact
        elif route == "ewma":
            old = _pick(world.logp(ewma.average[0])[context], action)
        elif route == "proxy":
            old = proxy_logp(logp.detach(), behavior, torch.full_like(behavior, 0.5), "log-linear")
        else:
            old = logp.detach()
        advantages = world.rewards[context, action] - (trainer.exp() * world.rewards[context]).sum(1)
        batch = TokenBatch(
            mask=torch.ones(samples, 1, dtype=torch.bool), logp_behavior=behavior[:, None], logp_old=old[:, None]
        )
        loss = objective(batch, logp[:, None], advantages=advantages)
        kept, counts = _decisions(objective, logp.detach(), old, behavior, advantages)
        _, should = _decisions(objective, logp.detach(), exact, behavior, advantages)
        sums += [float(x.double().mean()) for x in ((old - exact).abs(), counts != should, ~kept)]
        update.zero_grad()
        loss.total.backward()
        update.step()
        ewma.update([weights])
        values.append(world.value(weights.detach()))
    error, differs, dropped = sums / steps
    return Result(error, differs, dropped, float(np.mean(values[-20:])))


def _decisions(
    objective: DecoupledPPO, logp: Tensor, old: Tensor, behavior: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor]:
    """[B] bool each: the first factor keeps the sample; its gradient counts, that is the clip doesn't bind either."""
    kept = objective.weight(old - behavior)[1]
    rho = (logp - old).exp()
    binds = torch.where(advantages > 0, rho > 1 + objective.clip_high, rho < 1 - objective.clip_low)
    return kept, kept & ~binds


def _sample(p: Tensor, uniform: Tensor) -> Tensor:
    return (p.cumsum(1) < uniform[:, None]).sum(1).clamp(max=p.shape[1] - 1)


def _pick(logp: Tensor, action: Tensor) -> Tensor:
    return logp.gather(1, action[:, None])[:, 0]
