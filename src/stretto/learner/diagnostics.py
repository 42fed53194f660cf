"""How far the data is from the policy that learns from it, and what the objective makes of that: for every objective,
from the forward and backward passes that a step makes anyway."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.learner.result import Floats, ForwardBackwardResult
from stretto.objectives.metrics import Metrics

STALENESS_EDGES = (0, 1, 4, 8, 16, 32, 64)
"""Tokens are binned by staleness: 0, 1-3, 4-7, 8-15, 16-31, 32-63, 64 and more."""
_QUANTILES = (0.05, 0.5, 0.95)

OWN = declare(
    __name__,
    Metric(Section.POLICY, "log_ratio/{q05,q50,q95} ratio/{mean,std,max,q05,q50,q95}", "nats, ratio",
           "moments and quantiles over the batch's tokens, before any clip",
           "0 and 1 on policy; spread within ± 0.5, `ratio/std` at most 1", "grows: lower `learner.lr`, then L"),
    Metric(Section.POLICY, "log_ratio/{q05,q50,q95}@<bin> ratio/{mean,q05,q50,q95}@<bin>", "nats, ratio",
           "the same for tokens of one staleness (0, 1-3, 4-7, 8-15, 16-31, 32-63, 64+)",
           "wider where staler; `ratio/mean@0` is 1 up to 1e-5 in float32", "at 0: as `mismatch/kl`"),
    Metric(Section.POLICY, "mismatch/kl", "nats", "KL(engine, learner) on tokens of staleness 0: arithmetic alone",
           "**exact**: 0 up to rounding, with the built-in engine (float32 1e-11, bfloat16 1e-3); a warning above 1e-2",
           "weights differ, another distribution was sampled, or adapters have dropout"),
    Metric(Section.POLICY, "clip_fraction/{positive,negative}", "share",
           "tokens with A > 0, A < 0 that get no gradient", "the two alike",
           "the objective learns from one side alone"),
    Metric(Section.POLICY, "scale/imbalance", "", "signed over absolute pull of the batch's rows, from -1 to 1",
           "near 0", "negative ones push harder: lower `learner.lr`"),
    Metric(Section.POLICY, "scale/nll_ratio", "ratio",
           "mean negative log-probability of rows with A < 0 over that of A > 0", "near 1"),
)  # fmt: skip


class Diagnostics:
    """Filled by the pass of the first optimizer step, whose policy is that of the step's start; rows that a
    later optimizer step trained first stay empty (NaN)."""

    def __init__(self, batch: TokenBatch, advantages: Tensor) -> None:
        self._batch, self._advantages = batch, advantages
        # in the learner's precision: rounded to float32, a float64 learner would seem to differ from its engine
        self._logp = torch.full(batch.mask.shape, math.nan, dtype=batch.dtype)
        self._pull = torch.full(batch.mask.shape, math.nan, dtype=batch.dtype)

    def note(self, rows: Tensor, passed: ForwardBackwardResult[Metrics]) -> None:
        """What the pass over these rows of the batch gave."""
        inside = self._batch.inside[rows]
        for table, flat in ((self._logp, passed.logp), (self._pull, passed.logp_grad)):
            if flat is not None:
                wide = torch.full(inside.shape, math.nan, dtype=table.dtype)
                wide[inside] = torch.from_numpy(flat).to(table.dtype)
                table[rows] = wide

    def ratio(self) -> Floats | None:
        """[B,T] float32, current over behaviour probability; None without behaviour log-probabilities."""
        if self._batch.logp_behavior is None:
            return None
        return (self._logp - self._batch.logp_behavior).exp().float().numpy()

    def report(self) -> dict[str, float]:
        """* ``ratio/mean``, ``q05``, ``q50``, ``q95`` and ``log_ratio/...``, over all tokens and ``@<bin>`` of
        staleness; ``ratio/std`` and ``ratio/max`` over all tokens;
        * ``mismatch/kl``: K3 estimate of KL(engine || trainer) on tokens of staleness 0, nats;
        * ``clip_fraction/positive``, ``/negative``: share of tokens with A > 0 and A < 0 that the objective gives no
          gradient (clipped or masked);
        * ``scale/imbalance``: sum A l / sum |A| l, l a row's mean negative log-probability (ASymPO, arXiv 2606.03070),
          ``scale/nll_ratio``: mean l of rows with A < 0 over that of rows with A > 0.

        What has no token to speak of is left out.
        """
        noted = self._batch.mask & self._logp.isfinite()
        if self._batch.trained_at is not None:  # what comes back for its late reward is old by design
            noted = noted & (self._batch.trained_at < 0)[:, None]
        if not bool(noted.any()):
            return {}
        return OWN.checked(self._ratios(noted) | self._clipped(noted) | self._scales(noted))

    def _ratios(self, noted: Tensor) -> dict[str, float]:
        batch = self._batch
        if batch.logp_behavior is None:
            return {}
        d = (self._logp[noted].double() - batch.logp_behavior[noted].double()).numpy()
        out = _spread(d, "")
        r = np.exp(np.clip(d, -40, 40))
        out["ratio/std"], out["ratio/max"] = float(r.std()), float(r.max())
        if batch.versions is not None:
            age = (batch.version - batch.versions[noted]).numpy()
            place = np.digitize(age, STALENESS_EDGES) - 1
            for index in np.unique(place):
                out |= _spread(d[place == index], f"@{_bin(int(index))}")
            fresh = d[age == 0]
            if fresh.size:
                out["mismatch/kl"] = float(np.mean(np.expm1(fresh) - fresh))
        return out

    def _clipped(self, noted: Tensor) -> dict[str, float]:
        out = {}
        pull, a = self._pull[noted], self._advantages[noted]
        for name, chosen in (("positive", a > 0), ("negative", a < 0)):
            if bool(chosen.any()):
                out[f"clip_fraction/{name}"] = float((pull[chosen] == 0).double().mean())
        return out

    def _scales(self, noted: Tensor) -> dict[str, float]:
        count = noted.sum(1)
        rows = count > 0
        nll = -torch.where(noted, self._logp, 0.0).sum(1)[rows].double() / count[rows]
        a = torch.where(noted, self._advantages, 0.0).sum(1)[rows].double() / count[rows]
        out = {}
        scale = float((a.abs() * nll).sum())
        if scale > 0:
            out["scale/imbalance"] = float((a * nll).sum()) / scale
        good, bad = nll[a > 0], nll[a < 0]
        if good.numel() and bad.numel() and float(good.mean()) > 0:
            out["scale/nll_ratio"] = float(bad.mean() / good.mean())
        return out


def _spread(d: Floats, suffix: str) -> dict[str, float]:
    out = {f"ratio/mean{suffix}": float(np.exp(np.clip(d, -40, 40)).mean())}
    for q, value in zip(_QUANTILES, np.quantile(d, _QUANTILES), strict=True):
        out[f"log_ratio/q{round(100 * q):02d}{suffix}"] = float(value)
        out[f"ratio/q{round(100 * q):02d}{suffix}"] = float(np.exp(np.clip(value, -40, 40)))
    return out


def _bin(index: int) -> str:
    low = STALENESS_EDGES[index]
    if index + 1 == len(STALENESS_EDGES):
        return f"{low}+"
    high = STALENESS_EDGES[index + 1] - 1
    return f"{low}" if low == high else f"{low}-{high}"
