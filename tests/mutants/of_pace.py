"""PACE's pool rule, broken on purpose."""

from __future__ import annotations

from mutant import Mutant

RULE = "control/pace.py"
MUTANTS = [
    Mutant("the excess isn't smoothed", "pace", RULE,
           "rate = (1 - alpha) * rate + alpha * (max(0.0, (n - target) / n) if n else 0.0)",
           "rate = max(0.0, (n - target) / n) if n else 0.0"),
    Mutant("the percentile is upside down", "pace", RULE, "found[i] = (start + end) / (2 * len(order))",
           "found[i] = 1 - (start + end) / (2 * len(order))"),
    Mutant("gamma is ignored", "pace", RULE, "float(percentile**gamma)", "percentile"),
    Mutant("waiting is left out", "pace", RULE, "return waiting + generation *",
           "return generation *"),
    Mutant("waiting starts with the rollout", "pace", "control/pool_watch.py",
           "self._done[id] for id in event[\"traj\"]]\n", "self._done[id] for id in event[\"traj\"]]\n"
           "        event = {**event, \"version\": min(one.sampled // one.tokens for one in members)}\n"),
]  # fmt: skip
