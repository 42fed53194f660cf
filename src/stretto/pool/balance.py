"""Numbers divided into parts of nearly equal sums."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from stretto.kernel.errors import InvariantError

_Part = tuple[int, tuple[int, ...]]


def largest_differencing(weights: Sequence[int], parts: int, equal_counts: bool = False) -> list[list[int]]:
    """Divide ``weights`` into ``parts`` lists of positions with nearly equal sums: the k-way differencing method of
    Karmarkar and Karp (1982).

    Each weight starts as a division of its own, into itself and ``parts - 1`` empty parts. The two divisions whose
    sums differ most become one, the largest part of one beside the smallest of the other, until one is left. Ties go
    to the weights that come first. With ``equal_counts`` a division starts with ``parts`` weights of neighbouring
    sizes, so that all parts get equally many. Raises ``InvariantError`` if that can't be.
    """
    if parts < 1 or (equal_counts and len(weights) % parts):
        raise InvariantError(f"{len(weights)} weights can't be divided into {parts} parts of equally many")
    order = sorted(range(len(weights)), key=lambda k: (-weights[k], k))
    step = parts if equal_counts else 1
    heap: list[tuple[int, int, list[_Part]]] = []
    for number, first in enumerate(range(0, len(order), step)):
        division: list[_Part] = [(weights[k], (k,)) for k in order[first : first + step]]
        division += [(0, ())] * (parts - len(division))
        heap.append((_spread(division), number, division))
    heapq.heapify(heap)
    later = itertools.count(len(order))
    while len(heap) > 1:
        first_division, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        division = [(a + b, x + y) for (a, x), (b, y) in zip(first_division, reversed(second), strict=True)]
        division.sort(key=lambda part: (-part[0], part[1]))
        heapq.heappush(heap, (_spread(division), next(later), division))
    found = heap[0][2] if heap else [(0, ())] * parts
    return [sorted(members) for _, members in found]


def _spread(division: Sequence[_Part]) -> int:
    """Minus the difference of the largest part's sum and the smallest one's: the heap gives its smallest first."""
    return division[-1][0] - division[0][0]
