"""What experiments read off the records of ``ppo_tabular`` (every iteration recorded)."""

from __future__ import annotations

import numpy as np
from scipy import stats

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array


def running_mean(record: Floats, at: Ints) -> Floats:
    """Mean over the first t iterates, [runs, len(at)], of a record [runs, T+1] whose entry t is iterate t."""
    return np.cumsum(_record("running_mean", record, at), 1)[:, at - 1] / at


def late_mean(record: Floats, at: Ints) -> Floats:
    """Mean over iterates t/2 + 1 .. t, [runs, len(at)]. A mean from the start on would show the first hundred
    iterations long after they are over."""
    total = np.cumsum(_record("late_mean", record, at), 1)
    return (total[:, at] - total[:, at // 2]) / (at - at // 2)


def growth(squares: Floats) -> float:
    """Rate of growth an iteration of the root of ``squares`` [runs, T+1]: least squares on the second half of the mean
    log over runs. ``ConfigError`` unless all of it is positive and finite."""
    record = array("growth", "squares", squares, (None, None))
    late = record[:, record.shape[1] // 2 :]
    if late.shape[1] < 2 or not (late > 0).all():
        raise ConfigError("growth: squares must be positive in their second half, which needs two iterations or more")
    return float(stats.linregress(np.arange(late.shape[1]), np.log(late).mean(0) / 2).slope)


def _record(where: str, record: Floats, at: Ints) -> Floats:
    record = array(where, "record", record, (None, None))
    if not (isinstance(at, np.ndarray) and np.issubdtype(at.dtype, np.integer)):
        raise ConfigError(f"{where}: at must be an array of whole numbers")
    if not (len(at) and at.min() >= 1 and at.max() < record.shape[1]):
        raise ConfigError(f"{where}: at must hold iterations from 1 to {record.shape[1] - 1}")
    return record
