"""Log-probabilities of sampled tokens: the language-model head runs at policy positions only.

``[B,T,V]`` logits never exist. The trunk's hidden states are gathered where the next token is the policy's, the
head runs on those in chunks, and log-softmax is float32 or wider. Small logits are kept for the backward pass;
large ones are computed again there.

The distribution is the one that was sampled from: at the token's own temperature, and under top-k or top-p over the
tokens that the sampler kept, which the engine records (``support``). So the ratio of a policy with itself is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from stretto.kernel.errors import DataError
from stretto.models.protocols import Context

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGITS_BYTES = 2**28
"""Logits up to this size stay in memory for the backward pass."""
CHUNK_BYTES = 2**25
"""Larger ones are made in chunks of this size."""


def policy_positions(mask: Tensor) -> Tensor:
    """Flat indices [n] of the policy tokens of ``mask`` [B,T]. ``DataError`` if one has nothing before it."""
    if mask.shape[1] and bool(mask[:, 0].any()):
        row = int(mask[:, 0].nonzero()[0])
        raise DataError(f"row {row}: its first token is a policy token, but nothing precedes it to predict it from")
    return mask.flatten().nonzero().squeeze(1)


@dataclass(frozen=True, slots=True)
class Transform:
    """What a model does to its logits after the head: z -> cap tanh(scale z / cap), or scale z without ``cap``."""

    scale: float = 1.0
    cap: float | None = None

    def of(self, logits: Tensor) -> Tensor:
        """The model's logits, of the head's."""
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


PLAIN = Transform()


@dataclass(frozen=True, slots=True)
class _Form:
    """What lies between the head and the log-softmax: ``transform``, then ``inverse`` temperature (one, or [n,1]), then
    ``support`` [n,W] uint8."""

    transform: Transform
    inverse: float | Tensor
    support: Tensor | None

    def of(self, rows: slice) -> _Form:
        """That of these positions."""
        inverse = self.inverse[rows] if isinstance(self.inverse, Tensor) else self.inverse
        return _Form(self.transform, inverse, None if self.support is None else self.support[rows])

    def log_softmax(self, logits: Tensor) -> Tensor:
        """[n,V] of the head's logits; -inf outside the support."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = self.transform.of(logits)
        if isinstance(self.inverse, Tensor) or self.inverse != 1.0:
            logits = logits * self.inverse
        if self.support is not None:
            logits = logits.masked_fill(~unpacked(self.support, logits.shape[1]), float("-inf"))
        return torch.log_softmax(logits, 1)

    def slope(self, logits: Tensor) -> Tensor | float:
        """Derivative of what enters the softmax by the head's logits."""
        scale, cap = self.transform.scale, self.transform.cap
        if cap is None:
            return self.inverse * scale
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return (1 - torch.tanh(logits * (scale / cap)).square()) * self.inverse * scale


def unpacked(support: Tensor, vocabulary: int) -> Tensor:
    """[n,V] bool of ``support`` [n,W] uint8: token v is bit v % 8 of byte v // 8."""
    if support.shape[1] * 8 < vocabulary:
        raise DataError(
            f"the sampler's support covers {support.shape[1] * 8} tokens, the model has {vocabulary}: they are of "
            "different models"
        )
    bits = (support[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=support.device)) & 1
    return bits.bool().flatten(1)[:, :vocabulary]


class _Kept(Context, Protocol):
    form: _Form
    chunk: int


class _TokenLogp(torch.autograd.Function):
    """hidden [n,H], weight [V,H], bias [V] or None, ids [n,J] -> logp [n,J], entropy [n] (entropy: no gradient)."""

    @staticmethod
    def forward(
        ctx: _Kept, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, form: _Form, chunk: int
    ) -> tuple[Tensor, Tensor]:
        n = hidden.shape[0]
        kept: list[Tensor] = []
        logps, entropies = [], []
        for start in range(0, max(n, 1), chunk):
            rows = slice(start, start + chunk)
            logq = form.of(rows).log_softmax(_logits(hidden[rows], weight, bias))
            logps.append(logq.gather(1, ids[rows]))
            p = logq.exp()
            if form.support is not None:
                logq = logq.clamp_(min=-1e30)  # 0 * -inf would be NaN
            entropies.append(-(p * logq).sum(1))
            if n <= chunk and form.transform.cap is None:
                kept.append(p)
        ctx.save_for_backward(hidden, weight, bias, ids, *kept)
        ctx.form, ctx.chunk = form, chunk
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logps), entropy

    @staticmethod
    def backward(ctx: _Kept, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, *kept = ctx.saved_tensors
        chunk = ctx.chunk
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            form: _Form = ctx.form.of(rows)
            logits = None if kept else _logits(hidden[rows], weight, bias)
            p = kept[0] if logits is None else form.log_softmax(logits).exp_()
            g = grad[rows]
            if form.transform.cap is None:
                g = g * (form.inverse * form.transform.scale)
            d = p * -g.sum(1, keepdim=True)  # a new tensor: the graph may be walked twice
            d.scatter_add_(1, ids[rows], g)
            if form.transform.cap is not None and logits is not None:
                d *= form.slope(logits)
            d = d.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = d @ weight.to(hidden.dtype)
            if grad_weight is not None:
                if hidden.dtype == weight.dtype:
                    grad_weight.addmm_(d.T, hidden[rows])
                else:
                    grad_weight += d.T @ hidden[rows]
            if grad_bias is not None:
                grad_bias += d.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return nn.functional.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))


def token_logp(
    hidden: Tensor, weight: Tensor, ids: Tensor, bias: Tensor | None = None, temperature: float | Tensor = 1.0,
    support: Tensor | None = None, transform: Transform = PLAIN,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-probability [n] of ``ids`` [n] and entropy [n] (nats, detached) of softmax(f(hidden W^T + b) / temperature),
    f being ``transform``.

    ``hidden`` [n,H], ``weight`` [V,H]. ``ids`` [n,J]: several tokens a position, repeated ones too, from one softmax;
    the log-probabilities are [n,J] then. ``temperature``: one, or [n], one a position. ``support`` [n,W] uint8
    (``unpacked``): the tokens among which the softmax runs; None: all. Gradient through ``hidden``, ``weight`` and
    ``bias``.
    """
    row_bytes = weight.shape[0] * max(weight.element_size(), 4)
    n = hidden.shape[0]
    chunk = max(n, 1) if n * row_bytes <= LOGITS_BYTES else max(CHUNK_BYTES // row_bytes, 1)
    inverse: float | Tensor = 1.0 / temperature
    if isinstance(inverse, Tensor):
        inverse = inverse[:, None].to(torch.float64 if hidden.dtype == torch.float64 else torch.float32)
    with torch.autocast(hidden.device.type, enabled=False):
        several = ids[:, None] if ids.ndim == 1 else ids
        logp, entropy = _TokenLogp.apply(hidden, weight, bias, several, _Form(transform, inverse, support), chunk)
    return logp.view(ids.shape), entropy


def trunk_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a causal LM that makes hidden states."""
    trunk: PreTrainedModel | None = getattr(model, model.base_model_prefix, None)
    if not isinstance(trunk, nn.Module):
        raise DataError(f"{type(model).__name__}: no trunk called {model.base_model_prefix!r}; not supported")
    return trunk


def hidden_states(trunk: nn.Module, tokens: Tensor) -> Tensor:
    """Hidden states [B,T,H] of right-padded ``tokens`` [B,T]. Attention is causal, so the padding can't matter."""
    out: Tensor = trunk(input_ids=tokens, use_cache=False, return_dict=True).last_hidden_state
    return out
