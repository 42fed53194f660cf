"""The learner's forward pass: log-probabilities, entropies and values of a batch's policy tokens."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.learner.critic import build_critic
from stretto.models.head import Head, head_transform
from stretto.models.llama_like import unsupported
from stretto.models.load import load_policy
from stretto.models.logp import hidden_states, policy_positions, trunk_of
from stretto.models.lora import attach_lora, check_adapters
from stretto.models.prefix import PolicyStates
from stretto.models.value import ValueHead, ValueNetwork

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ALTERNATIVES = {"sampled": ("sampled_logp_current", "sampled_tokens"), "top": ("top_logp_current", "top_tokens")}
"""What an objective may need beside the sampled token: the batch's fields of log-probabilities and of token ids."""


@dataclass
class Scores:
    """``logp`` [B,T] with gradient, 0 where masked; ``entropy`` [n] of the n policy tokens, detached; ``values``
    [B,T] or None: value t is that of the state before token t. ``alternatives``: ``sampled_logp_current`` [B,T,M] and
    ``top_logp_current`` [B,T,K] with gradient, 0 where masked, if asked for: those of ``batch.sampled_tokens`` and
    ``batch.top_tokens``."""

    logp: Tensor
    entropy: Tensor
    values: Tensor | None
    alternatives: dict[str, Tensor] = field(default_factory=dict)


