"""KLPO: KL-regularised policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.errors import DataError
from stretto.objectives import klpo_estimators as kl
from stretto.objectives.advantage import row_rewards
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.base import Baseline, Objective
from stretto.objectives.loss import Loss
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("klpo")
@dataclass(frozen=True, kw_only=True)
class KLPO(Objective):
    """Least squares on the optimality condition R = V + beta sum_t (ell_t + k_t) of the KL-regularised problem that is
    anchored at the sampler; ell = logp - logp_behavior (On KL-Regularized Policy Optimization, arXiv 2610.08963).
    No importance weight, clip, whitening or length normalisation: long rows weigh more by design.

    ``route`` ``token`` (default): -mean_B sum_t sg(R - beta ell_t) (logp_t - C_t). ``sequence``: D = sg(R - beta sum_t
    (ell_t + k_t)), -mean_B D sum_t (logp_t + k_t), the gradient of mean D^2 / (2 beta). ``estimator``:

    * ``mc`` (default): C_t = mean_j mc_logp_j at ``M`` draws, iid with replacement from the sampler at that prefix
      and independent of the rollout. Sequence route, M >= 2: D_j has -(mc_logp_j - mc_logp_behavior_j) for k, and
      column j's score meets the mean of the other columns' D. Draws that several steps reuse are a fixed surrogate.
    * ``full``: C_t = sum_v q log p; k the KL over the whole vocabulary.
    * ``topk``: C_t = sum_H sg(q - rho p) log p over the sampler's ``K`` likeliest tokens, rho = q_tail / p_tail, tails
      at least ``tail_floor``; k the KL in which all others are one token. Approximate.
    * ``binary``: sg(omega) logp instead of (logp - C), omega = (1-q)/(1-p) of the sampled token; k the KL of the
      sampled token against all others. Nothing to record; approximate unless there are two tokens. A probability of
      0 or 1 is an error.

    ``beta`` 0.1, ``M`` 16, ``K`` 16 and ``tail_floor`` 1e-6 are the paper's launch values (its library has beta 1e-3).
    R is the sum of the row's rewards; ``baseline`` group | leave-one-out (``std``) centres it first [inferred]. Ready
    ``advantages`` take the place of R, token by token in the token route (R - beta ell_t becomes A_t - beta ell_t);
    in the sequence route they must be one number a row. A row without a reward (NaN) trains nothing. A row is a
    complete trajectory, ended by itself or by the length limit: several rows of one trajectory are an error.
    ``aggregation`` other than seq-mean-token-sum: token route alone [inferred]. ``klpo/objective`` in the metrics is
    mean D^2 / (2 beta) by this estimator (with mc unbiased, so it may be negative): watch it, not the loss.
    """

    route: Literal["token", "sequence"] = "token"
    estimator: Literal["mc", "full", "topk", "binary"] = "mc"
    beta: float = 0.1
    M: int = 16
    K: int = 16
    tail_floor: float = 1e-6
    baseline: Baseline = "none"
    std: bool = False
    aggregation: Aggregation = "seq-mean-token-sum"

    whole: ClassVar[bool] = True
    """A row is a complete trajectory, drawn from the whole softmax: top-k or top-p sampling would cut what the KL is
    over, and renormalise the sampler's side alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.beta > 0, f"beta = {self.beta:g} must be above 0")
        self.require(self.M >= 1 and self.K >= 1, f"M = {self.M} and K = {self.K} must be at least 1")
        self.require(0 < self.tail_floor < 1, f"tail_floor = {self.tail_floor:g} must lie in (0, 1)")
        self.require(self.baseline != "gae", "baseline 'gae' needs a critic; it has none. Use 'none' or 'group'")
        self.require(self.gamma == 1, f"gamma = {self.gamma:g}: rewards aren't discounted, leave it at 1")
        self.require(not self.std or self.baseline != "none", "std = true needs baseline 'group' or 'leave-one-out'")
        if self.route == "sequence":
            plain = self.aggregation == "seq-mean-token-sum"
            self.require(plain, "route 'sequence' is a mean over rows: leave aggregation at 'seq-mean-token-sum'")
            self.require(self.estimator != "mc" or self.M >= 2, "route 'sequence' with estimator 'mc' needs M >= 2")

    @property
    def needs(self) -> frozenset[str]:
        """What the estimator looks at beside the sampled token."""
        return frozenset({"mc": {"draws"}, "full": {"head"}, "topk": {"head"}, "binary": set[str]()}[self.estimator])

    @property
    def draws(self) -> int:
        """Draws per position that the engine must record, if ``needs`` says so."""
        return self.M

    @property
    def head(self) -> int | None:
        """Likeliest tokens per position that the engine must record, if ``needs`` says so; None: all."""
        return None if self.estimator == "full" else self.K

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        """R [B,T], or R less its group's baseline; 0 where masked, NaN in a row whose reward is absent."""
        returns = row_rewards(batch)[:, None].detach()
        a = returns if self.baseline == "none" else super().advantages(batch, logp)
        return torch.where(batch.mask, torch.where(returns.isfinite(), a, torch.nan), 0.0)

    def __call__(
        self,
        batch: TokenBatch,
        logp: Tensor,
        values: Tensor | None = None,
        advantages: Tensor | None = None,
        *,
        mc_logp: Tensor | None = None,
        head_logp: Tensor | None = None,
    ) -> Loss:
        """The loss. ``mc_logp`` [B,T,M] and ``head_logp`` [B,T,K] (``full``: K = V), with gradient like ``logp``: the
        current log-probabilities of the tokens whose sampler side are ``batch.mc_logp_behavior`` and
        ``batch.head_logp_behavior``. ``DataError`` if one is missing or doesn't fit."""
        if batch.trajectories != batch.rows:
            raise DataError(
                f"klpo: {batch.rows} rows of {batch.trajectories} trajectories; a row must be a complete trajectory"
            )
        batch, a = self.prepared(batch, logp, advantages)
        pair = logp[batch.mask][:, None][:, :0], logp[batch.mask][:, None][:, :0]
        if "draws" in self.needs:
            pair = _pair(batch, "mc_logp", mc_logp)
        elif "head" in self.needs:
            pair = _pair(batch, "head_logp", head_logp)
        flat = _Flat.of(batch, logp, a, *pair)
        score, surprise, omega = self._parts(flat)
        if self.route == "token":
            h = torch.where(flat.a.isnan(), 0.0, flat.a - self.beta * flat.ell)
            x = -h * (score if score.ndim == 1 else score.mean(1))
        else:
            x = -self._coefficient(flat, surprise)[flat.row] * score
            x = x if x.ndim == 1 else x.mean(1)
        spread = torch.zeros_like(a).index_put((batch.mask,), x)
        return self.assembled(batch, spread, self._metrics(batch, logp, flat, surprise, omega), logp, values)

    def _parts(self, flat: _Flat) -> tuple[Tensor, Tensor, Tensor | None]:
        """Per policy token: the score whose gradient counts, with gradient; ell + k, detached; omega of ``binary``.
        Scores and ell + k of ``mc`` are [n,M], a column a draw; else [n]."""
        p, q = flat.p, flat.q
        if self.estimator == "mc":
            return flat.logp[:, None] - p, flat.ell[:, None] + (q - p.detach()), None
        if self.estimator == "binary":
            odds = kl.binary_odds(flat.logp, flat.behavior)
            omega = odds.exp()
            # (1-q)(ell + odds) is ell + k without the cancellation
            return omega * flat.logp, -torch.expm1(flat.behavior) * (flat.ell + odds), omega
        if self.route == "sequence":
            k = self._divergence(p, q)
            return flat.logp + k, flat.ell + k.detach(), None
        k = self._divergence(p.detach(), q)
        full = self.estimator == "full"
        control = kl.weighted_sum(q.exp(), p) if full else kl.topk_control(p, q, self.tail_floor)
        return flat.logp - control, flat.ell + k, None

    def _divergence(self, p: Tensor, q: Tensor) -> Tensor:
        return kl.full_kl(p, q) if self.estimator == "full" else kl.topk_kl(p, q, self.tail_floor)

    def _coefficient(self, flat: _Flat, surprise: Tensor) -> Tensor:
        """D [B] of the sequence route; of ``mc`` the mean D of the other columns [B,M]."""
        if not flat.constant:
            raise DataError("klpo: route 'sequence' has one residual a row: advantages must be equal along each row")
        d = flat.residual(surprise, self.beta)
        if d.ndim == 2:
            if d.shape[1] < 2:
                raise DataError("klpo: route 'sequence' with estimator 'mc' needs at least two draws per position")
            d = (d.sum(1, keepdim=True) - d) / (d.shape[1] - 1)
        return d

    def _metrics(self, batch: TokenBatch, logp: Tensor, flat: _Flat, surprise: Tensor, omega: Tensor | None) -> Metrics:
        weight = torch.ones_like(flat.ell) if omega is None else omega
        spread = torch.zeros_like(batch.mask, dtype=weight.dtype).index_put((batch.mask,), weight)
        metrics = off_policy(batch, log_ratio(logp.detach(), batch.need("logp_behavior")[0], batch.mask), spread)
        ell = flat.ell if surprise.ndim == 1 else flat.ell[:, None]
        metrics.share("klpo/kl", surprise - ell, surprise.numel())
        if flat.constant and surprise.shape[1:] != (1,):  # one draw says nothing about a square
            d = flat.residual(surprise, self.beta)
            square = d.square() if d.ndim == 1 else kl.mean_square(d)
            metrics.share("klpo/objective", square / (2 * self.beta), flat.present.sum())
        return metrics


