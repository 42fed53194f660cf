"""Metrics of a step that come from its batch, before any update, and from its updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.learner.result import OptimResult
from stretto.objectives.metrics import Metrics

OWN = declare(
    __name__,
    Metric(Section.ROW, "loss loss/policy loss/critic", "objective's own",
           "what was minimised: all, the objective's part, the critic's", "of no meaning by itself",
           "judge by reward and evaluation"),
    Metric(Section.ROW, "lr", "", "learning rate of the step", "as the schedule says"),
    Metric(Section.STALENESS, "off_policy/inner_steps", "steps", "optimizer steps on this batch after the first one",
           "as configured"),
    Metric(Section.STALENESS, "off_policy/distance", "versions", "greatest staleness plus inner steps",
           "**exact**: at most L plus inner steps"),
    Metric(Section.STALENESS, "tokens/trained", "tokens",
           "policy tokens that trained: `batch/tokens` without `intake/nonfinite_tokens`", "near `batch/tokens`"),
    Metric(Section.LEARNER, "entropy", "nats/token", "of the policy that learns", "falls slowly",
           "falls at once: lower `learner.lr`, an entropy term"),
    Metric(Section.LEARNER, "entropy/behavior", "nats/token", "of the distribution that was sampled from",
           "as `entropy`"),
    Metric(Section.LEARNER, "grad_norm critic/grad_norm", "", "gradient norm before clipping",
           "within 3 times its median", "peaks come before a divergence: `ratio/max` of that step"),
    Metric(Section.LEARNER, "intake/nonfinite_tokens", "tokens",
           "left out for a log-probability that isn't finite", "0", "the engine: its numbers, its sampling"),
    Metric(Section.LEARNER, "critic/explained_variance", "share", "1 - Var(return - value) / Var(return)",
           "above 0 after some steps, rising", "negative: the critic does harm"),
)  # fmt: skip


def batch_metrics(batch: TokenBatch, inner_steps: int) -> dict[str, float]:
    """Tokens, distance, behaviour entropy and the critic's explained variance, where the batch has them.

    ``inner_steps``: optimizer steps on this batch before the last one.
    """
    out: dict[str, float] = {"off_policy/inner_steps": float(inner_steps)}
    if batch.trained_at is not None:  # what comes back for its late reward was counted when it first trained
        batch = batch.select((batch.trained_at < 0).nonzero().squeeze(1))
    if not batch.rows:
        return OWN.checked(out)
    tokens = int(batch.mask.sum())
    out["tokens/trained"] = float(tokens)
    if batch.versions is not None and tokens:
        out["off_policy/distance"] = float(batch.version - batch.versions[batch.mask].min()) + inner_steps
    if batch.entropy is not None and tokens:
        out["entropy/behavior"] = float(batch.entropy[batch.mask].double().mean())
    if batch.values is not None and batch.targets is not None and tokens:
        out["critic/explained_variance"] = explained_variance(batch.values[batch.mask], batch.targets[batch.mask])
    return OWN.checked(out)


def update_metrics(done: Sequence[OptimResult[Metrics]], nonfinite: int, critic: bool) -> dict[str, float]:
    """Means over a step's optimizer steps. ``nonfinite``: tokens that were left out; ``critic``: is there one?"""
    table = [[d.grad_norm, d.critic_grad_norm, d.losses.total, d.losses.policy, d.losses.critic] for d in done]
    mean = np.mean(np.array(table), axis=0).tolist()
    out = {"loss": mean[2], "loss/policy": mean[3], "grad_norm": mean[0], "lr": done[0].lr,
           "intake/nonfinite_tokens": float(nonfinite)}  # fmt: skip
    if critic:
        out |= {"loss/critic": mean[4], "critic/grad_norm": mean[1]}
    return OWN.checked(out)


def note_entropy(metrics: Metrics, entropy: Tensor) -> None:
    """Add the entropy of the policy that learns, of each policy token of a micro-batch (flat)."""
    metrics.share("entropy", entropy, entropy.numel())


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """1 - Var(target - value) / Var(target) over policy tokens; 0 where all targets are equal."""
    variance = torch.var(targets.double(), correction=0)
    if float(variance) == 0:
        return 0.0
    return 1 - float(torch.var((targets - values).double(), correction=0) / variance)
