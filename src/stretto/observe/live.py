"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.live import Live

from stretto.kernel.logfile import Event
from stretto.kernel.trajectory_events import ENDINGS
from stretto.observe.forecast import FirstBatch, clock
from stretto.observe.health import Health
from stretto.observe.panel import Shown, num, render
from stretto.observe.tally import Row
from stretto.observe.terminal import Terminal

Mode = Literal["auto", "rich", "plain", "off"]
REFRESH_S = 0.25
PLAIN_EVERY_S = 5.0
_SHOWN = frozenset(("Eval", "Fault", "Waiting", "StepStart", "Resumed"))


class LiveView:
    """Context manager and listener of the event log; ``on_row`` takes the rows of a ``MetricsWriter``.

    ``mode``: ``auto`` is ``rich`` on a terminal and ``plain`` elsewhere. Plain lines go to stderr, at most one per
    ``every_s`` seconds of the wall clock, and one at the end. Nothing is rendered more than four times a second.
    ``health`` hears the same events and rows before this view does: what it newly warns of is said at once.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        max_steps: int = 0,
        *,
        lag_bound: int = 0,
        virtual: bool = False,
        max_new_tokens: int = 0,
        health: Health | None = None,
        every_s: float = PLAIN_EVERY_S,
        console: Console | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Terminal(highlight=False, markup=False, emoji=False)
        if mode == "auto":
            mode = "rich" if self._console.is_terminal and not self._console.is_dumb_terminal else "plain"
        self.mode = mode
        self._every_s, self._wall = every_s, wall
        self._shown = Shown(max_steps, lag_bound, virtual)
        self._forecast = FirstBatch(max_new_tokens)
        self._health = Health() if health is None else health
        self._working: tuple[str, float] | None = None
        self._phase = self._waits = self._last = ""
        """what the run is at, if not at steps; who waits for what; what was said of that last"""
        self._fault = ""
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
            self._refresh()
            self._live.stop()
            self._live = None
        elif self.mode == "plain" and self._shown.row and self._said != self._shown.row["step"]:
            self._say()

    # what there is to show

    def progress(self, message: str) -> None:
        """A line about a start-up phase (loading, warm start); shown at once."""
        self._phase = self._last = message
        if self.mode == "plain":
            self._print(message)
        else:
            self._refresh()

    def working(self, what: str, done: int, total: int) -> None:
        """Something long goes on (an evaluation): how far it is. Shown when a line is due."""
        if self._working is None or self._working[0] != what:
            self._working = (what, self._wall())
        left = ""
        if 0 < done < total:
            left = f", {clock((self._wall() - self._working[1]) / done * (total - done))} left"
        self._phase = f"{what}: {done} of {total}{left}" if done < total else ""
        self._draw()

    def samples(self, lines: Iterable[str]) -> None:
        """What the policy answers, as lines of text: shown at once."""
        self._shown.samples = list(lines)
        if self.mode == "plain":
            for line in self._shown.samples:
                self._print(line)

    def recall(self, event: Event) -> None:
        """Take in an event of the past of a run that goes on, without drawing."""
        self._shown.tally(event)
        self._shown.t = event["t"]
        self._forecast(event)
        if event["e"] == "Eval":
            self._evaluated(event)

    def _evaluated(self, event: Event) -> None:
        self._shown.accuracy[1:] = [(event["version"], event["accuracy"])]  # the first and the last

    def on_row(self, row: Row) -> None:
        """Take one row of metrics."""
        if "eval/accuracy" in row:
            return
        self._shown.note(row, self._wall())
        for finding in self._health.fresh():
            self._shown.warnings.append(finding.line())
            if self.mode == "plain":
                self._print(finding.line())

    def __call__(self, event: Event) -> None:
        """Take one event; renders when something is due."""
        if self.mode == "off":
            return
        self._take(event)
        self._draw()

    def _take(self, event: Event) -> None:
        shown = self._shown
        shown.tally(event)
        shown.t = event["t"]
        self._forecast(event)
        name = event["e"]
        if name == "Submitted" and not shown.pace:
            self._phase = ""
            shown.pace.append((shown.tally.steps, self._wall(), shown.t, *self._tokens()))
        if name in _SHOWN:
            self._show(event)

    def _tokens(self) -> tuple[int, int]:
        ledger = self._shown.tally.ledger()
        return ledger["trained"][1], ledger["submitted"][1]

    def _show(self, event: Event) -> None:
        name = event["e"]
        if name == "Eval":
            self._evaluated(event)
            if self.mode == "plain":
                whole = abs(event["reward"] - event["accuracy"]) < 1e-9  # rewards are 0 or 1: the mean is the accuracy
                mean = "" if whole else f" reward={event['reward']:.3f}"
                self._print(f"eval version={event['version']} accuracy={event['accuracy']:.3f}"
                            f"{mean} n={event['n']}{self._absent(event)}")  # fmt: skip
        elif name == "Fault" and self.mode != "off":
            fault = f"fault at {event['where']}: {event['what']}"
            if fault != self._fault:  # once, if it comes again and again
                self._print(fault)
            self._fault = fault
        elif name == "Waiting" and self.mode != "off":
            self._waits = f"{event['owner']} waits for {event['what']}"
            if self.mode == "plain":
                self._print(f"waiting {event['t'] - event['since']:.0f}s: {self._waits}")
        elif name in ("StepStart", "Resumed"):
            self._phase = self._waits = ""

    @staticmethod
    def _absent(event: Event) -> str:
        n = event.get("absent", 0)
        return f" ({n} of {event['n']} without a reward: they count as 0)" if n else ""

    # showing it

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def _draw(self) -> None:
        """Show the state, if that is due."""
        now = self._wall()
        if self.mode == "off" or now < self._due:
            return
        if self._live is not None:
            self._due = now + REFRESH_S
            self._refresh()
        else:
            self._due = now + self._every_s
            self._say()

    def _refresh(self) -> None:
        if self._live is None:
            return
        shown = self._shown
        shown.now = self._told()
        shown.reckon(self._wall())
        size = self._console.size
        self._live.update(render(shown, size.width, size.height), refresh=True)

    def _now(self) -> str:
        return self._phase or self._forecast.text(self._shown.t) or ""

    def _told(self) -> str:
        """What the panel says of now: a wait that is long stands beside what goes on, and silences nothing."""
        return "; ".join(part for part in (self._now(), self._waits) if part)

    def eta_s(self) -> float | None:
        """Wall seconds until ``max_steps``, from the pace of the last minute; None when unknown."""
        self._shown.reckon(self._wall())
        return self._shown.eta_s

    def line(self) -> str:
        """The plain line: ``key=value`` pairs in a fixed order; ``-`` for what isn't known yet."""
        shown = self._shown
        row, tally = shown.row, shown.tally
        accuracy = f"{shown.accuracy[-1][1]:.3f}" if shown.accuracy else "-"
        ended = " ".join(f"{name}={tally.counts[name]}" for name in ENDINGS)
        return (
            f"step={tally.steps}/{shown.max_steps or '-'} t={shown.t:.1f}s "
            f"reward={num(row.get('reward/trained/mean'))} accuracy={accuracy} "
            f"staleness={num(row.get('staleness/mean'))} max={row.get('staleness/max', '-')} bound={shown.lag_bound} "
            f"tokens_per_s={shown.rates()[0]:.0f} "
            f"idle_learner={num(row.get('idle_ratio/learner'))} idle_engine={num(row.get('idle_ratio/engine'))} "
            f"open={tally.open} {ended} eta={clock(self.eta_s())}"
        )

    def _say(self) -> None:
        self._said = self._shown.tally.steps
        now = self._now()
        if now and now != self._last:
            self._last = now
            self._print(f"t={self._shown.t:.1f}s {now}")
        if self._shown.row:  # before the first step of this session it would hold nothing
            self._print(self.line())
