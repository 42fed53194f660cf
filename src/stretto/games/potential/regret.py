"""Nash regret of a run: exact gaps of the policies it kept, averaged over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.games.markov import MarkovGame
from stretto.games.potential.batch import nash_gaps
from stretto.games.potential.play import Run
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array


def gaps_along(game: MarkovGame, run: Run) -> Floats:
    """Exact Nash gap [seeds, K] of the policies that ``run`` kept at each of its times."""
    seeds, kept = run.policies.shape[:2]
    return nash_gaps(game, run.policies.reshape(seeds * kept, *run.policies.shape[2:])).reshape(seeds, kept)


def nash_regret(times: ArrayLike, gaps: ArrayLike) -> Floats:
    """[.., K-1]: (1/T) integral from 0 to T of the gap (trapezoid between kept times) at T = ``times[1:]``. ``times``
    [K] start at 0 and increase; ``gaps`` [.., K]. ``ConfigError`` otherwise."""
    t = array("nash_regret", "times", times, (None,))
    g = array("nash_regret", "gaps", gaps)
    if len(t) < 2 or t[0] != 0 or (np.diff(t) <= 0).any():
        raise ConfigError("nash_regret: times must start at 0 and increase, with at least two of them")
    if g.shape[-1:] != t.shape:
        raise ConfigError(f"nash_regret: gaps has {g.shape[-1:]} times at its end, times {t.shape}")
    area = np.cumsum((g[..., 1:] + g[..., :-1]) / 2 * np.diff(t), axis=-1)
    return np.asarray(area / t[1:])
