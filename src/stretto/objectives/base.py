"""What all methods share: options of the advantage and the aggregation, and the assembly of ``Loss``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import ClassVar, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.kernel.metrics import undeclared
from stretto.objectives.advantage import absent_rows, group_advantages, standardised
from stretto.objectives.aggregate import Aggregation, aggregate
from stretto.objectives.inputs import check_finite, check_inputs, floating
from stretto.objectives.loss import Loss, critic_loss
from stretto.objectives.metrics import Metrics
from stretto.objectives.temporal import discounted_returns, gae

Baseline = Literal["group", "leave-one-out", "none", "gae"]
_LARGEST = torch.finfo(torch.float32).max


@cache
def _choices(kind: type[Objective]) -> dict[str, tuple[object, ...]]:
    """The options of an objective that are one of several words."""
    hints = get_type_hints(kind)
    return {f.name: get_args(hints[f.name]) for f in fields(kind) if get_origin(hints[f.name]) is Literal}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Base of the methods. A method implements ``token_loss``; everything else is here.

    Options: ``baseline`` group | leave-one-out | none (returns) | gae (needs a critic); ``std``: divide by the
    group's standard deviation (group, leave-one-out) or standardise over the step's tokens (none, gae);
    ``aggregation`` with ``max_length`` for ``const``; ``gamma``, ``gae_lambda`` of returns and GAE,
    ``critic_gae_lambda`` of the critic's targets (default ``gae_lambda``), ``value_clip`` of the critic loss.
    ``aliases``: the formulas' symbols for options, understood wherever options are given (``e_l`` is ``clip_low``).

    ``needs``: what the learner must provide, a subset of

    * ``values``: ``batch.values``, and ``values`` in the call: a critic;
    * ``proximal``: ``batch.logp_proximal`` for the call (log-probabilities at the start of the step);
    * ``start``: those for ``advantages`` and ``targets``, too, as their ``logp``: always an extra forward pass;
    * ``gate``: the same for ``advantages`` alone, which then leave out rows that the method rejects;
    * ``statistics``: ``batch.statistics`` whenever the optimizer step is split into micro-batches;
    * ``old``: ``batch.logp_old``, by one of the old-policy routes;
    * ``sampled``, ``top``: ``batch.sampled_logp_current`` or ``batch.top_logp_current`` in the call, of the tokens
      that the engine recorded; the attribute of that name says how many (``top`` None: the whole vocabulary);
    * ``late``: ``batch.reward_slow`` and its company: rewards that arrive after their trajectory trained.

    ``corrects``: stale data is corrected for. ``whole``: a row must be a complete trajectory, sampled from the whole
    softmax (no top-k, no top-p). ``reads_entropy``: the behaviour's must be finite. ``old_route``: which old-policy
    route fills ``logp_old`` unless the run says.
    """

    baseline: Baseline = "group"
    std: bool = True
    aggregation: Aggregation = "token-mean"
    max_length: int | None = None
    gamma: float = 1.0
    gae_lambda: float = 1.0
    critic_gae_lambda: float | None = None
    value_clip: float | None = None

    corrects: ClassVar[bool] = True
    whole: ClassVar[bool] = False
    reads_entropy: ClassVar[bool] = False
    component_name: ClassVar[str] = ""
    old_route: ClassVar[str] = "snapshots"
    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"e_v": ("value_clip",)}

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            parts = value if isinstance(value, tuple | list) else (value,)
            for x in parts:
                if isinstance(x, int | float | np.number) and not abs(float(x)) <= _LARGEST and not math.isinf(x):
                    what = "is not a number" if math.isnan(x) else "is more than a float32 holds"
                    raise ConfigError(f"objective {self.component_name!r}: {field.name} = {value} {what}")
        for name, choices in _choices(type(self)).items():  # type: ignore[arg-type]  # a class is hashable
            known = ", ".join(map(repr, choices))
            self.require(getattr(self, name) in choices, f"{name} = {getattr(self, name)!r} must be one of {known}")
        if (self.aggregation == "const") != (self.max_length is not None):
            raise ConfigError(
                f"objective {self.component_name!r}: max_length and aggregation = 'const' go together "
                f"(aggregation = {self.aggregation!r}, max_length = {self.max_length})"
            )
        if self.max_length is not None:
            self.require(self.max_length >= 1, f"max_length = {self.max_length} must be at least 1")
        if self.value_clip is not None:
            self.require(self.value_clip > 0, f"value_clip = {self.value_clip} must be above 0")
        unit = 0 <= self.gamma <= 1 and 0 <= self.gae_lambda <= 1 and 0 <= (self.critic_gae_lambda or 0) <= 1
        self.require(unit, "gamma, gae_lambda and critic_gae_lambda must lie in [0, 1]")

    def require(self, holds: bool, what: str) -> None:
        """``ConfigError`` that names the objective, unless ``holds``."""
        if not holds:
            raise ConfigError(f"objective {self.component_name!r}: {what}")

    @property
    def needs(self) -> frozenset[str]:
        """What the learner must provide beyond the batch of an engine."""
        return frozenset({"values"}) if self.baseline == "gae" else frozenset()

    @property
    def standardises_step(self) -> bool:
        """Are advantages standardised over all policy tokens of an optimizer step?"""
        return self.std and self.baseline in ("none", "gae")

    @property
    def idle(self) -> dict[str, str]:
        """Options that do nothing in a run as the others are set, each with the reason: setting one is an error."""
        if "values" in self.needs:
            return {}
        found = dict.fromkeys(
            ("gae_lambda", "critic_gae_lambda", "value_clip"), "there is no critic (objective.baseline = 'gae')"
        )
        return found if self.baseline == "none" else found | {"gamma": "a group's baseline discounts nothing"}

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        """[B,T], detached, 0 where masked. Needs whole groups: call it before splitting into micro-batches.

        ``logp`` [B,T]: current log-probabilities, for estimators that weigh by ratios (``needs`` says ``start``).
        """
        with torch.no_grad():
            members = self.members(batch, logp)
            if self.baseline in ("group", "leave-one-out"):
                return group_advantages(batch, self.std, self.baseline == "leave-one-out", members)
            batch = self.present(batch)
            if self.baseline == "gae":
                raw = gae(batch, self.gamma, self.gae_lambda)
            else:
                raw = discounted_returns(batch, self.gamma)
            if not self.std:
                return raw
            return standardised(raw, batch.mask if members is None else batch.mask & members[:, None])

    def members(self, batch: TokenBatch, logp: Tensor | None) -> Tensor | None:
        """[B] bool: rows that baselines and standardisation are taken over; None: all of them. ``logp`` as in
        ``advantages``."""
        return None

    def targets(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        """The critic's targets G = V + GAE [B,T], detached. ``logp`` as in ``advantages``."""
        batch = self.present(batch)
        (values,) = batch.need("values")
        with torch.no_grad():
            gae_lambda = self.gae_lambda if self.critic_gae_lambda is None else self.critic_gae_lambda
            return torch.where(batch.mask, values + gae(batch, self.gamma, gae_lambda), 0.0)

    def statistics(self, batch: TokenBatch, logp: Tensor) -> dict[str, Tensor]:
        """What ``token_loss`` must know of the whole optimizer step: scalars, [B] or [B,T], detached. ``logp``: the
        current log-probabilities, detached."""
        return {}

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """Loss per token [B,T] (before aggregation) and metrics. ``advantages`` are 0 where masked; ``batch`` has its
        ``statistics``."""
        raise NotImplementedError

    def absent(self, batch: TokenBatch) -> Tensor:
        """[B] bool: rows whose reward is absent (NaN). They train nothing, whatever ``advantages`` say."""
        return absent_rows(batch)

    def present(self, batch: TokenBatch) -> TokenBatch:
        """The batch without the policy tokens of rows whose reward is absent; they stay in the denominators."""
        absent = self.absent(batch)
        if not bool(absent.any()):
            return batch
        return batch.replace(mask=batch.mask & ~absent[:, None], totals=batch.step_totals())

    def __call__(
        self,
        batch: TokenBatch,
        logp: Tensor,
        values: Tensor | None = None,
        advantages: Tensor | None = None,
    ) -> Loss:
        """The loss. ``logp`` [B,T] and ``values`` [B,T] carry gradient, nothing else; ready ``advantages`` ([B,T],
        or [B] repeated over the row) replace the method's own.

        Computed in the widest of the dtypes given, at least float32. ``DataError`` on a wrong shape or dtype,
        ``NonFiniteError`` on a NaN or an infinity at a policy token, the same for every method; a NaN reward is an
        absent one, and its row trains nothing."""
        batch, logp, values, a = self.prepared(batch, logp, values, advantages)
        x, metrics = self.token_loss(batch, logp, a)
        return self.assembled(batch, x, metrics, logp, values)

    def prepared(
        self, batch: TokenBatch, logp: Tensor, values: Tensor | None, advantages: Tensor | None
    ) -> tuple[TokenBatch, Tensor, Tensor | None, Tensor]:
        """Everything checked and in one dtype: the batch with its statistics, ``logp``, ``values``, and advantages
        [B,T], 0 where masked."""
        shape = batch.mask.shape
        logp = floating("logp", logp, batch.dtype, shape)
        batch, now = batch.widened(logp.dtype), logp.detach()
        if values is not None:
            values = floating("values", values, logp.dtype, shape)
        if batch.statistics is None and "statistics" in self.needs:
            with torch.no_grad():
                whole = self.present(batch)
                check_finite("logp", now, whole.mask)
                batch = batch.replace(statistics=self.statistics(whole, now))
        a = self.advantages(batch, now) if advantages is None else advantages
        a = floating("advantages", a, logp.dtype, shape, shape[:1], counts=True).detach()
        batch = self.present(batch)
        a = torch.where(batch.mask, a[:, None] if a.ndim == 1 else a, 0.0)
        check_inputs(batch, now, a, values, self.reads_entropy)
        return batch, logp, values, a

    def assembled(self, batch: TokenBatch, x: Tensor, metrics: Metrics, logp: Tensor, values: Tensor | None) -> Loss:
        """``x`` [B,T] aggregated, and the critic's loss where there are ``values``. ``InvariantError`` if a method of
        this package computes a metric that nothing declares."""
        if type(self).__module__.startswith("stretto.") and (strange := undeclared(metrics.names)):
            raise InvariantError(f"objective {self.component_name!r} computes {strange[0]}, which nothing declares")
        policy = aggregate(x, batch, self.aggregation, self.max_length)
        if values is None:
            critic = torch.zeros((), dtype=logp.dtype, device=logp.device)
            return Loss(policy, policy, critic, metrics)
        targets = self.targets(batch, logp.detach()) if batch.targets is None else batch.targets
        if bool((absent := absent_rows(batch)).any()):  # a row may train its policy alone
            batch = batch.replace(mask=batch.mask & ~absent[:, None], totals=batch.step_totals())
        critic = critic_loss(batch, values, targets, self.value_clip)
        return Loss(policy + critic, policy, critic, metrics)
