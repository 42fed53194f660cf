"""Closed-loop PPO-Clip in layered worlds: worlds, learner, plain reference, exact oracles."""

from stretto.tabular.ppo.env import LayeredEnv, unrolled
from stretto.tabular.ppo.learn import Lateness, Runs, ppo_tabular
from stretto.tabular.ppo.options import TabularPPO
from stretto.tabular.ppo.worlds import Layered, layered, lock

__all__ = ["Lateness", "Layered", "LayeredEnv", "Runs", "TabularPPO", "layered", "lock", "ppo_tabular", "unrolled"]
