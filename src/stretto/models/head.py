"""The head of a policy: from hidden states to log-probabilities, with what the model does to its logits after it and
with an adapter on it, or on the embedding that it is tied to."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from stretto.kernel.errors import DataError
from stretto.models.logp import PLAIN, Transform, token_logp, trunk_of
from stretto.models.lora import ADAPTER, tied

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput

    from stretto.models.protocols import AdaptedEmbedding

REALISTIC = 50.0
"""Largest logit of the numeric check: caps show only where logits are as large as those of a trained model."""


class Head:
    """The head of ``model`` (a causal LM, adapters attached).

    ``transform``: what ``head_transform`` found of the model before adapters were attached.
    """

    def __init__(self, model: PreTrainedModel, transform: Transform) -> None:
        self._layer, self._transform = model.get_output_embeddings(), transform
        embedding = model.get_input_embeddings()
        adapted = hasattr(embedding, "lora_embedding_A") and tied(model)
        self._shared = cast("AdaptedEmbedding", embedding) if adapted else None

    @property
    def weight(self) -> Tensor:
        """[V,H], without adapter."""
        weight: Tensor = self._layer.weight
        return weight

    def logp(
        self, hidden: Tensor, ids: Tensor, temperature: float | Tensor, support: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy (``token_logp``) of ``ids`` [n,J] after ``hidden`` [n,H]."""
        bias = getattr(self._layer, "bias", None)
        weight = self.weight
        extra = self._low_rank(hidden)
        if extra is not None:  # h W^T + s (h A^T) B^T as one product: the logits still never exist as a whole
            hidden = torch.cat([hidden, extra[0].to(hidden.dtype)], 1)
            weight = torch.cat([weight, extra[1]], 1)
        return token_logp(hidden, weight, ids, bias, temperature, support, self._transform)

    def logits(self, hidden: Tensor) -> Tensor:
        """[n,V] of ``hidden`` [n,H], as the model gives them."""
        logits: Tensor = nn.functional.linear(hidden, self.weight, getattr(self._layer, "bias", None))
        if (extra := self._low_rank(hidden)) is not None:
            logits = logits + extra[0] @ extra[1].t()
        return self._transform.of(logits)

    def _low_rank(self, hidden: Tensor) -> tuple[Tensor, Tensor] | None:
        """s h A^T [n,r] and B [V,r] of the head's adapter; None without one."""
        layer = self._layer
        if self._shared is not None:  # the embedding's update is s (B A)^T
            a, b = self._shared.lora_embedding_A[ADAPTER], self._shared.lora_embedding_B[ADAPTER]
            return hidden @ b.to(hidden.dtype) * self._shared.scaling[ADAPTER], a.t()
        if not hasattr(layer, "lora_A"):
            return None
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        return layer.lora_dropout[ADAPTER](hidden) @ a.t().to(hidden.dtype) * layer.scaling[ADAPTER], b


def head_transform(model: PreTrainedModel) -> Transform:
    """What the model does to its logits after its head, by its configuration; checked against the model itself, with
    small logits and with realistic ones. ``DataError`` if its logits are anything else: the learner's
    log-probabilities would be wrong."""
    config, name = model.config, type(model).__name__
    try:
        head: nn.Linear = model.get_output_embeddings()
        trunk = trunk_of(model)
        vocabulary = head.weight.shape[0]
        trunk.get_input_embeddings()
    except (AttributeError, NotImplementedError) as error:
        raise DataError(f"{name}: it isn't a trunk with a head; not supported") from error
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    transform = Transform(scale, None if not cap else float(cap))
    ids = (torch.arange(8) * 7919 % vocabulary)[None]
    factor = 1.0
    for _ in range(2):
        ours, theirs = _both(model, trunk, head, ids, factor)
        if not torch.allclose(theirs, transform.of(ours), rtol=1e-3, atol=1e-3):
            raise DataError(f"{name} transforms its logits after the head in a way that isn't known: not supported")
        factor = REALISTIC / max(float(ours.abs().max()), 1e-6)
    return PLAIN if transform == PLAIN else transform


@torch.no_grad()
def _both(
    model: PreTrainedModel, trunk: nn.Module, head: nn.Linear, ids: Tensor, factor: float
) -> tuple[Tensor, Tensor]:
    """The head's logits of hidden states times ``factor``, and the model's."""
    seen: list[Tensor] = []

    def enlarge(module: nn.Module, given: object, output: BaseModelOutput) -> BaseModelOutput:
        if output.last_hidden_state is None:
            raise TypeError("its trunk gives no hidden states")
        output.last_hidden_state = output.last_hidden_state * factor
        seen.append(output.last_hidden_state)
        return output

    for part in (trunk, getattr(trunk, "decoder", None)):  # OPT's model calls the decoder inside its trunk
        if seen or part is None:
            break
        hook = part.register_forward_hook(enlarge)
        try:
            logits = model(input_ids=ids, use_cache=False, return_dict=True).logits
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{type(model).__name__}: {error}; not supported") from error
        finally:
            hook.remove()
    if len(seen) != 1 or seen[0].shape[-1] != head.weight.shape[1]:
        raise DataError(f"{type(model).__name__} doesn't apply its head to the states of its trunk: not supported")
    return head(seen[0]).float(), logits.float()
