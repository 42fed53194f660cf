"""Closed forms for one iteration of a pipeline of stages on separate devices, to hold simulations against.

[inferred] from what AsyncFlow (arXiv 2507.01663) streams and defers. A stage takes T_s seconds for an iteration's
samples, which go from stage to stage in n micro-batches:

    F = sum(T) / n + (n - 1) max(T) / n       from the first sample's start to the last one's end
"""

from __future__ import annotations

from collections.abc import Sequence

from stretto.kernel.errors import ConfigError


def flow_s(stages_s: Sequence[float], micro_batches: int) -> float:
    """F. Raises ``ConfigError`` for fewer than one micro-batch."""
    if micro_batches < 1:
        raise ConfigError(f"{micro_batches} micro-batches: expected 1 or more")
    return (sum(stages_s) + (micro_batches - 1) * max(stages_s)) / micro_batches


def sequential_s(stages_s: Sequence[float], sync_s: float) -> float:
    """Each stage waits for the whole batch, and all wait for the weights: sum(T) + x."""
    return sum(stages_s) + sync_s


def streamed_s(stages_s: Sequence[float], micro_batches: int, sync_s: float) -> float:
    """Micro-batches flow, and the next iteration waits for the weights: F + x."""
    return flow_s(stages_s, micro_batches) + sync_s


def deferred_s(stages_s: Sequence[float], micro_batches: int, load_s: float, *, load_on_rollout: bool = False) -> float:
    """The next iteration starts on the weights of the one before: max(max T, (F + h) / 2).

    The second term is that an iteration's samples must be through, and their weights loaded, when the next but one
    starts: it binds for few micro-batches or balanced stages. ``load_on_rollout``: the load h takes the time of the
    devices that generate (the first stage), so that T_1 + h stands in the first term.
    """
    first = stages_s[0] + (load_s if load_on_rollout else 0.0)
    return max(first, *stages_s[1:], (flow_s(stages_s, micro_batches) + load_s) / 2)
