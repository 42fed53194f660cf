"""Which tokens the trunk must read, each distinct beginning once.

The rows of a group begin with the same prompt, and short answers often go on alike. A position's hidden state depends
on the tokens up to it and on nothing else, so each distinct prompt is read once, and on top of it each distinct
continuation once. The gradient flows through both. With groups of 8 and short answers this is two to five times less
work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORTH = 0.85
"""Share prompts when that leaves at most this share of the tokens."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """G prompts of up to P tokens, and C' continuations of up to C tokens, each on top of one prompt.

    ``ids`` and ``positions`` [N]: the tokens to read, prompts first, without padding. ``prompt_length`` [G];
    ``prompt`` [C']: the prompt of each continuation. ``shape``: (G, P, C', C). ``cells`` [G*P + C'*C]: the token in
    each cell of the padded layouts (padding holds token 0); ``place`` [N]: the cell of each token. ``wanted`` [n]:
    the token whose hidden state predicts each policy token, in row-major order.
    """

    ids: Tensor
    positions: Tensor
    prompt_length: Tensor
    prompt: Tensor
    shape: tuple[int, int, int, int]
    cells: Tensor
    place: Tensor
    wanted: Tensor


def distinct(rows: Ints) -> tuple[Ints, Ints]:
    """(index of the first of each distinct row, which of them each row is), in order of appearance."""
    seen: dict[bytes, int] = {}
    firsts: list[int] = []
    which = np.empty(len(rows), np.int64)
    for i, row in enumerate(np.ascontiguousarray(rows)):
        k = seen.setdefault(row.tobytes(), len(seen))
        if k == len(firsts):
            firsts.append(i)
        which[i] = k
    return np.array(firsts, np.int64), which


def plan(tokens: Tensor, mask: Tensor) -> Plan | None:
    """How to read ``tokens`` [B,T] where policy tokens are ``mask``; None if there are none. Prompts (what comes
    before the first policy token) are shared where that saves enough; otherwise each whole row is one "prompt"."""
    policy = mask.numpy()
    live = policy.any(1)
    if not live.any():
        return None
    read, policy = tokens.numpy()[live], policy[live]
    first = policy.argmax(1)
    last = policy.shape[1] - 1 - policy[:, ::-1].argmax(1)
    shared = _plan(read, policy, first, last)
    if len(shared.ids) <= WORTH * int(last.sum()):
        return shared
    return _plan(read, policy, last, last)


def _plan(tokens: Ints, policy: NDArray[np.bool_], first: Ints, last: Ints) -> Plan:
    """``first`` [B]: how much of each row counts as its prompt; ``last``: how much of it is read at all."""
    columns = np.arange(tokens.shape[1])
    width, after = int(first.max()), int((last - first).max())
    heads = np.where(columns[:width] < first[:, None], tokens[:, :width], -1)
    chosen, prompt = distinct(heads)
    at = first[:, None] + np.arange(after)
    tails = np.where(at < last[:, None], np.take_along_axis(tokens, at.clip(max=tokens.shape[1] - 1), 1), -1)
    kept, tail = distinct(np.concatenate([prompt[:, None], tails], 1)) if after else (chosen[:0], prompt)
    heads, tails = heads[chosen], tails[kept]
    filled = np.concatenate([heads.ravel(), tails.ravel()])
    (place,) = np.nonzero(filled >= 0)
    cells = np.zeros(len(filled), np.int64)
    cells[place] = np.arange(len(place))
    prompt_length = first[chosen]
    positions = np.concatenate(
        [np.tile(columns[:width], len(heads)), (prompt_length[prompt[kept]][:, None] + np.arange(after)).ravel()]
    )
    row, column = policy.nonzero()
    column -= 1  # the token before it predicts it
    beyond = column - first[row]
    cell = np.where(beyond < 0, prompt[row] * width + column, heads.size + tail[row] * after + beyond)
    return Plan(
        ids=torch.from_numpy(filled[place]),
        positions=torch.from_numpy(positions[place]),
        prompt_length=torch.from_numpy(prompt_length),
        prompt=torch.from_numpy(prompt[kept]),
        shape=(len(heads), width, len(tails), after),
        cells=torch.from_numpy(cells),
        place=torch.from_numpy(place),
        wanted=torch.from_numpy(cells[cell]),
    )
