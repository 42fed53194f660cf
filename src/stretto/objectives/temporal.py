"""Estimators over time: returns, GAE, V-trace, Retrace, COPC's weighted residuals, BRACE's anchored window.

All run along the row's policy tokens only; the value after the last one is 0, or ``batch.bootstrap`` where the row was
truncated and not terminated. Results are [B,T], never with gradient, 0 where masked. ``w`` [B,T] is the ratio target
policy / behaviour policy of each sampled token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.compress import Compressed, compress
from stretto.objectives.scans import anchored_scan, following, residual, reverse_scan, widest

ResidualMode = Literal["residual", "continuation", "trace"]
"""Where COPC's weights enter; see ``copc``."""


def discounted_returns(batch: TokenBatch, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1} over the policy tokens [B,T]; a truncated row starts from its bootstrap value."""
    rows = compress(batch.mask)
    r = _rewards(batch, rows)
    return rows.open(reverse_scan(gamma, r, rows, _after_last(batch, r)))


def gae(batch: TokenBatch, gamma: float, gae_lambda: float | Tensor) -> Tensor:
    """GAE (arXiv 1506.02438) over the policy tokens [B,T]: delta_t = r_t + gamma V_{t+1} - V_t,
    A_t = delta_t + gamma lambda A_{t+1}. ``gae_lambda`` may be [B]."""
    steps = _steps(batch, gamma)
    if isinstance(gae_lambda, Tensor):
        gae_lambda = gae_lambda.to(steps.delta.dtype)
    return steps.rows.open(reverse_scan(gamma * gae_lambda, steps.delta, steps.rows))


def vtrace(
    batch: TokenBatch, w: Tensor, rho_bar: float, c_bar: float, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """V-trace (IMPALA, arXiv 1802.01561): targets v_s = V_s + sum_t gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t delta_t
    and advantages r_s + gamma v_{s+1} - V_s (the actor's own weight rho_s is not in them).

    rho = min(rho_bar, w), c = lambda min(c_bar, w). The targets' fixed point is the value of the policy proportional to
    min(rho_bar behaviour, target).
    """
    steps = _steps(batch, gamma)
    w = steps.closed(w)
    c = w.clamp(max=c_bar).mul_(gamma * gae_lambda)
    y = reverse_scan(c, w.clamp(max=rho_bar).mul_(steps.delta), steps.rows)
    return steps.targets_and_advantages(y)


def retrace(
    batch: TokenBatch, w: Tensor, gamma: float, gae_lambda: float, action_values: Tensor | None = None
) -> Tensor:
    """Retrace targets of the sampled action's value (arXiv 1606.02647): Q_s + sum_t gamma^{t-s} (prod_{i=s+1}^{t} c_i)
    (r_t + gamma V_{t+1} - Q_t), c = lambda min(1, w): the own action carries no weight.

    ``action_values`` [B,T] Q; without them the critic's V stands for it (then c_i = 1 gives V + GAE(lambda)).
    """
    steps = _steps(batch, gamma)
    rows, q, delta = steps.rows, steps.values, steps.delta
    if action_values is not None:
        q = steps.closed(action_values)
        delta = residual(steps.rewards, steps.values, q, rows, gamma, steps.after)
    c = following(steps.closed(w).clamp(max=1.0).mul_(gamma * gae_lambda), rows)
    return rows.open(reverse_scan(c, delta, rows) + q)


def copc(
    batch: TokenBatch, w: Tensor, mode: ResidualMode, clip: tuple[float, float], gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """COPC (arXiv 2610.09597) advantages A and corrections E of the value; the returns are V + E.

    With omega = clip(w, *clip): ``residual`` A_t = E_t = omega_t delta_t + gamma lambda A_{t+1};
    ``continuation`` E_t = omega_t delta_t + gamma lambda E_{t+1}, A_t = delta_t + gamma lambda E_{t+1};
    ``trace`` A_t = delta_t + gamma lambda omega_{t+1} A_{t+1}, E_t = omega_t A_t. [inferred: the paper publishes the
    structure, not the equations.] A clip of [1, 1] is uncorrected GAE(lambda) in every mode.
    """
    steps = _steps(batch, gamma)
    rows, delta = steps.rows, steps.delta
    omega = steps.closed(w).clamp(*clip)
    if mode == "trace":
        a = reverse_scan(following(omega, rows).mul_(gamma * gae_lambda), delta, rows)
        return rows.open(a), rows.open(omega.mul_(a))
    e = reverse_scan(gamma * gae_lambda, omega.mul_(delta), rows)
    a = e if mode == "residual" else following(e, rows).mul_(gamma * gae_lambda).add_(delta)
    return rows.open(a), rows.open(e)


def brace(
    batch: TokenBatch, w: Tensor, k: int, rho_bar: float, c_bar: float, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """BRACE (arXiv 2609.09783): the critic's targets G and unwhitened advantages r_s + gamma G_{s+1} - V_s.

    Residuals are corrected over a window of ``k`` policy tokens, j = min(s + k, T), and everything beyond comes in
    with one constant weight, the window's product, so that the reward reaches every position:
    G_s = V_s + sum_{t=s}^{j-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t delta_t
    + (prod_{i=s}^{j-1} c_i) gamma^{j-s} (Ret_j - V_j), Ret the discounted return; rho = min(rho_bar, w),
    c = lambda min(c_bar, w). The dense-reward form of the tail is [inferred]; for a terminal reward it is the paper's.
    """
    steps = _steps(batch, gamma)
    w = steps.closed(w)
    y = anchored_scan(steps.delta, w, steps.rows, k, rho_bar, c_bar, gamma, gae_lambda)
    return steps.targets_and_advantages(y)


def length_adaptive_lambda(mask: Tensor, alpha: float) -> Tensor:
    """lambda [B] = 1 - 1 / (alpha l), at least 0, l the row's policy tokens (VAPO, arXiv 2504.05118; SAO, arXiv
    2607.07508, with alpha = 1.5). float64."""
    return (1 - 1 / (alpha * mask.sum(1).clamp(min=1).double())).clamp(min=0.0)


@dataclass(frozen=True)
class _Steps:
    """Closed rows [B,n] of ``rewards``, critic ``values`` and ``delta`` = r + gamma V_next - V; ``after`` [B]: the
    value after the last token."""

    rows: Compressed
    rewards: Tensor
    values: Tensor
    delta: Tensor
    after: Tensor
    gamma: float

    def closed(self, w: Tensor) -> Tensor:
        """Ratios, or action values, [B,T] as closed rows, in a dtype that holds them and ``delta``."""
        return self.rows.close(w.to(widest(w, self.delta)))

    def targets_and_advantages(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """v = V + y and r + gamma v_next - V, both [B,T]."""
        targets = y.add_(self.values)
        advantages = residual(self.rewards, targets, self.values, self.rows, self.gamma, self.after)
        return self.rows.open(targets), self.rows.open(advantages)


def _steps(batch: TokenBatch, gamma: float) -> _Steps:
    (values,) = batch.need("values")
    rows = compress(batch.mask)
    r = _rewards(batch, rows)
    dtype = widest(r, values)
    r, v = r.to(dtype), rows.close(values).to(dtype)
    after = _after_last(batch, r)
    return _Steps(rows, r, v, residual(r, v, v, rows, gamma, after), after, gamma)


def _rewards(batch: TokenBatch, rows: Compressed) -> Tensor:
    (rewards,) = batch.need("rewards")
    return rows.close_rewards(rewards.to(widest(rewards)), batch.length)


def _after_last(batch: TokenBatch, like: Tensor) -> Tensor:
    zero = like.new_zeros(len(like))
    if batch.truncated is None or batch.bootstrap is None:
        return zero
    bootstraps = batch.truncated if batch.terminated is None else batch.truncated & ~batch.terminated
    return torch.where(bootstraps, batch.bootstrap.detach().to(like.dtype), zero)
