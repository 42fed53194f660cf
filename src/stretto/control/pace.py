"""PACE: what the pool holds too much of becomes a budget of rejections, spent on what is effectively the stalest.

"Where Does Staleness Accumulate? Pool Aware Effective Staleness Control for Asynchronous RL in LLM Post-Training"
(arXiv 2609.36830). Waiting counts in full. Generation staleness counts by how far the policy has moved away from the
trajectory's prefix, compared with the rest of the pool, so that long or interrupted rollouts aren't punished for
spanning versions. The paper publishes the idea and gamma; the forms of budget and score here are [inferred].
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from stretto.control.hooks import POOL
from stretto.control.pool_watch import WaitingGroup
from stretto.control.view import View
from stretto.kernel.errors import ConfigError

_FORGOTTEN = 2.0**-60
"""Weight below which an occupancy of long ago doesn't count any more."""


@runtime_checkable
class ScoresPrefixes(Protocol):
    """A pool rule that must know how far the policy has moved away from what waits. ``drift``: as that of ``Pace``."""

    @property
    def drift(self) -> Literal["decrease", "absolute"]: ...

    def prefixes(self, view: View) -> Sequence[int]:
        """Waiting trajectories whose prefixes must be scored under the current policy before it decides."""
        ...


def smoothed_rate(occupancies: Sequence[int], target: float, alpha: float) -> float:
    """Rejection rate r after batches taken at these occupancies: e = max(0, (n - n*) / n), r = (1 - alpha) r + alpha e,
    from r = 0 [inferred]. By Little's law what exceeds ``target`` (n*) waits longer than allowed."""
    memory = 1.0 if alpha == 1 else math.log(_FORGOTTEN) / math.log1p(-alpha)
    rate = 0.0
    for n in occupancies[-int(min(len(occupancies), memory + 1)) :]:
        rate = (1 - alpha) * rate + alpha * (max(0.0, (n - target) / n) if n else 0.0)
    return rate


def budget(occupancy: int, rate: float, batch: int) -> int:
    """Groups to reject before a batch is taken: round(r n), half to even, but a whole ``batch`` stays."""
    return max(0, min(round(rate * occupancy), occupancy - batch))


def mid_rank_percentiles(values: Sequence[float]) -> list[float]:
    """(average rank - 1/2) / n of each value, in (0, 1); equal values share a rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, start = [0.0] * len(values), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for i in order[start:end]:
                found[i] = (start + end) / (2 * len(order))
            start = end
    return found


def effective_staleness(waiting: int, generation: float, percentile: float, gamma: float) -> float:
    """E = S_wait + S_gen p^gamma, in versions: ``generation`` is the mean over a trajectory's tokens, ``percentile``
    that of its forgetting inside the pool. gamma = inf counts waiting alone, gamma = 0 the total staleness."""
    return waiting + generation * float(percentile**gamma)


def rejected(pool: Collection[WaitingGroup], version: int, count: int, gamma: float) -> list[int]:
    """The ``count`` groups of the largest mean E at a step that starts at ``version``, the largest first; of equal ones
    that which has waited longer, then the older arrival. The order of ``pool`` doesn't matter."""
    groups = sorted(pool, key=lambda group: group.arrival)
    members = [(group, one) for group in groups for one in group.members]
    shares = iter(mid_rank_percentiles([one.forgetting for _, one in members]))
    keys = []
    for group in groups:
        waiting = version - group.complete
        mean = sum(
            effective_staleness(waiting, one.generation(group.complete) / one.tokens, next(shares), gamma)
            for one in group.members
        ) / len(group.members)  # fmt: skip
        keys.append((-mean, -waiting, group.arrival, group.id))
    return [id for *_, id in sorted(keys)[:count]]


@POOL.register("pace")
@dataclass(frozen=True)
class Pace:
    """Rejects the effectively stalest ready groups before each batch, as many as the smoothed excess over a target
    occupancy says (PACE, arXiv 2609.36830).

    ``target_occupancy``: n* in batches, at least 1: what may wait, for at most as many versions [inferred]. ``alpha``
    smooths the excess, 1: not at all [inferred]. ``gamma`` sharpens the percentile of a trajectory's forgetting (the
    paper's 4). ``drift`` of a prefix token: ``decrease``, max(0, logp_behavior - logp), or ``absolute``, their distance
    [inferred]. Prefixes are scored under the current policy, once a version, and only before something is rejected. A
    group counts as the mean of its members and goes whole [inferred].
    """

    target_occupancy: float = 2.0
    alpha: float = 0.3
    gamma: float = 4.0
    drift: Literal["decrease", "absolute"] = "decrease"

    watches_pool: ClassVar = True

    def __post_init__(self) -> None:
        bounds = {
            "target_occupancy": (1 <= self.target_occupancy < math.inf, "a number of batches, 1 or more"),
            "alpha": (0 < self.alpha <= 1, "above 0, at most 1"),
            "gamma": (self.gamma >= 0, "0 or more"),
        }
        for name, (good, expected) in bounds.items():
            if not good:
                raise ConfigError(f"control.pool.{name} = {getattr(self, name):g}: expected {expected}")

    def prefixes(self, view: View) -> Sequence[int]:
        """Trajectories of several versions that nobody has scored under the current one, if something must go."""
        pool = view.pool
        if self.gamma in (0, math.inf) or pool.scored or not self._count(view):
            return ()
        waiting = (one for group in pool.groups.values() for one in group.members)
        return [one.id for one in waiting if one.prefix and one.scored_at != view.version]

    def evict(self, view: View) -> Sequence[int]:
        """The groups that go before the next batch is taken; none while their prefixes are being scored."""
        count = self._count(view)
        if not count or self.prefixes(view):
            return ()
        return rejected(view.pool.groups.values(), view.version, count, self.gamma)

    def _count(self, view: View) -> int:
        """The budget of the coming batch: 0 unless one could be taken now, and once it is spent."""
        pool, n = view.pool, len(view.ready)
        if view.training or pool.decided is not None or not n >= view.take > 0:
            return 0
        rate = smoothed_rate([*pool.occupancies, n], self.target_occupancy * view.batch, self.alpha)
        return budget(n, rate, view.batch)
