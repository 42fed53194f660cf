"""A-3PO."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.decoupled_ppo import DecoupledPPO
from stretto.objectives.ratio import Interpolation, proxy_logp, proxy_share
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("a3po")
@dataclass(frozen=True, kw_only=True)
class A3PO(DecoupledPPO):
    """Decoupled PPO whose proximal policy is interpolated between behaviour and current, without a forward pass:
    log pi_prox = lb + alpha (logp - lb), alpha = clip((v - 1 - v_b) / (v - v_b), 0, 1) by the token's staleness v - v_b
    (A-3PO, arXiv 2512.06547).

    ``interpolation``: ``log-linear`` (default) or ``linear``, log((1 - alpha) e^lb + alpha e^logp). Fresh tokens (alpha
    0) have PPO's loss; log-linear, rho = r^(1 - alpha), so the clip only moves to (1 +- e)^(1 / (1 - alpha)) of r: the
    older a token, the further its ratio may go. Needs ``batch.versions`` and ``batch.version``.
    """

    interpolation: Interpolation = "log-linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.reference == "proximal", "the reference is interpolated: leave 'reference' alone")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs - {"proximal"}

    def anchor(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """The interpolated policy [B,T], detached."""
        behavior, versions = batch.need("logp_behavior", "versions")
        return proxy_logp(logp, behavior, proxy_share(versions, batch.version), self.interpolation)
