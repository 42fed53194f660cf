"""AdamW with clipping by global norm."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Optimizer:
    """AdamW over named parameters. Weight decay on matrices only."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_grad_norm: float,
    ) -> None:
        self.parameters = dict(parameters)
        self._max_norm = max_grad_norm
        matrices = [p for p in self.parameters.values() if p.ndim >= 2]
        others = [p for p in self.parameters.values() if p.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=0.0, betas=betas, eps=eps, fused=True
        )

    def zero_grad(self) -> None:
        """Forget gradients."""
        self._adam.zero_grad(set_to_none=True)

    def grad_norm(self) -> float:
        """Global norm of the gradient; inf or NaN if any element is."""
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        if not grads:
            return 0.0
        norm = float(torch.stack(torch._foreach_norm(grads)).norm())
        if math.isfinite(norm):
            return norm
        # squares of float32 overflow long before the elements do
        return math.sqrt(sum(float(g.double().square().sum()) for g in grads))

    def bad_gradient(self) -> str | None:
        """Name of the first parameter whose gradient has a non-finite element."""
        for name, p in self.parameters.items():
            if p.grad is not None and not bool(p.grad.isfinite().all()):
                return name
        return None

    def step(self, lr: float, grad_norm: float) -> None:
        """Clip to the maximal norm and update."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        shrink = self._max_norm / (grad_norm + 1e-6)  # as torch.nn.utils.clip_grad_norm_
        if shrink < 1:
            grads = [p.grad for p in self.parameters.values() if p.grad is not None]
            torch._foreach_mul_(grads, shrink)
        self._adam.step()

    def finite(self) -> bool:
        """True if every parameter is finite."""
        norms = torch.stack(torch._foreach_norm([p.detach() for p in self.parameters.values()]))
        if bool(norms.isfinite().all()):
            return True
        return all(bool(p.isfinite().all()) for p in self.parameters.values())

    def tensors(self) -> dict[str, Tensor]:
        """Parameters (``weight.<name>``) and moments (``exp_avg.<name>``, ``exp_avg_sq.<name>``, ``step.<name>``),
        the live tensors. Moments exist after the first update."""
        out: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            out[f"weight.{name}"] = p.detach()
            for kind, value in self._adam.state.get(p, {}).items():
                out[f"{kind}.{name}"] = value
        return out

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy back what ``tensors`` gave; moments that it didn't hold are forgotten. ``KeyError`` names a missing
        weight, ``ValueError`` one of another shape."""
        with torch.no_grad():
            for name, p in self.parameters.items():
                weight = tensors[f"weight.{name}"]
                if weight.shape != p.shape:
                    raise ValueError(f"{name} is {list(weight.shape)}, expected {list(p.shape)}")
                p.copy_(weight)
                kinds = [k for k in ("step", "exp_avg", "exp_avg_sq") if f"{k}.{name}" in tensors]
                self._adam.state[p] = {k: tensors[f"{k}.{name}"].clone() for k in kinds}
                if not kinds:
                    del self._adam.state[p]
