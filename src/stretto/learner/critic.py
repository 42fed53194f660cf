"""What of a critic trains: everything, or everything but the attention of its trunk (SAO, arXiv 2607.07508)."""

from __future__ import annotations

import torch
from torch import nn

from stretto.config.learner import Critic
from stretto.kernel.errors import ConfigError
from stretto.models.load import load_policy
from stretto.models.logp import trunk_of
from stretto.models.value import ValueHead, ValueNetwork
from stretto.objectives.base import Objective


def build_critic(
    critic: Critic, model_dir: str, width: int, dtype: torch.dtype, gradient_checkpointing: bool
) -> ValueHead | ValueNetwork | None:
    """The critic that the section asks for; ``width`` is that of the policy's hidden states. None for ``none``.

    Raises ``ConfigError`` if attention is to be frozen and the trunk has none that can be told from the rest.
    """
    if critic.kind == "none":
        return None
    if critic.kind == "head":
        return ValueHead(width, dtype)
    twin = load_policy(model_dir, dtype, gradient_checkpointing=gradient_checkpointing)
    network = ValueNetwork(trunk_of(twin), width, dtype)
    if critic.frozen == "attention" and not freeze_attention(network.trunk):
        raise ConfigError(
            f"learner.critic.frozen = 'attention': the model in {model_dir} has no attention modules that train apart "
            "from the rest. Set 'none'"
        )
    return network


def check_critic(critic: Critic, objective: Objective) -> None:
    """``ConfigError`` unless there is a critic exactly where the objective uses values."""
    name = getattr(objective, "component_name", None) or type(objective).__name__
    if "values" in objective.needs and critic.kind == "none":
        raise ConfigError(f"objective {name!r} needs a critic: set learner.critic.kind to 'head' or 'network'")
    if "values" not in objective.needs and critic.kind != "none":
        raise ConfigError(f"learner.critic.kind = {critic.kind!r}, but objective {name!r} uses no values: set 'none'")


def freeze_attention(trunk: nn.Module) -> int:
    """Exclude the weights of every attention module (its class is named so) from training; how many there are."""
    frozen = 0
    for module in trunk.modules():
        if "attention" in type(module).__name__.lower():
            for p in module.parameters():
                frozen += p.requires_grad
                p.requires_grad_(False)
    return frozen
