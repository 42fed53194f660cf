"""What went wrong quietly: findings that a run's events and rows give, while it goes on and at its end.

A run can end "done" and have learned nothing: half its rewards failed, every reward was the same, the step size broke
the policy. ``Health`` hears events and rows, keeps a bounded memory, and says each such thing in one sentence with what
to do. The terminal, the result of ``--json``, and the top of the report show the same findings.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace

from stretto.kernel.logfile import Event
from stretto.observe.bounded import Counts
from stretto.observe.calibration import RewardFall
from stretto.observe.tally import Row

FAILED_SHARE = 0.05
"""more failed rewards or rollouts than this are worth a warning (PrimeIntellect-ai/prime-rl, docs/training.md)"""
REJECTED_SHARE = 0.05
"""more rejected tokens than this, of those generated"""
LEAST = 40
"""rollouts (of failures) that a share is taken of at least"""
MISMATCH_KL = 1e-2
"""nats a token between engine and learner at the same version, where rounding alone should be. Not published: our
choice."""
WINDOW = 20
"""steps at the start and at the end that are compared"""
NOT_OF_ROLLOUTS = ("SimulatedFailure", "non-finite gradient")
"""reasons of failures that the configuration asked for, or that are counted as skipped updates, begin so"""


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` was found, and what to ``do``; ``kind`` names it. ``level``: ``warning``, or ``note`` for what may be
    meant so."""

    kind: str
    level: str
    what: str
    do: str

    def line(self) -> str:
        """One line for a terminal."""
        return f"{self.level}: {self.what}. {self.do}"


