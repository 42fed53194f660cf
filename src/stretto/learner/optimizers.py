"""The optimizers of policy and critic, held together: what is stepped, checked, taken back and saved as one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import Tensor

from stretto.config.learner import LearnerConfig
from stretto.kernel.errors import WeightsError
from stretto.learner.optimizer import Optimizer
from stretto.learner.scores import Scorer


class Optimizers:
    """``policy``, and ``critic`` where there is one."""

    def __init__(self, scorer: Scorer, config: LearnerConfig) -> None:
        adam = partial(Optimizer, betas=config.betas, eps=config.eps, max_grad_norm=config.max_grad_norm)
        self.policy = adam(scorer.policy_parameters(), weight_decay=config.weight_decay)
        self.critic = None if scorer.critic is None else adam(scorer.critic_parameters(), weight_decay=0.0)
        self._named = {"policy.": self.policy} | ({} if self.critic is None else {"critic.": self.critic})

    def zero_grad(self) -> None:
        """Forget gradients."""
        for each in self._named.values():
            each.zero_grad()

    def grad_norms(self) -> tuple[float, float]:
        """Global norms of the policy's and the critic's gradient (0 without one)."""
        return self.policy.grad_norm(), 0.0 if self.critic is None else self.critic.grad_norm()

    def bad_gradient(self) -> str | None:
        """Name of the first parameter whose gradient isn't finite."""
        return next((name for each in self._named.values() if (name := each.bad_gradient())), None)

    def check_finite(self, version: int) -> None:
        """``WeightsError`` if the update of ``version`` left a parameter that isn't finite."""
        if not all(each.finite() for each in self._named.values()):
            raise WeightsError(
                f"the update of version {version} made weights non-finite from a finite gradient: lower learner.lr"
            )

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments (``policy.weight.<name>``, ``critic.exp_avg.<name>``, ...), the live tensors."""
        return {prefix + name: t for prefix, each in self._named.items() for name, t in each.tensors().items()}

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of ``tensors``."""
        return {name: t.clone() for name, t in self.tensors().items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy back what ``tensors`` or ``snapshot`` gave. ``KeyError`` or ``ValueError`` if it is of another model."""
        for prefix, each in self._named.items():
            each.restore({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})


def weight_names(tensors: Mapping[str, Tensor]) -> set[str]:
    """Those of ``Optimizers.tensors`` that are weights, not moments."""
    return {name for name in tensors if name.startswith(("policy.weight.", "critic.weight."))}
