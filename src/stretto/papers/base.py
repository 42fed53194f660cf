"""What an experiment takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from stretto.observe.canvas import Canvas

if TYPE_CHECKING:
    import numpy as np

Shown: TypeAlias = (
    "bool | float | str | np.generic | np.ndarray | Sequence[Shown] | Mapping[str, Shown] | Mapping[int, Shown] "
    "| Mapping[float, Shown] | None"
)
"""A figure of a paper's: a number, a word, or lists and tables of them."""


@dataclass(frozen=True)
class Paper:
    """One paper. ``module``: the experiment's module in this package, None while there is none. ``lives``: where the
    method itself is in the package. ``parts``: names of the experiments of which it has several; ``only``: just that
    one of them."""

    name: str
    title: str
    arxiv: str | None
    claim: str
    lives: str
    module: str | None = None
    parts: tuple[str, ...] = ()
    only: str | None = None

    @property
    def status(self) -> str:
        """``reproducible`` if ``stretto reproduce`` has an experiment for it, else ``planned``."""
        return "planned" if self.module is None else "reproducible"


@dataclass(frozen=True)
class Settings:
    """How to run an experiment. ``seeds``: how many; None: as many as the experiment's pass condition was set for.
    ``first_seed``: seeds are ``first_seed`` .. ``first_seed + seeds - 1`` (an experiment whose published figures
    name their random stream runs that stream too). ``quick``: under 30 seconds, fewer seeds or shorter runs, same
    pass conditions wherever they can hold. ``say``: takes a line of progress."""

    seeds: int | None = None
    first_seed: int = 0
    quick: bool = False
    say: Callable[[str], None] = lambda line: None

    def range(self, usual: int, quick: int | None = None) -> range:
        """The seeds to run where ``usual`` many are the custom (``quick`` many under ``quick``)."""
        count = self.seeds or (quick if self.quick and quick is not None else usual)
        return range(self.first_seed, self.first_seed + count)


@dataclass(frozen=True)
class Check:
    """One figure: ``measured`` beside ``published`` (the paper's, or what was expected before the first run; None:
    neither), ``condition`` in words. ``passed`` None: reported without a condition; ``absent``: and the paper's effect
    did not appear, which the verdict says."""

    name: str
    measured: Shown
    condition: str = ""
    published: Shown = None
    passed: bool | None = None
    absent: bool = False


@dataclass
class Outcome:
    """Checks, notes for the reader (negative results are said here in plain words), and ``plot``: fills a
    Matplotlib figure or subfigure (``plot(figure)``)."""

    checks: list[Check]
    notes: list[str] = field(default_factory=list)
    plot: Callable[[Canvas], None] | None = None

    @property
    def passed(self) -> bool:
        """Whether all conditions hold, of which there must be at least one."""
        asked = [c.passed for c in self.checks if c.passed is not None]
        return bool(asked) and all(asked)