@dataclass(frozen=True)
class _Flat:
    """The n policy tokens of a batch, row after row: ``row`` of each, ``logp`` (with gradient), ``behavior``, ``ell``,
    ``a``, and the alternatives ``p`` (with gradient), ``q`` [n,J]. ``r`` [B]: the row's R (NaN: absent); ``present``
    [B]: trains; ``constant``: ``a`` is ``r`` all along."""

    row: Tensor
    logp: Tensor
    behavior: Tensor
    ell: Tensor
    a: Tensor
    p: Tensor
    q: Tensor
    r: Tensor
    present: Tensor
    constant: bool

    @classmethod
    def of(cls, batch: TokenBatch, logp: Tensor, advantages: Tensor, p: Tensor, q: Tensor) -> _Flat:
        """From a batch; ``p``, ``q`` are flat already."""
        mask = batch.mask
        row = mask.nonzero()[:, 0]
        behavior = batch.need("logp_behavior")[0][mask].detach()
        now, a = logp[mask], advantages[mask]
        first = mask.to(torch.int8).argmax(1, keepdim=True) if mask.shape[1] else row[:, None]
        r = advantages.gather(1, first)[:, 0] if mask.shape[1] else advantages.sum(1)
        constant = bool(((a == r[row]) | (a.isnan() & r[row].isnan())).all())
        present = mask.any(1) & ~r.isnan()
        return cls(row, now, behavior, now.detach() - behavior, a, p, q, r, present, constant)

    def residual(self, surprise: Tensor, beta: float) -> Tensor:
        """D = R - beta sum_t (ell_t + k_t) per row, [B] or a column a draw [B,M]; 0 where a row trains nothing."""
        total = surprise.new_zeros(len(self.r), *surprise.shape[1:]).index_add(0, self.row, surprise)
        r, present = (x if total.ndim == 1 else x[:, None] for x in (self.r, self.present))
        return torch.where(present, r - beta * total, 0.0)


def _pair(batch: TokenBatch, name: str, current: Tensor | None) -> tuple[Tensor, Tensor]:
    """Current (with gradient) and sampler log-probabilities [n,J] of the policy tokens' alternatives."""
    if current is None:
        raise DataError(f"klpo: {name} is missing: pass the current log-probabilities of the recorded alternatives")
    (behavior,) = batch.need(f"{name}_behavior")
    if current.shape != behavior.shape:
        raise DataError(f"klpo: {name} is {list(current.shape)}, but {name}_behavior {list(behavior.shape)}")
    return current[batch.mask], behavior.detach()[batch.mask]
