"""Closed forms for the loop's queue, to hold simulations against."""

from __future__ import annotations

from stretto.kernel.errors import ConfigError


def mean_staleness(slots: int, batch: int, rho: float, capacity: float, tail: float) -> float:
    """Mean staleness in versions of a FIFO queue that drops its oldest groups (Applied Compute, "Staleness in fully
    async RL", 2026, as reported).

    ``slots`` samples are generated at a time, ``batch`` samples train per step, ``rho`` = rollout rate / train rate,
    ``capacity`` of the queue in batches, ``tail`` = E[longest response of a group] / E[response]. A group's age counts
    from the start of its first member to the start of the step that trains it.
    """
    if rho <= 0 or rho == 1:
        raise ConfigError(f"rho = {rho}: the closed form holds for 0 < rho < 1 and for rho > 1")
    if rho < 1:
        return slots * tail / batch + rho
    return slots * tail / (rho * batch) + (2 * capacity + rho - 1) / (2 * rho)
