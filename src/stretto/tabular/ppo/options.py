"""The constants of closed-loop tabular PPO-Clip, and its step sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.data.arrays import Floats
from stretto.tabular.arguments import number


@dataclass(frozen=True)
class TabularPPO:
    """PPO-Clip with a learned critic over logits theta [H, S, A] and values V [H, S].

    ``episodes`` n: fresh ones an iteration; ``epochs`` E over that batch (0: the actor stands still); ``clip`` c;
    ``lam`` of GAE; step sizes alpha_t = ``actor_step`` (1+t)^-``actor_power`` and beta_t = ``critic_step``
    (1+t)^-``critic_power``; ``kl_stop``: no further epoch once the batch's mean KL(behaviour || current) exceeds it,
    decided before the epoch is used (None: off). Undiscounted, raw advantages, Monte Carlo critic targets.

    All constants are [inferred]: 3/5 and 2/5 balance 1/(T alpha), beta and (alpha/beta)^2, the pair known for
    actor-critic (arXiv 2005.01350). Raises ``ConfigError`` on a number out of range.
    """

    episodes: int = 8
    epochs: int = 2
    clip: float = 0.2
    lam: float = 0.95
    actor_step: float = 2.0
    critic_step: float = 1.0
    actor_power: float = 0.6
    critic_power: float = 0.4
    kl_stop: float | None = None

    def __post_init__(self) -> None:
        where = "TabularPPO"
        number(where, "episodes", self.episodes, 1, whole=True)
        number(where, "epochs", self.epochs, 0, whole=True)
        number(where, "clip", self.clip, above=0)
        number(where, "lam", self.lam, 0, 1)
        for name in ("actor_step", "critic_step", "actor_power", "critic_power"):
            number(where, name, getattr(self, name), 0)
        if self.kl_stop is not None:
            number(where, "kl_stop", self.kl_stop, 0)

    def actor_steps(self, iterations: int) -> Floats:
        """The actor's step sizes alpha_t = ``actor_step`` (1+t)^-``actor_power``, t = 0 .. T-1, as an array [T]."""
        return self.actor_step * np.arange(1.0, iterations + 1) ** -self.actor_power

    def critic_steps(self, iterations: int) -> Floats:
        """The critic's step sizes beta_t = ``critic_step`` (1+t)^-``critic_power``, t = 0 .. T-1, as an array [T]."""
        return self.critic_step * np.arange(1.0, iterations + 1) ** -self.critic_power
