"""Checks of what callers pass to exact worlds: one error that names the function and the argument."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError

_SUM = 1e-9
_LAST_SEED = np.iinfo(np.int64).max


def array(where: str, name: str, x: ArrayLike, shape: Sequence[int | None] | None = None) -> Floats:
    """``x`` as contiguous float64. ``shape``: what it must have, None where any length will do. ``ConfigError`` if it
    isn't numbers, not finite, or of another shape."""
    try:
        given = np.asarray(x)
        if given.dtype.kind in "USc":
            raise TypeError(f"these are {given.dtype}")
        out = np.ascontiguousarray(given, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: {name} must be an array of numbers ({error})") from None
    if shape is not None and (
        given.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, given.shape, strict=True))
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ConfigError(f"{where}: {name} has shape {list(np.shape(x))} but must have [{wanted}]")
    if not np.isfinite(out).all():
        at = [int(i) for i in np.argwhere(~np.isfinite(out))[0]]
        raise ConfigError(f"{where}: {name}{at} = {out[tuple(at)]} must be finite")
    return out


def probabilities(where: str, name: str, p: ArrayLike, shape: Sequence[int | None] | None = None) -> Floats:
    """``p`` as float64 whose last axis are probabilities: none negative, sums of one to 1e-9. ``ConfigError`` names
    the first row that isn't."""
    out = array(where, name, p, shape)
    if out.ndim == 0 or out.size == 0:
        raise ConfigError(f"{where}: {name} must hold at least one probability")
    bad = (out < 0).any(-1) | (np.abs(out.sum(-1) - 1) > _SUM)
    if bad.any():
        at = [int(i) for i in np.argwhere(np.atleast_1d(bad))[0]] if out.ndim > 1 else []
        row = out[tuple(at)]
        said = f"holds {row.min():g}" if row.min() < 0 else f"sums to {row.sum():.10g}"
        raise ConfigError(f"{where}: {name}{at or ''} {said}; each row must be probabilities that sum to 1")
    return out


def number(
    where: str,
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> float:
    """``value`` as a float, finite, in [low, high], > ``above``, < ``below``, and whole if asked; else
    ``ConfigError``."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        x = float(value)  # type: ignore[arg-type]  # what can't be one is refused below
    except OverflowError:
        raise ConfigError(f"{where}: {name} is too large for a number") from None
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {name} = {value!r} must be a number") from None
    fits = math.isfinite(x) and low <= x <= high and above < x < below and (not whole or x == int(x))
    if not fits:
        kind = "a whole number" if whole else "a number"
        bounds = [f">= {low:g}" if low > -math.inf else "", f"<= {high:g}" if high < math.inf else "",
                  f"> {above:g}" if above > -math.inf else "", f"< {below:g}" if below < math.inf else ""]  # fmt: skip
        limits = " and ".join(b for b in bounds if b) or "finite"
        raise ConfigError(f"{where}: {name} = {value} must be {kind} {limits}")
    return x


def of_type(where: str, **given: tuple[object, type]) -> None:
    """Raise ``ConfigError`` unless each named value is of its type: ``of_type("train", market=(market, Market))``."""
    for name, (value, kind) in given.items():
        if not isinstance(value, kind):
            raise ConfigError(f"{where}: {name} must be of type {kind.__name__}; got {type(value).__name__}")


def increasing(where: str, name: str, x: ArrayLike, least: int = 2) -> Floats:
    """``x`` as float64 [n], n >= ``least``, each larger than the one before; else ``ConfigError``."""
    out = array(where, name, x, (None,))
    if out.size < least or (np.diff(out) <= 0).any():
        raise ConfigError(f"{where}: {name} must hold at least {least} numbers that rise")
    return out


def discount(where: str, gamma: object) -> float:
    """A discount factor in [0, 1). ``ConfigError``: at 1 the discounted values don't exist."""
    return number(where, "gamma", gamma, 0, below=1)


def index_in(where: str, name: str, value: object, count: int) -> int:
    """``value`` as an int in 0 .. ``count`` - 1, such as a state, action or player. ``ConfigError`` if it isn't one of
    them."""
    return int(number(where, name, value, 0, count - 1, whole=True))


def distinct_seeds(where: str, seeds: ArrayLike) -> Ints:
    """Seeds as an int64 array: at least one, whole, not negative, none twice (two equal seeds are one sample)."""
    try:
        out = np.atleast_1d(np.asarray(seeds))
    except ValueError:
        out = np.empty(0)
    if out.ndim != 1 or out.size == 0 or not np.issubdtype(out.dtype, np.integer) or out.min() < 0:
        raise ConfigError(f"{where}: seeds must be whole numbers >= 0, at least one; got {seeds!r}")
    if len(np.unique(out)) < len(out):
        raise ConfigError(f"{where}: seeds hold the same number twice; give each run its own")
    if out.max() > _LAST_SEED:
        raise ConfigError(f"{where}: seeds hold {out.max()}; the largest is {_LAST_SEED}")
    return np.ascontiguousarray(out, np.int64)
