"""What an experiment takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
    pass conditions wherever they can hold. ``say``: takes a line of progress. ``jobs``: processes that an experiment of
    many runs may use; ``scratch``: a directory where it keeps them until it is complete (None: a temporary one)."""

    seeds: int | None = None
    first_seed: int = 0
    quick: bool = False
    say: Callable[[str], None] = lambda line: None
    jobs: int = 1
    scratch: Path | None = None

    def range(self, usual: int, quick: int | None = None) -> range:
        """The seeds to run where ``usual`` many are the custom (``quick`` many under ``quick``)."""
        count = self.seeds or (quick if self.quick and quick is not None else usual)
        return range(self.first_seed, self.first_seed + count)


@dataclass(frozen=True)
class Check:
    """One figure: ``measured`` here, beside ``reference`` (our own, computed independently from the specification, or
    expected before the first run) and ``paper`` (what the paper itself says, and ``where`` in it); None: there is none.
    ``condition`` in words. ``passed`` None: reported without a condition; ``absent``: and the paper's effect did not
    appear, which the verdict says."""

    name: str
    measured: Shown
    condition: str = ""
    reference: Shown = None
    passed: bool | None = None
    absent: bool = False
    paper: Shown = None
    where: str = ""

    @property
    def verdict(self) -> str:
        """``pass``, ``FAIL``, ``not reproduced`` or ``reported``."""
        if self.passed is None:
            return "not reproduced" if self.absent else "reported"
        return "pass" if self.passed else "FAIL"


@dataclass
class Outcome:
    """Checks, notes for the reader (negative results are said here in plain words), and ``plot``: fills a
    Matplotlib figure or subfigure (``plot(figure)``)."""

    checks: list[Check]
    notes: list[str] = field(default_factory=list)
    plot: Callable[[Canvas], None] | None = None

    @property
    def failed(self) -> bool:
        """Is there a condition that doesn't hold?"""
        return any(c.passed is False for c in self.checks)

    @property
    def passed(self) -> bool:
        """Whether all conditions hold, of which there must be at least one."""
        return self.verdict.startswith("pass")

    @property
    def verdict(self) -> str:
        """``FAIL`` if a condition doesn't hold; ``pass``, or ``reported`` where nothing was asked; and how many of the
        paper's effects did not appear."""
        asked = any(c.passed is not None for c in self.checks)
        absent = sum(c.verdict == "not reproduced" for c in self.checks)
        word = "FAIL" if self.failed else "pass" if asked else "reported"
        return f"{word}, {absent} not reproduced" if absent else word