class Health:
    """Call it with each event, ``on_row`` with each row of metrics; ``findings`` says what is wrong so far."""

    def __init__(self) -> None:
        self._scored = 0  # completed with a reward
        self._failed = Counts()
        self._faults = Counts()
        self._down = Counts()
        self._skipped = 0
        self._steps = 0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._flat: deque[bool] = deque(maxlen=WINDOW)
        self._truncated: deque[float] = deque(maxlen=WINDOW)
        self._mismatch: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # KL and mean ratio of fresh tokens
        self._lowest, self._highest = math.inf, -math.inf
        self._rejected = 0.0
        self._evals: list[tuple[float, int]] = []  # the first one and the last
        self._told: dict[str, Finding] = {}
        self._fall = RewardFall(errors=4)
        self.handlers: dict[str, Callable[[Event], None]] = {
            "TrajDone": self._on_done,
            "TrajEnd": self._on_end,
            "Fault": lambda event: self._faults.add(f"{event['where']}: {event['what']}"),
            "WorkerDown": lambda event: self._down.add(f"{event['worker']}: {event['reason']}"),
            "Eval": self._on_eval,
            "StepEnd": self._on_step_end,
        }
        """What takes in the events of each name that matters."""

    def __call__(self, event: Event) -> None:
        """Take one event."""
        handler = self.handlers.get(event["e"])
        if handler is not None:
            handler(event)

    def _on_done(self, event: Event) -> None:
        self._scored += event["reward"] is not None

    def _on_end(self, event: Event) -> None:
        reason = event["reason"]
        if event["ending"] == "failed" and not event.get("group_over") and not reason.startswith(NOT_OF_ROLLOUTS):
            self._failed.add(reason, len(event["traj"]))

    def _on_eval(self, event: Event) -> None:
        self._evals = [*self._evals[:1], (event["accuracy"], event["n"])]

    def _on_step_end(self, event: Event) -> None:
        self._skipped += bool(event["skipped"])

    def on_row(self, row: Row) -> None:
        """Take one row of metrics."""
        if "mismatch/kl" in row:
            self._mismatch.append((row["mismatch/kl"], row.get("ratio/mean@0", math.nan)))
        reward = row.get("reward/trained/mean")
        if "eval/accuracy" in row or reward is None or not math.isfinite(reward):
            return
        self._steps += 1
        self._fall.see(row.get("step", self._steps), reward)
        if len(self._first) < WINDOW:
            self._first.append(reward)
        self._last.append(reward)
        self._lowest, self._highest = min(self._lowest, reward), max(self._highest, reward)
        self._flat.append(row.get("group/zero_variance_fraction") == 1)
        if "truncated" in row:
            self._truncated.append(row["truncated"])
        self._rejected = row.get("ledger/rejected_token_share", 0.0)

    def findings(self) -> list[Finding]:
        """All of them, the gravest first."""
        checks = (self._failures, self._disagreement, self._rewards, self._accuracy, self._updates, self._lengths,
                  self._losses, self._repairs)  # fmt: skip
        found = [finding for check in checks if (finding := check()) is not None]
        return sorted(found, key=lambda finding: finding.level != "warning")

    def data(self) -> list[dict[str, str]]:
        """``findings``, for JSON: ``kind``, ``level``, ``what``, ``do`` of each; what was told and no longer holds is a
        note that says so."""
        found = self.findings()
        kinds = {finding.kind for finding in found}
        past = [replace(finding, level="note", what=f"during the run: {finding.what}")
                for kind, finding in self._told.items() if kind not in kinds]  # fmt: skip
        return [asdict(finding) for finding in [*found, *past]]

    @property
    def collapse(self) -> int | None:
        """The step at which the trained reward collapsed, by more than chance; None: it did not in the steps seen."""
        return self._fall.at

    def fresh(self) -> list[Finding]:
        """Warnings that were not told before, by kind: to be said while the run goes on."""
        new = [f for f in self.findings() if f.level == "warning" and f.kind not in self._told and f.kind != "faults"]
        self._told |= {f.kind: f for f in new}
        return new

    def _failures(self) -> Finding | None:
        n, failed = self._scored + self._failed.total, self._failed.total
        if n < LEAST or failed <= FAILED_SHARE * n:
            return None
        reason, times = self._failed.commonest(1)[0]
        return Finding(
            "failed", "warning",
            f"{failed / n:.0%} of {n:,} rollouts failed or had no valid reward (most often, {times:,} times: {reason})",
            "What failed does not train: the reward shown is that of the others alone.",
        )  # fmt: skip

    def _disagreement(self) -> Finding | None:
        kl = _median([kl for kl, _ in self._mismatch])
        if not kl > MISMATCH_KL:  # NaN too
            return None
        return Finding(
            "mismatch", "warning", f"engine and learner score different distributions: on tokens of the current version"
            f" the ratio is {_median([mean for _, mean in self._mismatch]):.3g} on average for 1, mismatch/kl {kl:.2g} "
            "nats",
            "Every ratio is off by as much. Usual causes: engine.dtype or learner.bf16, learner.lora.noisy_ratio, "
            "a cache kept over an update at a large step (control.in_flight = 'reprefill').",
        )  # fmt: skip

    def _rewards(self) -> Finding | None:
        if self._steps < WINDOW // 2:
            return None
        if self._lowest == self._highest:
            return Finding(
                "constant", "warning", f"every reward was {self._lowest:g}, at all {self._steps:,} steps",
                "Equal rewards teach nothing: look at the samples. Is it the verifier, the form of the answer, a task"
                " that is too hard (or too easy) for the model?",
            )  # fmt: skip
        first, last = self._first, list(self._last)
        if self._steps >= 2 * WINDOW and _mean(last) < _mean(first):
            fall = _mean(first) - _mean(last)
            if fall > 4 * _error(first, last) and fall > 0.2 * max(abs(_mean(first)), 1e-9):
                return Finding(
                    "fell", "warning", f"the reward fell from {_mean(first):.3f} (first {WINDOW} steps) to "
                    f"{_mean(last):.3f} (last {WINDOW})",
                    "Lower learner.lr first, then lag_bound; see gates, entropy and the ratio in the report.",
                )  # fmt: skip
        if self._fall.at is not None and _mean(last) < 0.7 * self._fall.best:
            return Finding(
                "collapse", "warning", f"the reward fell from {self._fall.best:.3f}, its best mean of ten steps, to "
                f"{self._fall.mean:.3f} at step {self._fall.at}",
                "Lower learner.lr first, then lag_bound; see gates, entropy and the ratio in the report.",
            )  # fmt: skip
        if len(self._flat) == WINDOW and all(self._flat):
            if _mean(last) >= self._highest:
                return Finding("saturated", "note", f"in the last {WINDOW} steps all answers got the same, best reward",
                               "There is nothing left to learn from these tasks.")  # fmt: skip
            return Finding(
                "flat", "warning", f"in the last {WINDOW} steps each group's answers all got the same reward (mean "
                f"{_mean(last):.3f})", "No such step teaches anything: the policy may have lost its variety (entropy).",
            )  # fmt: skip
        return None

    def _accuracy(self) -> Finding | None:
        if len(self._evals) < 2 or self._steps < WINDOW // 2:
            return None
        (before, n0), (after, n1) = self._evals[0], self._evals[-1]
        both = (before * n0 + after * n1) / max(1, n0 + n1)
        error = math.sqrt(max(both * (1 - both), 1e-9) * (1 / max(1, n0) + 1 / max(1, n1)))
        if after < before - 2.5 * error:
            return Finding("accuracy", "warning", f"held-out accuracy fell from {before:.3f} to {after:.3f}",
                           "The policy is damaged: lower learner.lr, or go back to an older checkpoint.")  # fmt: skip
        if self._steps >= 2 * WINDOW and after <= before + error < 1.0:
            return Finding(
                "no-rise", "note", f"held-out accuracy did not rise ({before:.3f} → {after:.3f}, ± {error:.3f})",
                "docs/reading-a-run.md goes through the usual reasons.",
            )  # fmt: skip
        return None

    def _updates(self) -> Finding | None:
        if not self._skipped:
            return None
        return Finding("skipped", "warning", f"{self._skipped:,} updates were skipped: the gradient was not finite",
                       "Their batches are lost (ledger: failed); lower learner.lr.")  # fmt: skip

    def _lengths(self) -> Finding | None:
        if len(self._truncated) < WINDOW // 2 or _mean(self._truncated) <= 0.5:
            return None
        return Finding(
            "truncated", "warning", f"{_mean(self._truncated):.0%} of the latest answers were cut off at a token limit",
            "Raise sampling.max_new_tokens (and engine.max_model_len), or ask for shorter answers.",
        )  # fmt: skip

    def _losses(self) -> Finding | None:
        if self._steps < WINDOW or self._rejected <= REJECTED_SHARE:
            return None
        return Finding("rejected", "warning", f"{self._rejected:.0%} of generated tokens were rejected as too old",
                       "Raise lag_bound, or let control.pool keep what waits.")  # fmt: skip

    def _repairs(self) -> Finding | None:
        n = self._faults.total + self._down.total
        if not n:
            return None
        text, times = max((c.commonest(1)[0] for c in (self._faults, self._down) if c.total), key=lambda most: most[1])
        what = f"a fault: {text}" if n == 1 else f"{n:,} faults (most often, {times:,} times: {text})"
        return Finding("faults", "warning", what, "The end of report.html has them all.")


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


def _median(values: list[float]) -> float:
    """The middle value; of an even number the upper of the two. NaN, which compares with nothing, of none."""
    return sorted(values)[len(values) // 2] if values else math.nan


def _error(a: list[float], b: list[float]) -> float:
    """Standard error of the difference of two means."""

    def squared(values: list[float]) -> float:
        mean = _mean(values)
        return sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1) / len(values)

    return math.sqrt(squared(a) + squared(b))
