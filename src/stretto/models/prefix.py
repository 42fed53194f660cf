"""Hidden states at the positions that predict policy tokens, computing each distinct prompt once.

The rows of a group begin with the same prompt. Its hidden states and keys and values are the same in every row, so
the trunk reads each distinct prompt once (keeping keys and values) and then the rest of each row on top of them.
The gradient flows through both. With groups of 8 and short answers this is two to five times less work.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stretto.models.logp import hidden_states

WORTH = 0.85
"""Share prompts when that leaves at most this share of the tokens."""


@dataclass(frozen=True)
class Plan:
    """``prompts`` [G,P] right padded, ``prompt`` [B] each row's, ``first`` [B] its length (the column of the first
    policy token), ``rest`` [B,C] the tokens after it, right padded; ``index`` [n]: where the hidden state of each
    wanted position is in [G*P + B*C]."""

    prompts: Tensor
    prompt: Tensor
    first: Tensor
    rest: Tensor
    index: Tensor

    @property
    def tokens(self) -> int:
        """Tokens that the trunk reads."""
        return self.prompts.numel() + self.rest.numel()


def plan(tokens: Tensor, mask: Tensor) -> Plan | None:
    """How to share the prompts of ``tokens`` [B,T] (policy tokens: ``mask``); None if there is nothing to score."""
    live = mask.any(1)
    if not bool(live.any()):
        return None
    tokens, mask = tokens[live], mask[live]
    columns = torch.arange(tokens.shape[1])
    first = mask.to(torch.uint8).argmax(1)
    last = torch.where(mask, columns, 0).amax(1)
    width = int(first.max())
    prompts, prompt = torch.unique(
        torch.where(columns[:width] < first[:, None], tokens[:, :width], -1), dim=0, return_inverse=True
    )
    after = int((last - first).max())
    place = first[:, None] + torch.arange(after)
    rest = torch.where(place < last[:, None], tokens.gather(1, place.clamp(max=tokens.shape[1] - 1)), 0)
    row, column = mask.nonzero(as_tuple=True)
    offset = column - 1 - first[row]  # -1: the prompt's last token predicts it
    in_prompt = prompt[row] * width + column - 1
    in_rest = prompts.numel() + row * after + offset
    return Plan(prompts.clamp(min=0), prompt, first, rest, torch.where(offset < 0, in_prompt, in_rest))


def shared_hidden(trunk: Any, p: Plan) -> Tensor:
    """Hidden states [n,H] of the wanted positions."""
    if p.rest.shape[1] == 0:
        return hidden_states(trunk, p.prompts).flatten(0, 1).index_select(0, p.index)
    from transformers import DynamicCache

    # transformers renamed the argument in 5.x
    name = "cache" if "cache" in inspect.signature(trunk.forward).parameters else "past_key_values"
    cache = DynamicCache()
    head = trunk(input_ids=p.prompts, use_cache=True, return_dict=True, **{name: cache}).last_hidden_state
    cache.batch_select_indices(p.prompt)
    rows, width = p.rest.shape
    steps = torch.arange(width)
    mask = torch.cat(
        [
            (torch.arange(p.prompts.shape[1]) < p.first[:, None])[:, None].expand(-1, width, -1),
            (steps <= steps[:, None]).expand(rows, -1, -1),
        ],
        2,
    )
    tail = trunk(
        input_ids=p.rest,
        attention_mask=mask[:, None],
        position_ids=p.first[:, None] + steps,
        use_cache=True,
        return_dict=True,
        **{name: cache},
    ).last_hidden_state
    return torch.cat([head.flatten(0, 1), tail.flatten(0, 1)]).index_select(0, p.index)


def plain_hidden(trunk: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    """The same without sharing."""
    row, column = mask.nonzero(as_tuple=True)
    hidden = hidden_states(trunk, tokens[:, :-1])
    return hidden.flatten(0, 1).index_select(0, row * (tokens.shape[1] - 1) + column - 1)


def can_share(trunk: Any) -> bool:
    """True if the trunk gives the same hidden states with shared prompts: tried on a small example. Models with
    sliding windows, recurrent state or no key-value cache don't, and compute every row in full."""
    config = trunk.config
    if getattr(config, "sliding_window", None) or set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return False
    vocabulary = trunk.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(32).view(4, 8) * 7919 % vocabulary
    tokens[1, :4], tokens[3, :3] = tokens[0, :4], tokens[2, :3]
    columns = torch.arange(8)
    mask = (columns >= torch.tensor([[4], [4], [3], [3]])) & (columns < torch.tensor([[8], [6], [7], [8]]))
    p = plan(tokens, mask)
    assert p is not None
    with torch.no_grad():
        try:
            shared = shared_hidden(trunk, p)
        except (TypeError, ValueError, AttributeError, RuntimeError):
            return False
        return torch.allclose(shared, plain_hidden(trunk, tokens, mask), rtol=1e-3, atol=1e-3)


def policy_hidden(trunk: Any, tokens: Tensor, mask: Tensor, share: bool) -> Tensor:
    """Hidden states [n,H] that predict the n policy tokens of ``mask`` [B,T], in row-major order."""
    p = plan(tokens, mask) if share else None
    if p is not None and p.tokens <= WORTH * tokens[:, :-1].numel():
        return shared_hidden(trunk, p)
    return plain_hidden(trunk, tokens, mask)
