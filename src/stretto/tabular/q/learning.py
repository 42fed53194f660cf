"""Q-learning from one trajectory of a decision process, with plain or robust means (BR-Async-Q).

Epochs freeze Q; the targets y = r + gamma max_b Q(s', b) of an epoch's steps are gathered by the recorded (s, a), and
Q(s, a) moves by ``step`` towards their mean, median of means or trimmed mean ("Robust Asynchronous Q-Learning under
Reward and State Corruption via Batching"; predecessors arXiv 2409.03237, 2509.08933). ``vanilla``: every step moves Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints, Words
from stretto.kernel.errors import ConfigError
from stretto.tabular import counter
from stretto.tabular.arguments import array, distinct_seeds, number
from stretto.tabular.mdp import MDP, as_policy, uniform_policy
from stretto.tabular.q import corruption as streams
from stretto.tabular.q import kernel
from stretto.tabular.q.corruption import Corruption
from stretto.tabular.q.robust import MEAN, MEDIAN_OF_MEANS, TRIMMED, trim_for
from stretto.tabular.sampling import alias_table, inverse_cdf
from stretto.tabular.threads import start_threads

KINDS = {"mean": MEAN, "median_of_means": MEDIAN_OF_MEANS, "trimmed": TRIMMED}
Method = Literal["vanilla", "mean", "median_of_means", "trimmed"]


@dataclass(frozen=True)
class Rule:
    """How Q follows its targets; constants [inferred]. ``step``: step size (None: .01 for ``vanilla``, .5 otherwise).
    ``trim``: share that ``trimmed`` drops at each end, a number or one for each pair [S,A] (None: ``trim_for`` the
    corrupted share). ``block``: samples in a block of ``median_of_means``. ``fewest``: a pair with less targets in an
    epoch keeps its value. ``ConfigError`` names what doesn't fit."""

    method: Method = "trimmed"
    step: float | None = None
    trim: ArrayLike | None = None
    block: int = 8
    fewest: int = 4

    def __post_init__(self) -> None:
        if self.method not in ("vanilla", *KINDS):
            raise ConfigError(f"Rule: method = {self.method!r} must be one of vanilla, {', '.join(KINDS)}")
        if self.step is not None:
            number("Rule", "step", self.step, high=1, above=0)
        if self.trim is not None and self.method != "trimmed":
            raise ConfigError(f"Rule: trim has no effect on {self.method}; leave it out")
        if self.trim is not None:
            given = array("Rule", "trim", self.trim)
            if np.ndim(self.trim) not in (0, 2) or given.size == 0:
                raise ConfigError(f"Rule: trim has shape {list(given.shape)} but must be a number or [S,A]")
            for value in (given.min(), given.max()):
                number("Rule", "trim", value, 0, below=0.5)
        for name in ("block", "fewest"):
            whole = int(number("Rule", name, getattr(self, name), 1, 2**53, whole=True))
            object.__setattr__(self, name, whole)  # compiled loops count in whole numbers

    @property
    def size(self) -> float:
        """The step size in use: ``step``, or the method's default where that is None."""
        return (0.01 if self.method == "vanilla" else 0.5) if self.step is None else float(self.step)

    @property
    def kind(self) -> int:
        """The number by which compiled loops know the method's estimator."""
        return KINDS[self.method]

    def trims(self, share: float, states: int, actions: int) -> Floats:
        """The share to drop at each end of each pair's targets, flattened [S A], when a ``share`` of the steps is
        corrupted."""
        if self.method != "trimmed":
            return np.zeros(states * actions)
        given = array("Rule", "trim", trim_for(share) if self.trim is None else self.trim)
        if given.size > 1 and given.shape != (states, actions):
            raise ConfigError(f"Rule: trim has shape {list(given.shape)} but must be a number or [{states}, {actions}]")
        return np.broadcast_to(given, (states, actions)).reshape(-1).copy()


class Trajectories(NamedTuple):
    """What compiled loops read of a process: ``keys`` [seeds, 4] of random numbers, ``starts`` [seeds], the table of
    outcomes (``columns``, ``bits``), and the ``shift`` that splits an outcome into action and next state."""

    keys: Words
    starts: Ints
    columns: Floats
    bits: int
    shift: int