class Scorer:
    """Policy and critic of a learner, and what they say about a batch.

    ``temperature`` is the run's sampling temperature (0, greedy, counts as 1: the engine records the untempered one);
    a token that was sampled otherwise comes with its own, and with what top-k and top-p left.
    """

    def __init__(self, model_dir: str, config: LearnerConfig, seed: int, temperature: float) -> None:
        self.dtype = {"float32": torch.float32, "float64": torch.float64}[config.dtype]
        self.temperature = temperature or 1.0
        self._bf16 = config.bf16
        self.policy = load_policy(
            model_dir, self.dtype, gradient_checkpointing=config.gradient_checkpointing and config.lora.rank == 0
        )
        transform = head_transform(self.policy)
        llama_like = unsupported(self.policy) is None
        self.adapters: PeftModel | None = None
        if config.lora.rank > 0:
            lora = config.lora
            if config.gradient_checkpointing:  # the frozen embedding cuts the graph: its output must ask for gradient
                self.policy.gradient_checkpointing_enable(  # type: ignore[no-untyped-call]
                    gradient_checkpointing_kwargs={"use_reentrant": False}
                )
                self.policy.enable_input_require_grads()  # type: ignore[no-untyped-call]
            self.adapters = attach_lora(
                self.policy, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout, targets=lora.targets, seed=seed
            )
        self._trunk = trunk_of(self.policy)
        self._head = Head(self.policy, transform)
        # Sharing changes the order of sums, and Transformers' norms are float32 in any precision: float64, where
        # a split must not show, goes without. Checkpointing recomputes layers, which can't fill a cache.
        share = self.dtype == torch.float32 and not config.gradient_checkpointing
        self._states = PolicyStates(self._trunk, llama_like=llama_like, share=share)
        if self.adapters is not None:
            check_adapters(self.adapters, lambda ids: self._head.logits(hidden_states(self._trunk, ids[None])[0]))
        self.stochastic = self.adapters is not None and config.lora.dropout > 0
        """Do passes in training mode sample (the adapters' dropout)?"""
        self._trains_in_train_mode = config.gradient_checkpointing or self.stochastic
        self._coefficient = config.critic.coefficient
        width = self._head.weight.shape[1]
        self.critic = build_critic(config.critic, model_dir, width, self.dtype, config.gradient_checkpointing)
        if isinstance(self.critic, ValueNetwork):
            self._critic_states = PolicyStates(self.critic.trunk, llama_like=llama_like, share=share)

    @property
    def model(self) -> PreTrainedModel | PeftModel:
        """The policy, with its adapters around it if it has any."""
        return self.policy if self.adapters is None else self.adapters

    @property
    def way(self) -> str:
        """How the policy reads batches (``PolicyStates.way``)."""
        return self._states.way

    @property
    def vocabulary(self) -> int:
        """Tokens that the policy chooses from."""
        return int(self._head.weight.shape[0])

    def policy_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def critic_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those of the critic; empty without one."""
        return {} if self.critic is None else {n: p for n, p in self.critic.named_parameters() if p.requires_grad}

    def train(self, on: bool) -> None:
        """Enter or leave training mode. Only adapters' dropout and gradient checkpointing know the difference."""
        if self._trains_in_train_mode:
            self.model.train(on)
            if self.critic is not None:
                self.critic.train(on)

    def scores(
        self, batch: TokenBatch, *, values: bool, policy_alone: bool = True, alternatives: Collection[str] = ()
    ) -> Scores:
        """Score the policy tokens. ``policy_alone`` False: critic warm-up, no gradient reaches the policy.
        ``alternatives``: of ``sampled``, ``top``, those recorded tokens to score as well, from the same softmax."""
        (tokens,) = batch.need("tokens")
        target = policy_positions(batch.mask)
        others = {name: batch.need(field)[0] for need, (name, field) in ALTERNATIVES.items() if need in alternatives}
        sampled = tokens.flatten()[target]
        widths = [1, *(ids.shape[2] for ids in others.values())]
        ids = torch.cat([sampled[:, None], *(ids.flatten(0, 1)[target] for ids in others.values())], 1)
        with nullcontext() if policy_alone else torch.no_grad():
            hidden = self._hidden(self._states, tokens, batch.mask)
            logp, entropy = self._head.logp(hidden, ids, *self._distribution(batch, target, others))
        value: Tensor | None = None
        if values and isinstance(self.critic, ValueHead):
            # the coefficient scales what reaches the shared trunk, not the head's own gradient
            still = hidden.detach()
            value = self.critic(still + self._coefficient * (hidden - still) if policy_alone else still)
        elif values and isinstance(self.critic, ValueNetwork):
            value = self.critic.head(self._hidden(self._critic_states, tokens, batch.mask))
        own, *rest = torch.split(logp, widths, 1)
        return Scores(
            _spread(own.squeeze(1), target, batch.mask),
            entropy.detach(),
            None if value is None else _spread(value, target, batch.mask),
            {name: _spread(x, target, batch.mask) for name, x in zip(others, rest, strict=True)},
        )

    def _distribution(
        self, batch: TokenBatch, target: Tensor, alternatives: Collection[str]
    ) -> tuple[float | Tensor, Tensor | None]:
        """Temperature (one, or [n]) and support of the distributions that the policy tokens were sampled from."""
        temperature: float | Tensor = self.temperature
        if batch.temperature is not None:
            own = batch.temperature.flatten()[target]
            temperature = torch.where(own.isnan(), self.temperature, own)
        if batch.support is None:
            return temperature, None
        if alternatives:
            raise DataError(
                "a turn was sampled under top_k or top_p, but the objective compares the policies over the whole "
                "vocabulary: sample without, or choose another objective"
            )
        return temperature, batch.support.flatten(0, 1)[target]

    def bootstrap(self, batch: TokenBatch) -> Tensor:
        """Value [B] of the state after the last token of each row. Without gradient."""
        tokens, length = batch.need("tokens", "length")
        assert self.critic is not None
        trunk = self.critic.trunk if isinstance(self.critic, ValueNetwork) else self._trunk
        head = self.critic.head if isinstance(self.critic, ValueNetwork) else self.critic
        last = torch.arange(batch.rows) * tokens.shape[1] + (length - 1).clamp(min=0)
        with torch.no_grad(), self._autocast():
            hidden = hidden_states(trunk, tokens)
        with torch.no_grad():
            out: Tensor = head(hidden.flatten(0, 1).index_select(0, last))
        return out

    def _hidden(self, states: PolicyStates, tokens: Tensor, mask: Tensor) -> Tensor:
        with self._autocast():
            return states(tokens, mask)

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()


def _spread(flat: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """[n] -> [B,T], or [n,J] -> [B,T,J]; 0 elsewhere."""
    rest = flat.shape[1:]
    return flat.new_zeros(mask.numel(), *rest).index_copy(0, target, flat).view(*mask.shape, *rest)
