"""KLPO: KL-regularised policy optimisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives import klpo_estimators as kl
from stretto.objectives.advantage import row_rewards
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.base import Baseline, Objective
from stretto.objectives.loss import Loss
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "klpo/{kl,objective}", "nats", "`klpo`: its estimate of the KL, and its objective"),
)  # fmt: skip


@REGISTRY.register("klpo")
@dataclass(frozen=True, kw_only=True)
class KLPO(Objective):
    """Least squares on the optimality condition R = V + beta sum_t (ell_t + k_t) of the KL-regularised problem that is
    anchored at the sampler; ell = logp - logp_behavior (On KL-Regularized Policy Optimization, arXiv 2610.08963).
    No importance weight, clip, whitening or length normalisation: long rows weigh more by design.

    ``route`` ``token`` (default): -mean_B sum_t sg(R - beta ell_t) (logp_t - C_t). ``sequence``: D = sg(R - beta sum_t
    (ell_t + k_t)), -mean_B D sum_t (logp_t + k_t), the gradient of mean D^2 / (2 beta). ``estimator``:

    * ``mc`` (default): C_t = mean_j logp_j at ``M`` independent samples, with replacement from the sampler at that
      prefix and independent of the rollout. Sequence route, M >= 2: D_j has -(logp_j - logp_behavior_j) for k, and
      column j's score meets the mean of the other columns' D. Samples that several steps reuse are a fixed surrogate.
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
    mean D^2 / (2 beta) by this estimator (with mc unbiased, so it may be negative): watch it, not the loss (on
    fresh data: on a fixed batch the token route need not lower it).
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

    whole: ClassVar[bool] = True  # a cut would renormalise the sampler's side of the KL alone

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.beta < math.inf, f"beta = {self.beta:g} must be above 0 and finite")
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
        return frozenset({"mc": {"sampled"}, "full": {"top"}, "topk": {"top"}, "binary": set[str]()}[self.estimator])

    @property
    def idle(self) -> dict[str, str]:
        """Options of the other estimators."""
        of = {"M": ("mc",), "K": ("topk",), "tail_floor": ("topk",)}
        why = f"objective.estimator = {self.estimator!r} doesn't use it"
        return super().idle | {name: why for name, users in of.items() if self.estimator not in users}

    @property
    def sampled(self) -> int:
        """Independent samples per position that the engine must record, if ``needs`` says so."""
        return self.M

    @property
    def top(self) -> int | None:
        """Likeliest tokens per position that the engine must record, if ``needs`` says so; None: all."""
        return None if self.estimator == "full" else self.K

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        """R [B,T], or R less its group's baseline; 0 where masked and in a row whose reward is absent."""
        returns = row_rewards(batch)[:, None].detach()
        a = returns if self.baseline == "none" else super().advantages(batch, logp)
        return torch.where(batch.mask, torch.where(returns.isnan(), 0.0, a), 0.0)

    def __call__(
        self,
        batch: TokenBatch,
        logp: Tensor,
        values: Tensor | None = None,
        advantages: Tensor | None = None,
    ) -> Loss:
        """The loss. With gradient like ``logp``, ``batch.sampled_logp_current`` [B,T,M] and ``batch.top_logp_current``
        [B,T,K] (``full``: K = V) are the current log-probabilities of the tokens whose sampler side are
        ``batch.sampled_logp_behavior`` and ``batch.top_logp_behavior``. ``DataError`` if one is missing or doesn't
        fit."""
        if batch.trajectories != batch.rows:
            raise DataError(
                f"klpo: {batch.rows} rows of {batch.trajectories} trajectories; a row must be a complete trajectory"
            )
        batch, logp, values, a = self.prepared(batch, logp, values, advantages)
        pair = None
        if "sampled" in self.needs:
            pair = _pair(batch, "sampled")
        elif "top" in self.needs:
            pair = _pair(batch, "top")
        flat = _Flat.of(batch, logp, a, pair)
        score, surprise, omega = self._parts(flat)
        if self.route == "token":
            x = -(flat.a - self.beta * flat.ell) * score
        else:
            x = -self._coefficient(flat, surprise).index_select(0, flat.row) * score
            x = x if x.ndim == 1 else x.mean(1)
        metrics = self._metrics(batch, flat, surprise, omega)
        return self.assembled(batch, flat.spread(x), metrics, logp, values)

    def _parts(self, flat: _Flat) -> tuple[Tensor, Tensor, Tensor | None]:
        """Per policy token: the score whose gradient counts, with gradient; ell + k, detached; omega of ``binary``.
        All [n], but with ``mc`` ell + k is [n,M], a column a sample, and so is the score of the sequence route."""
        p, q = flat.p, flat.q
        if self.estimator == "mc":
            score = flat.logp - p.mean(1) if self.route == "token" else flat.logp[:, None] - p
            return score, flat.ell[:, None] + (q - p.detach()), None
        if self.estimator == "binary":
            odds = kl.binary_odds(flat.logp, flat.behavior)
            omega = odds.exp()
            # (1-q)(ell + odds) is ell + k without the cancellation
            return omega * flat.logp, -torch.expm1(flat.behavior) * (flat.ell + odds), omega
        full = self.estimator == "full"
        if self.route == "sequence":
            k = kl.full_kl(p, q) if full else kl.topk_kl(p, q, self.tail_floor)
            return flat.logp + k, flat.ell + k.detach(), None
        control, k = kl.full_control(p, q) if full else kl.topk_control(p, q, self.tail_floor)
        return flat.logp - control, flat.ell + k, None

    def _coefficient(self, flat: _Flat, surprise: Tensor) -> Tensor:
        """D [B] of the sequence route; of ``mc`` the mean D of the other columns [B,M]."""
        if not flat.constant:
            raise DataError("klpo: route 'sequence' has one residual a row: advantages must be equal along each row")
        d = flat.residual(surprise, self.beta)
        if d.ndim == 2:
            if d.shape[1] < 2:
                raise DataError("klpo: route 'sequence' with estimator 'mc' needs at least two samples per position")
            d = (d.sum(1, keepdim=True) - d) / (d.shape[1] - 1)
        return d

    def _metrics(self, batch: TokenBatch, flat: _Flat, surprise: Tensor, omega: Tensor | None) -> Metrics:
        d, weight = flat.spread(flat.ell), torch.ones_like(flat.ell) if omega is None else omega
        metrics = off_policy(batch, d, flat.spread(weight))
        metrics.share("klpo/kl", (surprise if surprise.ndim == 1 else surprise.mean(1)) - flat.ell, len(flat.ell))
        if flat.constant and surprise.shape[1:] != (1,):  # one sample says nothing about a square
            d = flat.residual(surprise, self.beta)
            square = d.square() if d.ndim == 1 else kl.mean_square(d)
            metrics.share("klpo/objective", square / (2 * self.beta), flat.present.sum())
        return metrics


