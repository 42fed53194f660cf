"""Training forward pass of Llama-like trunks over a ``Plan``: no padding outside attention, few passes over memory.

The modules of the Transformers trunk are used as they stand (its linears may carry LoRA adapters); norms, rotation,
gating and short attention have backward passes of their own that keep less and touch memory less often. What follows
the last layer's keys and values is computed only for the tokens whose hidden states are wanted.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.models.plan import Plan
from stretto.models.protocols import Attention, Context, LlamaTrunk, Norm

SHORT = 128
"""Sequences up to this length attend by plain matrix products, which beat the flash kernel there on a CPU."""
SHORT_SCORES = 2**24
"""... as long as there are no more scores than this in a layer."""


class _Scaled(Context, Protocol):
    eps: float
    scale: float


class _RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight over the last dimension; keeps x alone."""

    @staticmethod
    def forward(ctx: _Scaled, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    @staticmethod
    def backward(ctx: _Scaled, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        width = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(width).add_(ctx.eps).rsqrt_()
        normed = x * scale
        product = grad * normed
        along = (product @ weight).div_(width).unsqueeze(-1)
        grad_x = (grad * weight).addcmul_(normed, along, value=-1).mul_(scale) if ctx.needs_input_grad[0] else None
        grad_weight = product.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None


class _Rotate(torch.autograd.Function):
    """RoPE of x [N, heads, D] by ``cos``, ``sin`` [N, 1, D/2]."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, -1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    left, right = out.chunk(2, -1)
    torch.mul(one, cos, out=left)
    left.addcmul_(other, sin, value=-1)
    torch.mul(other, cos, out=right)
    right.addcmul_(one, sin)
    return out


class _SiluMul(torch.autograd.Function):
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class _ShortAttention(torch.autograd.Function):
    """softmax(q k^T scale + bias) v of q [B,h,Q,D], k, v [B,h,K,D]; keeps the probabilities."""

    @staticmethod
    def forward(ctx: _Scaled, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float) -> Tensor:
        p = torch.matmul(q, k.transpose(-1, -2)).mul_(scale).add_(bias)
        p = p.sub_(p.amax(-1, keepdim=True)).exp_()  # torch's softmax takes longer on short rows
        p = p.div_(p.sum(-1, keepdim=True))
        out = torch.matmul(p, v)
        ctx.save_for_backward(q, k, v, p, out)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: _Scaled, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, out = ctx.saved_tensors
        d = torch.matmul(grad, v.transpose(-1, -2)).sub_((grad * out).sum(-1, keepdim=True)).mul_(p).mul_(ctx.scale)
        transposed = p.transpose(-1, -2)
        return torch.matmul(d, k), torch.matmul(d.transpose(-1, -2), q), torch.matmul(transposed, grad), None, None


class PackedTrunk:
    """Hidden states of a float32 trunk that ``llama_like.unsupported`` accepts."""

    def __init__(self, trunk: LlamaTrunk) -> None:
        self._trunk = trunk
        attention = trunk.layers[0].self_attn
        self._head_dim = int(attention.head_dim)
        self._kv_heads = int(trunk.config.num_key_value_heads)
        self._shared = int(trunk.config.num_attention_heads) // self._kv_heads
        self._head_normed = getattr(attention, "q_norm", None) is not None

    def __call__(self, p: Plan) -> Tensor:
        """Hidden states [n,H] of the wanted tokens."""
        trunk = self._trunk
        x = trunk.embed_tokens(p.ids)
        cos, sin = trunk.rotary_emb(x, position_ids=p.positions[None])
        half = self._head_dim // 2
        cos, sin = cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()
        blocked = self._blocked(p)
        rows, which = torch.unique(p.wanted, return_inverse=True)
        last = len(trunk.layers) - 1
        for i, layer in enumerate(trunk.layers):
            attended = self._attend(layer.self_attn, _norm(layer.input_layernorm, x), cos, sin, p, blocked)
            if i == last:
                x, attended = x.index_select(0, rows), attended.index_select(0, rows)
            x = x + layer.self_attn.o_proj(attended)
            h = _norm(layer.post_attention_layernorm, x)
            x = x + layer.mlp.down_proj(_SiluMul.apply(layer.mlp.gate_proj(h), layer.mlp.up_proj(h)))
        return _norm(trunk.norm, x).index_select(0, which)

    def _attend(self, attention: Attention, h: Tensor, cos: Tensor, sin: Tensor, p: Plan, blocked: Tensor) -> Tensor:
        """[N, heads * D] of the normed tokens ``h`` [N,H]."""
        q, k, v = (  # under autocast the products are bfloat16, attention isn't
            project(h).to(h.dtype).view(h.shape[0], -1, self._head_dim)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if self._head_normed:
            q, k = _norm(attention.q_norm, q), _norm(attention.k_norm, k)
        q, k = _Rotate.apply(q, cos, sin), _Rotate.apply(k, cos, sin)
        prompts, width, rows, after = p.shape
        q, k, v = (part.index_select(0, p.cells) for part in (q, k, v))
        cut = prompts * width
        heads = [part[:cut].view(prompts, width, -1, self._head_dim).transpose(1, 2) for part in (q, k, v)]
        out = self._product(heads[0], heads[1], heads[2], None)
        if rows:
            tails = [part[cut:].view(rows, after, -1, self._head_dim).transpose(1, 2) for part in (q, k, v)]
            keys, values = (torch.cat([heads[j].index_select(0, p.prompt), tails[j]], 2) for j in (1, 2))
            out = torch.cat([out, self._product(tails[0], keys, values, blocked)])
        return out.index_select(0, p.place)

    def _product(self, q: Tensor, k: Tensor, v: Tensor, blocked: Tensor | None) -> Tensor:
        """Attention of q [B,h,Q,D] over k, v [B,g,K,D], as cells [B*Q, h*D]. ``blocked`` None: causal."""
        batch, heads, queries, _ = q.shape
        scale = self._head_dim**-0.5
        if k.shape[2] <= SHORT and batch * heads * queries * k.shape[2] <= SHORT_SCORES:
            if blocked is None:
                blocked = torch.ones(1, 1, queries, queries, dtype=torch.bool).triu(1)
            bias = torch.zeros(blocked.shape, dtype=q.dtype).masked_fill_(blocked, float("-inf"))
            # query heads that share a key head are further queries of it
            q = q.unflatten(1, (self._kv_heads, self._shared)).flatten(2, 3)
            with torch.autocast(q.device.type, enabled=False):
                out = _ShortAttention.apply(q, k, v, bias.repeat(1, 1, self._shared, 1), scale)
            out = out.unflatten(2, (self._shared, queries)).flatten(1, 2)
        else:
            k, v = (part.repeat_interleave(self._shared, 1) if self._shared > 1 else part for part in (k, v))
            allowed = None if blocked is None else ~blocked
            out = F.scaled_dot_product_attention(q, k, v, allowed, is_causal=blocked is None, scale=scale)
        return out.transpose(1, 2).reshape(batch * queries, heads * self._head_dim)

    @staticmethod
    def _blocked(p: Plan) -> Tensor:
        """[C',1,C,P+C] bool: True where a continuation's query may not look."""
        _, width, rows, after = p.shape
        outside = torch.arange(width) >= p.prompt_length[p.prompt][:, None]
        ahead = torch.ones(after, after, dtype=torch.bool).triu(1)
        return torch.cat([outside[:, None].expand(-1, after, -1), ahead.expand(rows, -1, -1)], 2)[:, None]


def _norm(module: Norm, x: Tensor) -> Tensor:
    out: Tensor = _RMSNorm.apply(x, module.weight, module.variance_epsilon)
    return out
