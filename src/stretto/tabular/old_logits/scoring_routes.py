"""Three exact routes to a token's log-probability under the trainer at its own version, and what each costs.

Rollouts run while the weights change, so one trajectory mixes versions; every version has logits of its own, so that
a token that is scored under a wrong one shows (arXiv 2605.12070; the costs' units are [inferred]).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError, InvariantError

_VOCABULARY = 5


@dataclass
class Rollout:
    """A trajectory: ``tokens`` [n+1] with a start token, ``versions`` [n], ``target`` length n; ``truth`` [n] the
    trainer's log-probabilities when it was sampled, which no route may see."""

    target: int
    tokens: list[int]
    versions: list[int] = field(default_factory=list)
    truth: list[float] = field(default_factory=list)
    scored: dict[str, Floats] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the trajectory has reached its target length."""
        return len(self.versions) == self.target


@dataclass
class Cost:
    """``copies``: most sets of weights held at once besides the learner's and the engine's; ``forward``: tokens run
    through a forward pass, prefixes included; ``stall``: decode steps during which rollouts stood still."""

    copies: int = 0
    forward: int = 0
    stall: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """``error``: largest |log-probability - truth| of a route over all trained tokens; ``cost`` per route; the number
    of trained ``tokens``, mean distinct ``versions`` per trajectory, largest ``staleness``."""

    error: dict[str, float]
    cost: dict[str, Cost]
    tokens: int
    versions: float
    staleness: int


def compare_routes(
    interval: int,
    seed: int = 0,
    slots: int = 16,
    updates: int = 40,
    lengths: tuple[int, int] = (8, 48),
    wait: int = 1,
    speed: float = 200.0,
) -> Comparison:
    """Roll out on ``slots`` slots with an update every ``interval`` decode steps; a completed trajectory trains
    ``wait`` updates after it ended. ``speed``: tokens that a scoring pass handles in one decode step's time.

    ``snapshots`` keeps the weights of every version that a running or waiting token may have, and makes one pass per
    distinct version over the rows that hold it. ``replica`` follows with one set of weights and scores each segment
    when its version ends. ``interrupt`` stops the rollouts and scores the same segments before the weights change.
    """
    if min(interval, slots, updates, lengths[0]) < 1 or lengths[1] < lengths[0] or wait < 0 or not speed > 0:
        raise ConfigError("compare_routes: interval, slots, updates, lengths and speed must be positive, wait >= 0")
    rng = np.random.default_rng([seed, 0])
    cost = {name: Cost() for name in ("snapshots", "replica", "interrupt")}
    kept: dict[int, Floats] = {}
    running = [_start(rng, lengths) for _ in range(slots)]
    waiting: list[tuple[int, Rollout]] = []
    trained: list[tuple[int, Rollout]] = []
    for version in range(updates):
        weights = kept[version] = _weights(seed, version)
        made: list[tuple[Rollout, int]] = [(rollout, len(rollout.versions)) for rollout in running]
        for _ in range(interval):
            for slot, rollout in enumerate(running):
                _decode(rollout, weights, version, rng)
                if rollout.complete:
                    waiting.append((version, rollout))
                    running[slot] = _start(rng, lengths)
                    made.append((running[slot], 0))
        cost["snapshots"].copies = max(cost["snapshots"].copies, len(kept) - 1)  # one of them is the learner's own
        cost["replica"].copies = 1
        work = 0
        for rollout, start in made:
            work += _score_segment(rollout, start, weights)
        for name in ("replica", "interrupt"):
            cost[name].forward += work
        cost["interrupt"].stall += work / speed
        cost["replica"].stall += max(0.0, work / speed - interval)  # it keeps up, or the next version has to wait
        batch = [rollout for ended, rollout in waiting if ended + wait <= version]
        waiting = [(ended, rollout) for ended, rollout in waiting if ended + wait > version]
        cost["snapshots"].forward += _score_rows(batch, kept.__getitem__)
        trained += [(version, rollout) for rollout in batch]
        alive = [rollout.versions[0] for rollout in [*running, *(r for _, r in waiting)] if rollout.versions]
        kept = {v: w for v, w in kept.items() if v >= min(alive, default=version + 1)}
    return _summary(trained, cost)


def _score_segment(rollout: Rollout, start: int, weights: Floats) -> int:
    """Score the tokens from ``start`` on, by a pass over the prefix and them; the pass's tokens."""
    if len(rollout.versions) == start:
        return 0
    scored = _forward(weights, rollout.tokens)[start:]
    for name in ("replica", "interrupt"):
        before = rollout.scored.get(name, np.empty(0))
        if len(before) != start:
            raise InvariantError(f"route {name}: a segment that starts at {start} follows {len(before)} scored tokens")
        rollout.scored[name] = np.concatenate([before, scored])
    return len(rollout.versions)


def _score_rows(batch: list[Rollout], weights: Callable[[int], Floats]) -> int:
    """One pass per distinct version over the rows that hold it, scattered to its tokens; the passes' tokens."""
    spent = 0
    for rollout in batch:
        rollout.scored["snapshots"] = np.full(len(rollout.versions), np.nan)
    for version in sorted({v for rollout in batch for v in rollout.versions}):
        for rollout in batch:
            mine = np.array(rollout.versions) == version
            if mine.any():
                rollout.scored["snapshots"][mine] = _forward(weights(version), rollout.tokens)[mine]
                spent += len(mine)
    return spent


def _summary(trained: list[tuple[int, Rollout]], cost: dict[str, Cost]) -> Comparison:
    if not trained:
        raise ConfigError("compare_routes: no trajectory trained in so few updates; raise updates or interval")
    error = {
        name: max(float(np.abs(r.scored[name] - r.truth).max()) for _, r in trained) for name in cost
    }  # fmt: skip
    return Comparison(
        error,
        cost,
        sum(len(r.versions) for _, r in trained),
        float(np.mean([len(set(r.versions)) for _, r in trained])),
        max(version - r.versions[0] for version, r in trained),
    )


def _start(rng: np.random.Generator, lengths: tuple[int, int]) -> Rollout:
    return Rollout(int(rng.integers(lengths[0], lengths[1] + 1)), [int(rng.integers(_VOCABULARY))])


def _decode(rollout: Rollout, weights: Floats, version: int, rng: np.random.Generator) -> None:
    logp = weights[rollout.tokens[-1]]
    token = int(rng.choice(_VOCABULARY, p=np.exp(logp)))
    rollout.tokens.append(token)
    rollout.versions.append(version)
    rollout.truth.append(float(logp[token]))


def _weights(seed: int, version: int) -> Floats:
    """Log-probabilities [previous, next] of a version."""
    logits = np.random.default_rng([seed, 1, version]).standard_normal((_VOCABULARY, _VOCABULARY))
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def _forward(weights: Floats, tokens: list[int]) -> Floats:
    return np.asarray(weights[tokens[:-1], tokens[1:]])
