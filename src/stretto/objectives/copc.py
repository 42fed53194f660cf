"""COPC: coupled off-policy correction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.corrected_values import CorrectedValues
from stretto.objectives.gate import inside, ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.temporal import ResidualMode, copc


@REGISTRY.register("copc")
@dataclass(frozen=True, kw_only=True)
class COPC(CorrectedValues):
    """-sg(1[a_lo <= r <= a_hi] r A) logp, r = current / behaviour, and A from residuals that are weighted, too: two
    clipped ratios whose thresholds belong together (arXiv 2610.09597).

    With omega = clip(w, c_lo, c_hi), w = policy at the start of the step / behaviour, delta = r_t + gamma V_{t+1} - V_t

    * ``residual``: A_t = omega_t delta_t + gamma lambda A_{t+1}; E = A;
    * ``continuation``: A_t = delta_t + gamma lambda E_{t+1}, E_t = omega_t delta_t + gamma lambda E_{t+1};
    * ``trace``: A_t = delta_t + gamma lambda omega_{t+1} A_{t+1}, E_t = omega_t A_t.

    The critic's targets are V + E with ``lam_return`` (that is ``critic_gae_lambda``). The paper publishes the
    structure, not its equations, and no thresholds: the three modes, [0.5, 2] for both ``clip`` and ``keep``, and gamma
    = lambda = 1 are [inferred]. ``residual`` is the literal reading, yet counts the own action's ratio twice; ``trace``
    with raw ratios is unbiased whatever the critic. Sweep ``clip`` and ``keep`` jointly. ``ppo_clip`` (e_l, e_h): PPO's
    min and clip on top of the mask; off by default [inferred].
    """

    residual_mode: ResidualMode = "residual"
    clip: tuple[float, float] = (0.5, 2.0)
    keep: tuple[float, float] = (0.5, 2.0)
    critic_gae_lambda: float | None = 1.0
    ppo_clip: tuple[float, float] | None = None

    aliases: ClassVar[dict[str, tuple[str, ...]]] = CorrectedValues.aliases | {"lam_return": ("critic_gae_lambda",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip", "keep", "ppo_clip"):  # lists, where they come from a file
            pair = getattr(self, name)
            if pair is not None:
                self.require(len(pair) == 2, f"{name} = {pair} must be two numbers")
                object.__setattr__(self, name, tuple(pair))
        fits = 0 <= self.clip[0] <= self.clip[1] and self.clip[0] < math.inf
        self.require(fits, f"clip = {self.clip} must be 0 <= lower <= upper, the lower one finite")
        self.require(self.keep[0] >= 0 and self.keep[1] > 0, f"keep = {self.keep} must be lower >= 0, upper > 0")
        if self.ppo_clip is not None:
            self.require(0 <= self.ppo_clip[0] <= 1 and self.ppo_clip[1] >= 0, "ppo_clip: e_l in [0, 1] and e_h >= 0")
        self.require(not self.std, "COPC's advantages aren't standardised: leave std = false")

    def target_policy(self, batch: TokenBatch, logp: Tensor | None) -> Tensor | None:
        """The policy at the start of the step; without it the current one."""
        return logp if batch.logp_proximal is None else batch.logp_proximal

    def estimate(self, batch: TokenBatch, w: Tensor) -> tuple[Tensor, Tensor]:
        (values,) = batch.need("values")
        a, e = copc(batch, w, self.residual_mode, self.clip, self.gamma, self.gae_lambda)
        lam_return = self.gae_lambda if self.critic_gae_lambda is None else self.critic_gae_lambda
        if lam_return != self.gae_lambda:
            e = copc(batch, w, self.residual_mode, self.clip, self.gamma, lam_return)[1]
        return torch.where(batch.mask, values.detach() + e, 0.0), a

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The score weighted by the ratio inside ``keep``, or PPO's surrogate there."""
        (behavior,) = batch.need("logp_behavior")
        d = log_ratio(logp, behavior, batch.mask)
        now = d.detach()
        kept = inside(now, *self.keep)
        weight = torch.where(kept, ratio(now), 0.0)
        metrics = off_policy(batch, now, weight)
        metrics.kept(kept, batch.mask)
        if self.ppo_clip is None:
            return -(weight * advantages * torch.where(batch.mask, logp, 0.0)), metrics
        surrogate, binds = ppo_clip(ratio(d), advantages, *self.ppo_clip)
        metrics.clipped(binds & kept, batch.mask)
        return -torch.where(kept, surrogate, 0.0), metrics
