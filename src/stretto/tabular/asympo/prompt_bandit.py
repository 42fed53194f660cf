"""Prompts with features, responses of a few tokens, a policy linear in the features: sampled training on stale data.

The small brother of language-model post-training: groups of responses per prompt, a reward at the end, behaviour
refreshed every S steps. Sampling and updates run in float64 from one seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives.base import Objective


@dataclass(frozen=True)
class PromptBandit:
    """``features`` [P,d] and ``targets`` [P,T], the token that a position's best policy says; ``vocabulary`` V.
    A response is rewarded with 1 when at least half its tokens are the targets."""

    features: Tensor
    targets: Tensor
    vocabulary: int

    def logp(self, weights: Tensor, prompt: Tensor) -> Tensor:
        """Log-probabilities [B,T,V] at the prompts [B]; ``weights`` [T,d,V]."""
        return torch.einsum("bd,tdv->btv", self.features[prompt], weights).log_softmax(-1)

    def reward(self, prompt: Tensor, tokens: Tensor) -> Tensor:
        """Reward [B] of responses ``tokens`` [B,T] to the prompts [B]: 1 if at least half of the tokens are the
        targets, else 0."""
        hits = (tokens == self.targets[prompt]).sum(1)
        return (2 * hits >= tokens.shape[1]).double()

    def success(self, weights: Tensor) -> float:
        """Exact probability that a response of the policy with ``weights`` [T,d,V] is rewarded, mean over prompts: the
        number of hits is followed position by position."""
        p = self.logp(weights, torch.arange(len(self.features))).exp()
        hit = p.gather(2, self.targets[..., None])[..., 0]
        counts = torch.zeros(len(hit), hit.shape[1] + 1, dtype=hit.dtype)
        counts[:, 0] = 1
        for t in range(hit.shape[1]):  # the number of hits so far, position by position
            moved = torch.nn.functional.pad(counts[:, :-1], (1, 0))
            counts = counts * (1 - hit[:, t : t + 1]) + moved * hit[:, t : t + 1]
        enough = 2 * torch.arange(hit.shape[1] + 1) >= hit.shape[1]
        return float(counts[:, enough].sum(1).mean())


def sample_prompt_bandit(
    seed: int, count: int = 32, size: int | None = 12, tokens: int = 4, vocabulary: int = 16
) -> PromptBandit:
    """Features N(0,1)/sqrt(size) and targets that weights N(0,1) prefer (so a policy can learn them); ``size`` None:
    tabular, one feature per prompt."""
    generator = torch.Generator().manual_seed(seed)
    if size is None:
        features = torch.eye(count, dtype=torch.float64)
    else:
        features = torch.randn(count, size, generator=generator, dtype=torch.float64) / math.sqrt(size)
    teacher = torch.randn(tokens, features.shape[1], vocabulary, generator=generator, dtype=torch.float64)
    targets = torch.einsum("bd,tdv->btv", features, teacher).argmax(-1)
    return PromptBandit(features, targets, vocabulary)


@dataclass(frozen=True)
class Step:
    """What one update saw: its ``lag``; the loss ``value``; ``imbalance`` sum A l / sum |A| l, l the mean NLL of a
    response; ``negative``, the mean l of responses with A < 0 over that of those with A > 0. The last two are None
    where all groups were constant."""

    lag: int
    value: float
    imbalance: float | None
    negative: float | None


@dataclass(frozen=True)
class Run:
    """A training run: its steps, the final weights [T,d,V], the largest |weight| along the way, success before
    each refresh and at the end."""

    steps: list[Step]
    weights: Tensor
    drift: float
    success: list[float]


def train(
    prompts: PromptBandit,
    objective: Objective,
    rate: float,
    seed: int,
    steps: int = 160,
    sync_interval: int = 32,
    optimizer: Literal["adam", "sgd"] = "adam",
    batch_prompts: int = 8,
    group: int = 8,
) -> Run:
    """Train from uniform with ``objective``: ``batch_prompts`` prompts a step, ``group`` responses each, sampled by
    weights that are refreshed every ``sync_interval`` steps. ``ConfigError`` on settings that can't be."""
    if sync_interval < 1 or steps < 1 or not rate > 0:
        raise ConfigError(f"train: need sync_interval >= 1, steps >= 1, rate > 0; got {sync_interval}, {steps}, {rate}")
    generator = torch.Generator().manual_seed(seed + 1_000_000)
    shape = (prompts.targets.shape[1], prompts.features.shape[1], prompts.vocabulary)
    weights = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    update = kind([weights], lr=rate)
    behavior = weights.detach().clone()
    seen: list[Step] = []
    success: list[float] = []
    drift = 0.0
    for step in range(steps):
        if step % sync_interval == 0:
            behavior = weights.detach().clone()
            success.append(prompts.success(behavior))
        batch, prompt = _sample(prompts, behavior, generator, batch_prompts, group)
        (tokens,) = batch.need("tokens")
        logp = prompts.logp(weights, prompt).gather(2, tokens[..., None])[..., 0]
        advantages = objective.advantages(batch)
        loss = objective(batch, logp, advantages=advantages)
        update.zero_grad()
        loss.total.backward()
        update.step()
        seen.append(_step(step % sync_interval, float(loss.total.detach()), advantages[:, 0], -logp.detach().mean(1)))
        drift = max(drift, float(weights.detach().abs().max()))
    success.append(prompts.success(weights.detach()))
    return Run(seen, weights.detach(), drift, success)


def _sample(
    prompts: PromptBandit, behavior: Tensor, generator: torch.Generator, count: int, group: int
) -> tuple[TokenBatch, Tensor]:
    chosen = torch.randperm(len(prompts.features), generator=generator)[:count]
    prompt = chosen.repeat_interleave(group)
    logp = prompts.logp(behavior, prompt)
    tokens = torch.multinomial(logp.exp().flatten(0, 1), 1, generator=generator).view(logp.shape[:2])
    rewards = torch.zeros(tokens.shape, dtype=torch.float64)
    rewards[:, -1] = prompts.reward(prompt, tokens)
    batch = TokenBatch(
        mask=torch.ones_like(tokens, dtype=torch.bool),
        tokens=tokens,
        logp_behavior=logp.gather(2, tokens[..., None])[..., 0],
        rewards=rewards,
        group=prompt,
    )
    return batch, prompt


def _step(lag: int, value: float, a: Tensor, nll: Tensor) -> Step:
    scale = float((a.abs() * nll).sum())
    if scale == 0:
        return Step(lag, value, None, None)
    return Step(lag, value, float((a * nll).sum()) / scale, float(nll[a < 0].mean() / nll[a > 0].mean()))
