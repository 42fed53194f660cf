"""The live panel on a terminal, rendered from what the view knows; it uses the terminal that it has."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stretto.kernel.trajectory_events import ENDINGS
from stretto.observe.forecast import clock
from stretto.observe.tally import Row, Tally

BARS = "▁▂▃▄▅▆▇█"
BESIDE = 34
"""columns of the panel that a curve can't have: frame, names, the figure before it"""
TALL = 24
"""terminals with more lines than this see what the optimizer does and what the policy answers, too"""
PACE_S = 60.0
"""rates and the remaining time are those of the last minute"""
FIGURES = ("entropy", "grad_norm", "length/mean", "truncated", "group/zero_variance_fraction", "reward/valid_fraction")


@dataclass(slots=True)
class Shown:
    """What is shown. ``t``: seconds on the run's clock."""

    max_steps: int
    lag_bound: int
    virtual: bool
    tally: Tally = field(default_factory=Tally)
    row: Row = field(default_factory=dict)
    """the latest row of metrics"""
    accuracy: list[tuple[int, float]] = field(default_factory=list)
    """(version, held-out accuracy): the first evaluation and the latest one"""
    rewards: list[float] = field(default_factory=list)
    """mean reward of each of the latest steps"""
    t: float = 0.0
    eta_s: float | None = None
    now: str = ""
    """what the run is at, if not at steps"""
    warnings: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    pace: deque[tuple[int, float, float, int, int]] = field(default_factory=deque)
    """of the last minute's rows: step, wall clock, run's clock, tokens trained and generated so far"""

    def note(self, row: Row, wall: float) -> None:
        """Take in a row of a step."""
        self.row = row
        reward = row.get("reward/trained/mean")
        if reward is not None:
            self.rewards.append(reward)
            del self.rewards[:-400]
        if len(self.pace) > 2 and wall - self.pace[-2][1] < PACE_S / 240:
            self.pace.pop()  # of many steps in an instant the last is enough
        self.pace.append((row["step"], wall, row["t"], row.get("ledger/trained_tokens", 0),
                          row.get("ledger/submitted_tokens", 0)))  # fmt: skip
        while len(self.pace) > 2 and wall - self.pace[1][1] > PACE_S:
            self.pace.popleft()

    def reckon(self, wall: float) -> None:
        """The wall seconds until ``max_steps``, at the pace of the last minute; a halt makes them more."""
        self.eta_s = None
        if len(self.pace) < 2 or not self.max_steps:
            return
        before, since = self.pace[0][:2]
        step, last = self.pace[-1][:2]
        if step > before:
            seconds = max(last - since, wall - since - PACE_S)
            self.eta_s = seconds / (step - before) * max(0, self.max_steps - step)

    def rates(self) -> tuple[float, float]:
        """(trained, generated) tokens per second of the run's clock, over the last minute's steps."""
        if len(self.pace) < 2 or self.pace[-1][2] <= self.pace[0][2]:
            return self.row.get("tokens_per_s/trained", 0.0), self.row.get("tokens_per_s/generated", 0.0)
        first, last = self.pace[0], self.pace[-1]
        passed = last[2] - first[2]
        return (last[3] - first[3]) / passed, (last[4] - first[4]) / passed


def render(shown: Shown, width: int, height: int) -> Panel:
    """The panel for a terminal of ``width`` columns and ``height`` lines."""
    row, tally = shown.row, shown.tally
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True, ratio=1)
    if shown.now or not row:
        grid.add_row("now", _wrapped(shown.now or "waiting for the first step"))
    if row:
        curve = spark(shown.rewards, max(20, width - BESIDE))
        grid.add_row("reward", Text.assemble(f"{num(row.get('reward/trained/mean'))}  ", (curve, "cyan")))
    if shown.accuracy:
        version, accuracy = shown.accuracy[-1]
        begun = f" (began at {shown.accuracy[0][1]:.3f})"
        grid.add_row("accuracy", f"{accuracy:.3f} held out, version {version}{begun}")
    if row:
        grid.add_row("staleness", f"mean {num(row.get('staleness/mean'))}, max {row.get('staleness/max', '-')} "
                     f"of bound {shown.lag_bound}")  # fmt: skip
        trained, generated = shown.rates()
        grid.add_row("tokens/s", f"{trained:,.0f} trained, {generated:,.0f} generated")
        idle = (f"{role} {row[f'idle_ratio/{role}']:.0%}" for role in ("learner", "engine", "env"))
        grid.add_row("idle", ", ".join(idle))
    ended = ", ".join(f"{tally.counts[e]} {e}" for e in ENDINGS if tally.counts[e] or e == "trained")
    waiting = tally.open - tally.in_flight
    grid.add_row("ledger", f"{tally.submitted} submitted: {tally.in_flight} in flight, {waiting} waiting, {ended}")
    if height > TALL and row:
        for name in FIGURES:
            if isinstance(value := row.get(name), int | float):
                grid.add_row(name, f"{value:.4g}")
    for line in shown.warnings[-3:]:
        grid.add_row("", _wrapped(line, "yellow"))
    if height > TALL:
        for line in shown.samples[: height - TALL]:
            grid.add_row("sample", Text(line.removeprefix("sample ")))
    return Panel(Group(_bar(shown, width), grid), title=Text("Stretto"), title_align="left", border_style="dim")


def _wrapped(text: str, style: str = "") -> Text:
    """On as many lines as it takes: its end says what to do."""
    return Text(text, style, no_wrap=False, overflow="fold")


def _bar(shown: Shown, width: int) -> Text:
    steps, width = shown.tally.steps, max(20, min(width - 50, 120))
    share = min(1.0, steps / shown.max_steps) if shown.max_steps else 0.0
    full = int(share * width)
    now = f"virtual {clock(shown.t)}" if shown.virtual else clock(shown.t)
    label = f" step {steps}/{shown.max_steps}" if shown.max_steps else f" step {steps}"
    times = f"  {now}, eta {clock(shown.eta_s)}"
    return Text.assemble(("━" * full, "cyan"), ("━" * (width - full), "dim"), label, (times, "dim"))


def num(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def spark(values: list[float], width: int) -> str:
    """The values as a row of ``width`` bars at most, each the mean of its share of them."""
    if not values:
        return ""
    n = min(width, len(values))
    means = []
    for k in range(n):
        part = values[k * len(values) // n : (k + 1) * len(values) // n]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    span = high - low
    return "".join(BARS[round((m - low) / span * (len(BARS) - 1)) if span > 0 else 0] for m in means)