def trajectories(mdp: MDP, behaviour: ArrayLike | None, seeds: ArrayLike) -> Trajectories:
    """Tables for trajectories of ``mdp`` under ``behaviour`` [S,A] (None: uniform), one a seed. The first state is
    drawn from ``mdp.start``."""
    policy = uniform_policy(mdp) if behaviour is None else behaviour
    policy = as_policy("q_learning", "behaviour", policy, mdp.states, mdp.actions)
    seeds = distinct_seeds("q_learning", seeds)
    shift = max(1, (mdp.states - 1).bit_length())
    law = np.zeros((mdp.states, mdp.actions, 1 << shift))
    law[:, :, : mdp.states] = policy[:, :, None] * mdp.transitions
    kinds = (streams.MOVES, streams.NOISE, streams.HITS, streams.FAKES)
    keys = np.array([[counter.key(int(s), kind) for kind in kinds] for s in seeds], np.uint64)
    first = [counter.uniform(np.uint64(counter.key(int(s), streams.START)), 0) for s in seeds]
    starts = inverse_cdf(mdp.start, first).astype(np.int64)
    return Trajectories(keys, starts, *alias_table(law.reshape(mdp.states, -1)), shift)


def q_learning(
    mdp: MDP,
    seeds: ArrayLike,
    rule: Rule | None = None,
    corruption: Corruption | None = None,
    *,
    epochs: int = 100,
    batch: int = 8000,
    noise: float = 0.0,
    behaviour: ArrayLike | None = None,
) -> Floats:
    """Q [seeds, epochs, S, A] after each epoch of ``batch`` steps (for ``vanilla``: after every ``batch`` steps), from
    Q = 0. ``rule``: default trimmed. ``corruption``: default none. ``noise``: standard deviation of normal noise on
    true rewards. ``behaviour`` [S,A]: probabilities of actions (None: uniform). Seeds run on all of Numba's threads;
    how many there are doesn't change a result. ``ConfigError`` names what doesn't fit."""
    rule, corruption = Rule() if rule is None else rule, Corruption() if corruption is None else corruption
    for name, value, kind in (("mdp", mdp, MDP), ("rule", rule, Rule), ("corruption", corruption, Corruption)):
        if not isinstance(value, kind):
            raise ConfigError(f"q_learning: {name} must be of type {kind.__name__}; got {type(value).__name__}")
    epochs = int(number("q_learning", "epochs", epochs, 1, whole=True))
    batch = int(number("q_learning", "batch", batch, 1, whole=True))
    noise = number("q_learning", "noise", noise, 0)
    world = trajectories(mdp, behaviour, seeds)
    try:
        out = np.empty((len(world.starts), epochs, mdp.states, mdp.actions))
        np.empty((2, batch))  # what a compiled loop will ask for
    except (MemoryError, ValueError, OverflowError):
        raise ConfigError(f"q_learning: epochs = {epochs} of batch = {batch} don't fit into memory") from None
    wrong = (noise, float(corruption.share), float(corruption.magnitude), corruption.level)
    seen = (*world, mdp.rewards, mdp.gamma, wrong if noise > 0 or corruption.share > 0 else None, batch, rule.size)
    start_threads()
    if rule.method == "vanilla":
        kernel.vanilla(out, *seen)
    else:
        trims = rule.trims(corruption.share, mdp.states, mdp.actions)
        kernel.batched(out, *seen, rule.kind, trims, rule.block, rule.fewest)
    return out


def sup_errors(history: Floats, target: ArrayLike) -> Floats:
    """Largest error over states and actions, max |Q - target| [...], of each table in ``history`` [..., S, A];
    ``target`` [S,A]."""
    history = array("sup_errors", "history", history)
    target = array("sup_errors", "target", target, (None, None))
    if history.shape[-2:] != target.shape:
        raise ConfigError(f"sup_errors: history has shape {list(history.shape)} but target {list(target.shape)}")
    return np.asarray(np.abs(history - target).max((-1, -2)))
