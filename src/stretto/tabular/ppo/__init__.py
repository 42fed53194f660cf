"""Closed-loop PPO-Clip in layered worlds: worlds, learner, plain reference, exact oracles. ``env`` speaks Gymnasium."""

from stretto.tabular.ppo.learn import Lateness, Runs, ppo_tabular
from stretto.tabular.ppo.options import TabularPPO
from stretto.tabular.ppo.worlds import Layered, layered, lock, unrolled

__all__ = ["Lateness", "Layered", "Runs", "TabularPPO", "layered", "lock", "ppo_tabular", "unrolled"]
