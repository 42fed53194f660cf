"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stretto.observe.tally import ENDINGS, Event, Row, Tally

Mode = Literal["auto", "rich", "plain", "off"]
REFRESH_S = 0.25
PLAIN_EVERY_S = 5.0
_SHOWN = frozenset(("Eval", "Fault", "Waiting", "StepStart", "Resumed"))
BARS = "▁▂▃▄▅▆▇█"


class LiveView:
    """Context manager and listener of the event log; ``on_row`` takes the rows of a ``MetricsWriter``.

    ``mode``: ``auto`` is ``rich`` on a terminal and ``plain`` elsewhere. Plain lines go to stderr, at most one per
    ``every_s`` seconds of the wall clock, and one at the end. Nothing is drawn more than four times a second.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        max_steps: int = 0,
        *,
        lag_bound: int = 0,
        virtual: bool = False,
        every_s: float = PLAIN_EVERY_S,
        console: Console | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        if mode == "auto":
            mode = "rich" if self._console.is_terminal and not self._console.is_dumb_terminal else "plain"
        self.mode = mode
        self._max_steps, self._lag_bound, self._virtual, self._every_s = max_steps, lag_bound, virtual, every_s
        self._wall = wall
        self._tally = Tally()
        self._row: Row = {}
        self._accuracy: list[tuple[int, float]] = []
        self._rewards: list[float] = []
        self._t = 0.0
        self._first: tuple[int, float] | None = None
        self._phase = ""
        self._due = 0.0
        self._said = -1
        self._live: Live | None = None
        if mode == "off":
            self.handlers: dict[str, Callable[[Event], None]] = {}  # it hears nothing

    def __enter__(self) -> Self:
        self._due = self._wall() + self._every_s
        if self.mode == "rich":
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._panel(), refresh=True)
            self._live.stop()
            self._live = None
        elif self.mode == "plain" and self._row and self._said != self._row["step"]:
            self._say()

    def progress(self, message: str) -> None:
        """A line about a start-up phase (loading, warm start); shown at once."""
        self._phase = message
        if self.mode == "plain":
            self._print(message)
        elif self._live is not None:
            self._live.update(self._panel(), refresh=True)

    def replay(self, events: Iterable[Event]) -> None:
        """Take in the events of a run that goes on, without drawing."""
        for event in events:
            self._take(event)

    def on_row(self, row: Row) -> None:
        """Take one row of metrics."""
        if "eval/accuracy" in row:
            return
        self._row = row
        reward = row.get("reward/trained/mean")
        if reward is not None:
            self._rewards.append(reward)
            del self._rewards[:-400]
        if self._first is None:
            self._first = (row["step"], self._wall())

    def __call__(self, event: Event) -> None:
        """Take one event; draws when something is due."""
        if self.mode == "off":
            return
        self._take(event)
        now = self._wall()
        if now < self._due:
            return
        if self._live is not None:
            self._due = now + REFRESH_S
            self._live.update(self._panel(), refresh=True)
        else:
            self._due = now + self._every_s
            self._say()

    def _take(self, event: Event) -> None:
        self._tally(event)
        self._t = event["t"]
        if event["e"] in _SHOWN:
            self._show(event)

    def _show(self, event: Event) -> None:
        name = event["e"]
        if name == "Eval":
            self._accuracy.append((event["version"], event["accuracy"]))
            if self.mode == "plain":
                self._print(f"eval version={event['version']} accuracy={event['accuracy']:.3f} n={event['n']}")
        elif name == "Fault" and self.mode != "off":
            self._print(f"fault at {event['where']}: {event['what']}")
        elif name == "Waiting" and self.mode != "off":
            self._phase = f"{event['owner']} waits for {event['what']}"
            if self.mode == "plain":
                self._print(f"waiting {event['t'] - event['since']:.0f}s: {self._phase}")
        elif name in ("StepStart", "Resumed"):
            self._phase = ""

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def eta_s(self) -> float | None:
        """Wall seconds until ``max_steps``, from the pace since the first row; None when unknown."""
        if self._first is None or not self._max_steps:
            return None
        steps, seconds = self._tally.steps - self._first[0], self._wall() - self._first[1]
        return seconds / steps * max(0, self._max_steps - self._tally.steps) if steps > 0 else None

    def line(self) -> str:
        """The plain line: ``key=value`` pairs in a fixed order; ``-`` for what isn't known yet."""
        row, tally = self._row, self._tally
        accuracy = f"{self._accuracy[-1][1]:.3f}" if self._accuracy else "-"
        ended = " ".join(f"{name}={tally.counts[name]}" for name in ENDINGS)
        return (
            f"step={tally.steps}/{self._max_steps or '-'} t={self._t:.1f}s "
            f"reward={_num(row.get('reward/trained/mean'))} accuracy={accuracy} "
            f"staleness={_num(row.get('staleness/mean'))} max={row.get('staleness/max', '-')} bound={self._lag_bound} "
            f"tokens_per_s={row.get('tokens_per_s/trained', 0):.0f} "
            f"idle_learner={_num(row.get('idle_ratio/learner'))} idle_engine={_num(row.get('idle_ratio/engine'))} "
            f"open={tally.open} {ended} eta={_clock(self.eta_s())}"
        )

    def _say(self) -> None:
        self._said = self._tally.steps
        if self._tally.steps or not self._phase:
            self._print(self.line())

    def _panel(self) -> Panel:
        row, tally = self._row, self._tally
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(no_wrap=True, ratio=1)
        if self._phase or not row:
            grid.add_row("now", Text(self._phase or "waiting for the first step"))
        if row:
            reward = f"{_num(row.get('reward/trained/mean'))}  "
            grid.add_row("reward", Text.assemble(reward, (spark(self._rewards, 40), "cyan")))
        if self._accuracy:
            version, accuracy = self._accuracy[-1]
            grid.add_row(
                "accuracy", f"{accuracy:.3f} held out, version {version} (began at {self._accuracy[0][1]:.3f})"
            )
        if row:
            grid.add_row("staleness", f"mean {_num(row.get('staleness/mean'))}, max {row.get('staleness/max', '-')} "
                         f"of bound {self._lag_bound}")  # fmt: skip
            grid.add_row("tokens/s", f"{row['tokens_per_s/trained']:,.0f} trained, "
                         f"{row['tokens_per_s/generated']:,.0f} generated")  # fmt: skip
            grid.add_row("idle", ", ".join(f"{role} {row[f'idle_ratio/{role}']:.0%}" for role in
                                           ("learner", "engine", "env")))  # fmt: skip
        ended = ", ".join(f"{tally.counts[e]} {e}" for e in ENDINGS if tally.counts[e] or e == "trained")
        waiting = tally.open - tally.in_flight
        grid.add_row("ledger", f"{tally.submitted} submitted: {tally.in_flight} in flight, {waiting} waiting, {ended}")
        return Panel(Group(self._bar(), grid), title=Text("Stretto"), title_align="left", border_style="dim")

    def _bar(self) -> Text:
        steps, width = self._tally.steps, 30
        share = min(1.0, steps / self._max_steps) if self._max_steps else 0.0
        full = int(share * width)
        clock = f"virtual {_clock(self._t)}" if self._virtual else _clock(self._t)
        label = f" step {steps}/{self._max_steps}" if self._max_steps else f" step {steps}"
        times = f"  {clock}, eta {_clock(self.eta_s())}"
        return Text.assemble(("━" * full, "cyan"), ("━" * (width - full), "dim"), label, (times, "dim"))


def _num(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}"


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


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
