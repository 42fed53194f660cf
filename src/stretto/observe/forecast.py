"""When will the first batch be there? What the first seconds of a run say about it.

Until the first step has ended there is no pace to go by, and with a large model that takes minutes. But answers and
tokens are counted from the first second on.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable, Iterable

from stretto.kernel.logfile import Event
from stretto.observe.roles import Roles

LONG_S = 60.0
"""A first batch that takes longer than this comes with what makes it shorter."""
_ENOUGH = 0.1
"""share of the batch's answers from which on their lengths tell something"""


class FirstBatch:
    """Call it with each event; ``left_s``, ``most_s`` and ``text`` say how long the first batch still takes.

    ``max_new_tokens``: what an answer has at most, and is taken to have while too few have ended.
    """

    def __init__(self, max_new_tokens: int) -> None:
        self._longest = self._max_new_tokens = max_new_tokens
        self._groups = self._size = self._slots = 0
        self._start: Event = {}
        self._roles = Roles()
        self._began: float | None = None
        self._valid: dict[int, int] = {}  # of each group that isn't over: valid answers so far
        self._ready: set[int] = set()
        self._lengths: list[int] = []  # of the answers that have ended, ascending
        self._queue: deque[int] = deque()  # answers that no engine has a place for yet
        self._running: dict[int, float] = {}  # answers that are sampled, and ``_position`` when they began
        self._position = 0.0
        """tokens of an answer that is sampled from the first second on"""
        self._done_tokens = self._busy_tokens = self._failed = self._passed = 0
        self._training: int | None = None
        self.over = False
        """The first step has ended."""
        self.handlers: dict[str, Callable[[Event], None]] = {
            "RunStart": self._on_start,
            "WorkerUp": self._roles,
            "RoleChanged": self._roles,
            "Submitted": self._on_submitted,
            "TrajDone": self._on_done,
            "TrajEnd": self._on_traj_end,
            "GroupReady": self._on_ready,
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
        self._groups, self._size = event["prompts_per_step"], event["group_size"]
        self._slots = event["max_num_seqs"] * event["engines"]

    def _on_submitted(self, event: Event) -> None:
        if self._began is None:
            self._began, self._busy_tokens = event["t"], 0
        self._queue.extend(event["traj"])
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self._slots:
            self._running[self._queue.popleft()] = self._position

    def _leave(self, ids: Iterable[int]) -> None:
        for id in ids:
            if self._running.pop(id, None) is None and id in self._queue:
                self._queue.remove(id)
        self._fill()

    def _on_done(self, event: Event) -> None:
        self._leave([event["traj"]])
        bisect.insort(self._lengths, event["tokens"])
        self._longest = max(self._longest, event["tokens"])  # of several turns
        self._done_tokens += event["tokens"]
        if event["reward"] is not None and event["tokens"]:
            self._passed += 1
            self._valid[event["group"]] = self._valid.get(event["group"], 0) + 1

    def _on_traj_end(self, event: Event) -> None:
        self._leave(event["traj"])
        if event["ending"] == "failed":
            self._failed += len(event["traj"])
        if event.get("group_over"):
            self._valid.pop(event["group"], None)
            self._ready.discard(event["group"])

    def _on_ready(self, event: Event) -> None:
        self._valid[event["group"]] = len(event["traj"])
        self._ready.add(event["group"])

    def _on_busy(self, event: Event) -> None:
        if self._began is not None and self._roles.samples(event["worker"]):
            self._busy_tokens += event["tokens"]
            self._position += event["tokens"] / max(1, len(self._running))

    def _on_step(self, event: Event) -> None:
        self._training = event["tokens"]

    def _on_end(self, event: Event) -> None:
        self.over = True

    def _counts(self) -> tuple[int, int]:
        """Valid answers of the groups that are furthest, and how many these groups need: a group that is ready needs
        no more than it has."""
        first = sorted(self._valid, key=lambda g: (g not in self._ready, -self._valid[g]))[: self._groups]
        spare = sum(self._size - self._valid[g] for g in first if g in self._ready)
        return sum(self._valid[g] for g in first), self._groups * self._size - spare

    def left_s(self, t: float) -> float | None:
        """Seconds on the run's clock until the batch is complete, expected; None: nothing is known yet. ``t``: now."""
        return self._reckon(t, self._lengths)

    def most_s(self, t: float) -> float | None:
        """``left_s`` if each answer that is missing becomes as long as it may."""
        return self._reckon(t, [])

    def _reckon(self, t: float, lengths: list[int]) -> float | None:
        if self.over or self._began is None or not self._size or self._only_failures():
            return None
        made, passed = max(self._busy_tokens, self._done_tokens), t - self._began
        if not made or passed <= 0:
            return None
        have, need = self._counts()
        ages = [self._position - start for start in self._running.values()]  # the oldest first
        further = lifetimes(lengths, ages, self._longest)
        # with enough slots later batches decode beside the first one: of what is sampled it has its share
        now = ages[: need - have]
        again = (need - have) * self._failed / max(1, self._passed)  # of what is still needed as many fail
        tokens = sum(map(further, now)) + (need - have - len(now) + again) * further(0.0)
        return tokens * max(1, len(ages)) / max(1, len(now)) / (made / passed)

    def text(self, t: float) -> str | None:
        """One line; None before rollouts start and after the first step."""
        if self.over or self._began is None:
            return None
        if self._training is not None:
            return f"the learner trains the first batch ({self._training:,} tokens)"
        have, need = self._counts()
        failed = f", {self._failed} failed" if self._failed else ""
        begun, passed = f"the first batch: {have} of {need} answers{failed}", t - self._began
        if self._only_failures():
            return f"{begun}: none that ended has a valid reward, so when it is complete can't be said"
        left, most = self.left_s(t), self.most_s(t)
        if left is None or most is None:
            return f"{begun}, no token yet{self._advice(passed)}"
        rate = max(self._busy_tokens, self._done_tokens) / passed
        text = f"{begun}, {rate:,.0f} tokens/s"
        if have < need:
            text += f", complete in {self._said(have / need, left, most)}"
            text += " if no larger share fails" if failed else ""
        return text + self._advice(passed + (most if have < _ENOUGH * need else left))

    def _only_failures(self) -> bool:
        return self._failed > 0 and not self._passed

    def _said(self, share: float, left: float, most: float) -> str:
        """The forecast in words; ``share``: of the answers that are there."""
        bound = f"at most {clock(most)}"
        if share < _ENOUGH:
            return bound
        return f"about {clock(left)}" if share >= 0.5 else f"about {clock(left)}, {bound}"

    def _advice(self, whole_s: float) -> str:
        if whole_s <= LONG_S:
            return ""
        return (
            "; the learner's step comes after. For an earlier one lower "
            f"prompts_per_step ({self._start['prompts_per_step']}), group_size ({self._start['group_size']}) or "
            f"sampling.max_new_tokens ({self._max_new_tokens})"
        )


def lifetimes(ended: list[int], ages: list[float], longest: int) -> Callable[[float], float]:
    """A function of how many tokens an answer has: how many more it is expected to get.

    The short answers end first, so the mean of those that have ended is too low. Kaplan and Meier's estimate of the
    share that is longer than a length counts those that still run; beyond all that is known, answers end at the average
    rate. ``ended``: lengths, ascending; ``ages``: tokens so far of those that run; ``longest``: none gets more. Without
    any ended each is taken to become so long.

    >>> lifetimes([], [10.0], 100)(10.0)
    90.0
    >>> lifetimes([10, 20], [], 100)(0.0)
    15.0
    """
    if not ended:
        return lambda age: max(0.0, longest - age)
    running, points, alive = sorted(ages), [0.0], [1.0]
    for length, several in itertools.groupby(ended):
        risk = len(ended) - bisect.bisect_left(ended, length) + len(running) - bisect.bisect_left(running, length)
        points.append(float(length))
        alive.append(alive[-1] * (1 - len(list(several)) / risk))
    if running and running[-1] > points[-1]:
        points.append(running[-1])
        alive.append(alive[-1])
    rate = (sum(ended) + sum(running)) / len(ended)
    beyond = [alive[-1] * max(0.0, min(rate, longest - points[-1]))]  # tokens beyond each point, from the last one on
    for k in range(len(points) - 1, 0, -1):
        beyond.append(beyond[-1] + alive[k - 1] * (points[k] - points[k - 1]))
    beyond.reverse()

    def further(age: float) -> float:
        k = bisect.bisect_right(points, age) - 1
        if not alive[k]:
            return 0.0
        return max(0.0, min(beyond[k] / alive[k] - (age - points[k]), longest - age))

    return further


def clock(seconds: float | None) -> str:
    """``-``, ``12s``, ``3m05s``, ``2h10m``."""
    if seconds is None:
        return "-"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
