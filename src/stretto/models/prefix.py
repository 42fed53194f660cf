"""Hidden states at the positions that predict policy tokens, by the fastest way that a trunk allows.

Llama-like float32 trunks: the packed forward pass. Others whose key-value cache takes it: prompts first, then the
continuations on top of the cache. The rest (sliding windows, recurrent state): every row in full.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from stretto.models.llama_like import as_llama_trunk
from stretto.models.logp import hidden_states
from stretto.models.packed import PackedTrunk
from stretto.models.plan import Plan, plan
from stretto.models.reach import description_of, window_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def shared_hidden(trunk: nn.Module, p: Plan) -> Tensor:
    """Hidden states [n,H] of the wanted tokens, with the trunk's own cache between prompts and continuations."""
    prompts, width, rows, after = p.shape
    head_ids, tail_ids = p.ids[p.cells].split([prompts * width, rows * after])
    if not rows:
        states = hidden_states(trunk, head_ids.view(prompts, width)).flatten(0, 1)
        return states.index_select(0, p.place[p.wanted])
    from transformers import DynamicCache

    # transformers renamed the argument in 5.x
    name = "cache" if "cache" in inspect.signature(trunk.forward).parameters else "past_key_values"
    cache = DynamicCache()
    shared: dict[str, object] = {"use_cache": True, "return_dict": True, name: cache}
    head = trunk(input_ids=head_ids.view(prompts, width), **shared).last_hidden_state
    cache.batch_select_indices(p.prompt)
    reach, steps = p.prompt_length[p.prompt], torch.arange(after)
    before = (torch.arange(width) < reach[:, None])[:, None].expand(-1, after, -1)
    mask = torch.cat([before, (steps <= steps[:, None]).expand(rows, -1, -1)], 2)
    tail = trunk(
        input_ids=tail_ids.view(rows, after),
        attention_mask=mask[:, None],
        position_ids=reach[:, None] + steps,
        **shared,
    ).last_hidden_state
    return torch.cat([head.flatten(0, 1), tail.flatten(0, 1)]).index_select(0, p.place[p.wanted])


def plain_hidden(trunk: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """Hidden states [n,H] that predict the n policy tokens of ``mask`` [B,T]; every row in full, up to the last of
    them."""
    row, column = mask.nonzero(as_tuple=True)
    width = int(column.max()) if len(column) else tokens.shape[1] - 1
    hidden = hidden_states(trunk, tokens[:, :width])
    return hidden.flatten(0, 1).index_select(0, row * width + column - 1)


class PolicyStates:
    """Hidden states [n,H] that predict the n policy tokens of ``mask`` [B,T], in row-major order.

    ``llama_like``: ``llama_like.unsupported`` found nothing. ``share`` False: every row in full, in the trunk's own
    order of sums. Each faster way is tried on a small example first and taken only if it gives the same states.
    """

    def __init__(self, trunk: PreTrainedModel, *, llama_like: bool, share: bool) -> None:
        self._trunk = trunk
        packed = PackedTrunk(as_llama_trunk(trunk)) if share and llama_like else None
        description = description_of(trunk.config)
        windowed = window_of(description) or (set(description.get("layer_types") or ()) - {"full_attention"})
        self.way = "plain"
        self._read: Callable[[Plan], Tensor]
        if packed is not None and agrees(packed, trunk):
            self.way, self._read = "packed", packed
        elif share and not windowed and agrees(self._cached, trunk):
            self.way, self._read = "cached", self._cached

    def _cached(self, p: Plan) -> Tensor:
        return shared_hidden(self._trunk, p)

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        p = None if self.way == "plain" else plan(tokens, mask)
        return plain_hidden(self._trunk, tokens, mask) if p is None else self._read(p)


def agrees(read: Callable[[Plan], Tensor], trunk: PreTrainedModel) -> bool:
    """True if ``read`` gives the trunk's own hidden states on a small example with shared prompts."""
    vocabulary = cast("nn.Embedding", trunk.get_input_embeddings()).weight.shape[0]
    tokens = torch.arange(32).view(4, 8) * 7919 % vocabulary
    tokens[1, :4], tokens[3, :3] = tokens[0, :4], tokens[2, :3]
    columns = torch.arange(8)
    mask = (columns >= torch.tensor([[4], [4], [3], [3]])) & (columns < torch.tensor([[8], [6], [7], [8]]))
    p = plan(tokens, mask)
    assert p is not None
    with torch.no_grad():
        try:
            shared = read(p)
        except (TypeError, ValueError, AttributeError, RuntimeError):
            return False
        return torch.allclose(shared, plain_hidden(trunk, tokens, mask), rtol=1e-3, atol=1e-3)