@dataclass(frozen=True)
class _Flat:
    """The n policy tokens of a batch, row after row: their places ``at`` in the flat mask, ``row`` of each, ``logp``
    (with gradient), ``behavior``, ``ell``, ``a``, and the alternatives ``p`` (with gradient), ``q`` [n,J]. ``r`` [B]:
    the row's R; ``present`` [B]: trains; ``constant``: ``a`` is ``r`` all along."""

    shape: torch.Size
    at: Tensor
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
    def of(cls, batch: TokenBatch, logp: Tensor, advantages: Tensor, pair: tuple[Tensor, Tensor] | None) -> _Flat:
        """From a batch, advantages [B,T], and the alternatives [B,T,J], if there are any."""
        mask, width = batch.mask, batch.mask.shape[1]
        at = mask.flatten().nonzero()[:, 0]
        row = torch.div(at, max(width, 1), rounding_mode="floor")

        def take(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, at)

        now, behavior, a = take(logp), take(batch.need("logp_behavior")[0]).detach(), take(advantages)
        p, q = (take(x) for x in pair) if pair else (now.new_zeros(len(now), 0), now.new_zeros(len(now), 0))
        first = torch.searchsorted(row, torch.arange(batch.rows, device=row.device)).clamp(max=max(len(row) - 1, 0))
        present = mask.any(1)
        r = torch.where(present, a[first] if len(row) else 0.0, 0.0)
        constant = bool((a == r[row]).all())
        return cls(mask.shape, at, row, now, behavior, now.detach() - behavior, a, p, q.detach(), r, present, constant)

    def spread(self, x: Tensor) -> Tensor:
        """[n] -> [B,T], 0 where masked."""
        return x.new_zeros(self.shape.numel()).index_copy(0, self.at, x).view(self.shape)

    def residual(self, surprise: Tensor, beta: float) -> Tensor:
        """D = R - beta sum_t (ell_t + k_t) per row, [B] or a column a sample [B,M]; 0 where a row trains nothing."""
        total = surprise.new_zeros(len(self.r), *surprise.shape[1:]).index_add(0, self.row, surprise)
        r, present = (x if total.ndim == 1 else x[:, None] for x in (self.r, self.present))
        return torch.where(present, r - beta * total, 0.0)


def _pair(batch: TokenBatch, name: str) -> tuple[Tensor, Tensor]:
    """Current (with gradient) and sampler log-probabilities [B,T,J] of the recorded alternatives."""
    current, behavior = batch.need(f"{name}_logp_current", f"{name}_logp_behavior")
    if current.shape != behavior.shape:
        shapes = f"{list(current.shape)}, but {name}_logp_behavior {list(behavior.shape)}"
        raise DataError(f"klpo: {name}_logp_current is {shapes}")
    return current, behavior
