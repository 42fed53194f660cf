"""Batch rules: which ready groups form the batch of a step that could start now?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from operator import attrgetter
from typing import ClassVar

from stretto.control.demand import may_start
from stretto.control.guarantees import Guarantee
from stretto.control.hooks import BATCH
from stretto.control.view import View

_AGE = attrgetter("version", "id")


@BATCH.register("demand")
@dataclass(frozen=True)
class DemandBatch:
    """The oldest ready groups by dispatch version (then by submission), once the rest can still make its deadlines.

    "Wait only for groups that are due now" is not enough: it breaks the bound for L >= 2.
    """

    guarantees: ClassVar = frozenset({Guarantee.LAG_BOUND, Guarantee.WHOLE_BATCHES})

    def form(self, view: View) -> Sequence[int] | None:
        """Ids, or None: wait for completions."""
        if not _enough(view):
            return None
        oldest = nsmallest(view.take, view.ready.values(), key=_AGE)
        return sorted(g.id for g in oldest) if may_start(view, [g.version for g in oldest]) else None


@BATCH.register("submission")
@dataclass(frozen=True)
class SubmissionOrder:
    """Strictly in order of submission: two wall-clock runs then train the same groups in the same order."""

    guarantees: ClassVar = frozenset({Guarantee.LAG_BOUND, Guarantee.WHOLE_BATCHES, Guarantee.SUBMISSION_ORDER})

    def form(self, view: View) -> Sequence[int] | None:
        """The ids submitted first of all outstanding, or None while one of them still runs."""
        if not _enough(view):
            return None
        first = sorted([*view.ready, *view.running])[: view.take]
        return first if all(i in view.ready for i in first) else None


@BATCH.register("fifo")
@dataclass(frozen=True)
class Fifo:
    """First completed, first trained, without regard to deadlines. Only the soft baseline of experiments: it does not
    keep the lag bound."""

    guarantees: ClassVar = frozenset({Guarantee.WHOLE_BATCHES})

    def form(self, view: View) -> Sequence[int] | None:
        """The groups that completed first."""
        if not _enough(view):
            return None
        return list(view.ready)[: view.take]


def _enough(view: View) -> bool:
    """Are there as many ready groups as the next step takes (some)?"""
    return len(view.ready) >= view.take > 0
