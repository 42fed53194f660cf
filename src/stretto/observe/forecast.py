"""When will the first batch be there? What the first seconds of a run say about it.

Until the first step has ended there is no pace to go by, and with a large model that takes minutes. But answers and
tokens are counted from the first second on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto.observe.tally import Event


class FirstBatch:
    """Call it with each event; ``left_s`` and ``text`` say how long the first batch still takes.

    ``max_new_tokens``: what an answer is taken to have while too few have ended, so the forecast begins as a bound.
    """

    def __init__(self, max_new_tokens: int) -> None:
        self._longest = max_new_tokens
        self._need = self._at_once = 0
        self._start: dict[str, Any] = {}
        self._began: float | None = None
        self._done = self._done_tokens = self._busy_tokens = self._failed = 0
        self._training: int | None = None
        self.over = False
        """The first step has ended."""
        self.handlers: dict[str, Callable[[Event], None]] = {
            "RunStart": self._on_start,
            "Submitted": self._on_submitted,
            "TrajDone": self._on_done,
            "TrajEnd": self._on_traj_end,
            "Busy": self._on_busy,
            "StepStart": self._on_step,
            "StepEnd": self._on_end,
            "Resumed": self._on_end,
        }

    def __call__(self, event: Event) -> None:
        """Take one event."""
        if not self.over and (handler := self.handlers.get(event["e"])) is not None:
            handler(event)

    def _on_start(self, event: Event) -> None:
        self._start = event
        self._need = event["prompts_per_step"] * event["group_size"]
        slots = event["max_num_seqs"] * event["engines"]
        # with that many slots later batches decode beside the first one and slow it down
        self._at_once = max(self._need, min(slots, (event["lag_bound"] + 1) * self._need))

    def _on_submitted(self, event: Event) -> None:
        if self._began is None:
            self._began, self._busy_tokens = event["t"], 0

    def _on_done(self, event: Event) -> None:
        self._done += 1
        self._done_tokens += event["tokens"]

    def _on_traj_end(self, event: Event) -> None:
        self._failed += len(event["traj"]) if event["ending"] == "failed" else 0

    def _on_busy(self, event: Event) -> None:
        if event["worker"] != "learner" and self._began is not None:
            self._busy_tokens += event["tokens"]

    def _on_step(self, event: Event) -> None:
        self._training = event["tokens"]

    def _on_end(self, event: Event) -> None:
        self.over = True

    def left_s(self, t: float) -> float | None:
        """Seconds on the run's clock until the batch is complete; None: nothing is known yet. ``t``: now."""
        if self.over or self._began is None or not self._need:
            return None
        made, passed = max(self._busy_tokens, self._done_tokens), t - self._began
        if not made or passed <= 0:
            return None
        enough = self._done >= 0.1 * self._need
        length = self._done_tokens / self._done if enough else self._longest
        return max(0.0, self._at_once * length - made) / (made / passed)

    def text(self, t: float) -> str | None:
        """One line; None before rollouts start and after the first step."""
        if self.over or self._began is None:
            return None
        if self._training is not None:
            return f"the learner trains the first batch ({self._training:,} tokens)"
        begun = f"the first batch: {self._done} of {self._need} answers"
        left, passed = self.left_s(t), t - self._began
        if left is None:
            return f"{begun}, no token yet"
        rate = max(self._busy_tokens, self._done_tokens) / passed
        failed = f", {self._failed} failed" if self._failed else ""
        text = f"{begun}{failed}, {rate:,.0f} tokens/s"
        if not left and self._done < self._need:  # as much is sampled as it takes, and answers are still missing
            return text
        bound = "" if self._done >= 0.1 * self._need else "at most "
        text += f", complete in {bound}{clock(left)}"
        if left + passed > 60:
            text += (
                f"; for an earlier one lower prompts_per_step ({self._start['prompts_per_step']}), group_size "
                f"({self._start['group_size']}) or sampling.max_new_tokens ({self._longest})"
            )
        return text


def clock(seconds: float | None) -> str:
    """``-``, ``12s``, ``3m05s``, ``2h10m``."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
