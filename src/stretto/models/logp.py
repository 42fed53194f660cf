"""Log-probabilities of sampled tokens: the language-model head runs at policy positions only.

``[B,T,V]`` logits never exist. The trunk's hidden states are gathered where the next token is the policy's, the
head runs on those in chunks, and log-softmax is float32 or wider. Small logits are kept for the backward pass;
large ones are computed again there.

The distribution is the tempered one over the full vocabulary. Under top-k or top-p sampling the engine's recorded
log-probability is renormalised over the kept tokens and the learner's isn't, so their ratio is below 1 by the mass
that was cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stretto.errors import DataError

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


class _TokenLogp(torch.autograd.Function):
    """hidden [n,H], weight [V,H], bias [V] or None, ids [n,J] -> logp [n,J], entropy [n] (entropy: no gradient)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, scale: float, chunk: int
    ) -> tuple[Tensor, Tensor]:
        n = hidden.shape[0]
        kept: list[Tensor] = []
        logps, entropies = [], []
        for start in range(0, max(n, 1), chunk):
            rows = slice(start, start + chunk)
            logq = _log_softmax(hidden[rows], weight, bias, scale)
            logps.append(logq.gather(1, ids[rows]))
            p = logq.exp()
            entropies.append(-(p * logq).sum(1))
            if n <= chunk:
                kept.append(p)
        ctx.save_for_backward(hidden, weight, bias, ids, *kept)
        ctx.scale, ctx.chunk = scale, chunk
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logps), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, *kept = ctx.saved_tensors
        chunk, scale = ctx.chunk, ctx.scale
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            p = kept[0] if kept else _log_softmax(hidden[rows], weight, bias, scale).exp_()
            g = grad[rows] * scale
            d = p * -g.sum(1, keepdim=True)  # a new tensor: the graph may be walked twice
            d.scatter_add_(1, ids[rows], g)
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


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    logits = nn.functional.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if scale != 1.0:
        logits = logits * scale
    return torch.log_softmax(logits, 1)


def token_logp(
    hidden: Tensor, weight: Tensor, ids: Tensor, bias: Tensor | None = None, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability [n] of ``ids`` [n] and entropy [n] (nats, detached) of softmax((hidden W^T + b) / temperature).

    ``hidden`` [n,H], ``weight`` [V,H]. ``ids`` [n,J]: several tokens a position, repeated ones too, from one softmax;
    the log-probabilities are [n,J] then. Gradient through ``hidden``, ``weight`` and ``bias``.
    """
    row_bytes = weight.shape[0] * max(weight.element_size(), 4)
    n = hidden.shape[0]
    chunk = max(n, 1) if n * row_bytes <= LOGITS_BYTES else max(CHUNK_BYTES // row_bytes, 1)
    with torch.autocast(hidden.device.type, enabled=False):
        several = ids[:, None] if ids.ndim == 1 else ids
        logp, entropy = _TokenLogp.apply(hidden, weight, bias, several, 1.0 / temperature, chunk)
    return logp.view(ids.shape), entropy


def trunk_of(model: Any) -> nn.Module:
    """The part of a causal LM that makes hidden states."""
    trunk = getattr(model, model.base_model_prefix, None)
    if not isinstance(trunk, nn.Module):
        raise DataError(f"{type(model).__name__}: no trunk called {model.base_model_prefix!r}; not supported")
    return trunk


def hidden_states(trunk: Any, tokens: Tensor) -> Tensor:
    """Hidden states [B,T,H] of right-padded ``tokens`` [B,T]. Attention is causal, so the padding can't matter."""
    out: Tensor = trunk(input_ids=tokens, use_cache=False, return_dict=True).last_hidden_state
    return out


def check_head(model: Any) -> None:
    """``DataError`` unless the model's logits are its head applied to its hidden states (no soft-capping, no scale):
    with anything else the learner's log-probabilities would be wrong."""
    head = model.get_output_embeddings()
    vocabulary = head.weight.shape[0]
    ids = (torch.arange(8) * 7919 % vocabulary)[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        ours = head(hidden_states(trunk_of(model), ids))
    if not torch.allclose(logits, ours, rtol=1e-3, atol=1e-3):
        raise DataError(
            f"{type(model).__name__} transforms its logits after the head (soft-capping or a scale): not supported"
        )
