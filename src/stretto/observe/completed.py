"""Metrics over the trajectories that completed since the step before, whatever became of them."""

from __future__ import annotations

from collections import Counter

from stretto.kernel.metrics import Metric, Section, declare
from stretto.observe.tally import Done, Row, percentile

OWN = declare(
    __name__,
    Metric(Section.ROW, "completed", "trajectories", "completed in the interval, whatever became of them",
           "near the batch's size", "see `idle_ratio/engine`"),
    Metric(Section.REWARD, "reward/all/{mean,count}", "reward, trajectories",
           "valid rewards of all that completed in the interval", "level or rising",
           "look at samples before the optimizer"),
    Metric(Section.REWARD, "reward/valid_fraction", "share", "of completed trajectories, those with a reward",
           "at least 0.95", "the reward function fails: `logs/`, the report's faults"),
    Metric(Section.REWARD, "reward/fn/<name>/mean", "reward", "of several reward functions, this one's values",
           "all of them rise", "a weight of one that drowns the others"),
    Metric(Section.REWARD, "reward/fn/<name>/failed", "share", "trajectories to which this function gave no value",
           "0", "its traceback in `logs/`"),
    Metric(Section.WORK, "length/{mean,p95}", "tokens", "of completed trajectories; the policy's own",
           "no sudden change", "grows without reward: a length penalty"),
    Metric(Section.WORK, "truncated", "share", "completed ones that a token limit ended", "at most 0.05",
           "`sampling.max_new_tokens`"),
    Metric(Section.WORK, "turns/mean", "turns", "of completed trajectories"),
)  # fmt: skip


def completed(done: list[Done]) -> Row:
    """The metrics of these trajectories; without one, only how many there are."""
    row: Row = {"reward/all/count": 0, "completed": len(done)}
    if not done:
        return row
    rewards = [d.reward for d in done if d.reward is not None]
    row["reward/all/count"] = len(rewards)
    if rewards:
        row["reward/all/mean"] = sum(rewards) / len(rewards)
    row["reward/valid_fraction"] = len(rewards) / len(done)
    row |= _functions([d.rewards for d in done if d.rewards is not None])
    lengths = [d.tokens for d in done]
    row["length/mean"] = sum(lengths) / len(lengths)
    row["length/p95"] = percentile(Counter(lengths), 0.95)
    row["truncated"] = sum(d.truncated for d in done) / len(done)
    row["turns/mean"] = sum(d.turns for d in done) / len(done)
    return OWN.checked(row)


def _functions(several: list[dict[str, float | None]]) -> Row:
    """Of each of several reward functions: the mean of its values and the share of trajectories without one."""
    row: Row = {}
    for label in several[0] if several else ():
        values = [value for rewards in several if (value := rewards[label]) is not None]
        if values:
            row[f"reward/fn/{label}/mean"] = sum(values) / len(values)
        row[f"reward/fn/{label}/failed"] = 1 - len(values) / len(several)
    return row
