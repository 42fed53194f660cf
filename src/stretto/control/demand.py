"""The arithmetic of the hard lag bound without dropping [inferred].

A group dispatched at version v has the deadline step ``min(v + L, last step)``. Call N(d) the groups running or ready
with a deadline <= d, and S(d) the steps that can still start up to step d. Everything can train in time if and only
if ``N(d) <= B * S(d)`` for every d: the earliest-deadline-first demand test. Admission keeps it when a group starts,
the start rule keeps it when a step takes its batch; so it always holds, no token trains with staleness > L, and
nothing has to be dropped. With all dispatches at the newest version, admission is the cap ``(L + 1) * B``.
"""

from __future__ import annotations

from collections.abc import Iterable

from stretto.control.view import View


def deadline(view: View, version: int) -> int:
    """Last step (by start version) at which a group dispatched at ``version`` may train."""
    return min(version + view.lag_bound, view.max_steps - 1)


def room(view: View, version: int) -> int:
    """How many more groups dispatched at ``version`` can still all train in time, with everything outstanding."""
    first = view.version + (1 if view.training else 0)  # the next step that can start
    due = deadline(view, version)
    counts = _by_deadline(view)
    demand = sum(n for d, n in counts.items() if d <= due)
    least = view.batch * (due - first + 1) - demand
    for d in sorted(d for d in counts if d > due):
        demand += counts[d]
        least = min(least, view.batch * (d - first + 1) - demand)
    return max(0, least)


def room_in_order(view: View, version: int) -> int:
    """``room`` where batches are taken strictly in order of submission: a new group trains after all outstanding ones,
    whatever their deadlines, and nothing that starts later can delay those."""
    first = view.version + (1 if view.training else 0)
    return max(0, view.batch * (deadline(view, version) - first + 1) - len(view.running) - len(view.ready))


def may_start(view: View, batch_versions: Iterable[int]) -> bool:
    """May a step that starts now train a batch of these dispatch versions? True iff all the rest can still make it."""
    counts = _by_deadline(view)
    taken: dict[int, int] = {}
    for version in batch_versions:
        due = deadline(view, version)
        taken[due] = taken.get(due, 0) + 1
    rest = 0
    for d in sorted(counts):
        rest += counts[d] - taken.get(d, 0)
        if rest > view.batch * max(0, d - view.version):
            return False
    return True


def _by_deadline(view: View) -> dict[int, int]:
    counts: dict[int, int] = {}
    for version, n in view.outstanding.items():
        due = deadline(view, version)
        counts[due] = counts.get(due, 0) + n
    return counts
