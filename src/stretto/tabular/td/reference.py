"""TD in plain Python, one seed: what the compiled loop must agree with, bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular.arguments import number
from stretto.tabular.counter import key, uniforms
from stretto.tabular.sampling import alias_sample, alias_table
from stretto.tabular.td.kernel import STREAM
from stretto.tabular.td.online import TD
from stretto.tabular.td.process import RewardProcess
from stretto.tabular.td.steps import Steps


def td_path(
    process: RewardProcess, steps: Steps, seed: int, updates: int, values: ArrayLike = 0.0
) -> tuple[list[int], Floats]:
    """States s_1 .. s_{T+1} and values [T+1,S] before each transition and after the last, T = ``updates``."""
    updates = int(number("td_path", "updates", updates, 1, whole=True))
    number("td_path", "seed", seed, 0, below=2.0**63, whole=True)
    u = uniforms(np.uint64(key(int(seed), STREAM)), updates + 1)
    tables = alias_table(process.transitions)
    learner = TD(process.states, process.gamma, steps, values)
    states, path = [alias_sample(*alias_table(process.start[None]), 0, u[0])], [learner.values.copy()]
    for t in range(1, updates + 1):
        state = states[-1]
        after = alias_sample(*tables, state, u[t])
        learner.update(state, process.rewards[state, min(after, process.rewards.shape[1] - 1)], after)
        states.append(after)
        path.append(learner.values.copy())
    return states, np.array(path)
