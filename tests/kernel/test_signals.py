"""Signals that end commands: polite once, then at once; nothing keeps a command longer than its deadline."""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
import threading
import time

import pytest

from stretto.kernel import signals
from stretto.kernel.clock import WallLoop
from stretto.kernel.signals import CAUGHT, Interrupted, hear
from stretto.kernel.timeout_queue import TimeoutQueue
from stretto.observe.live import LiveView
from stretto.observe.terminal import Terminal


@pytest.mark.parametrize("number", CAUGHT)
def test_a_signal_is_an_interrupt_where_nobody_is_polite(number: signal.Signals) -> None:
    with hear(), pytest.raises(Interrupted, match=number.name) as caught:
        signal.raise_signal(number)
    assert caught.value.exit_code == 128 + number


def test_the_first_signal_is_polite_the_second_is_not_and_the_first_one_names_the_end() -> None:
    said: list[str] = []
    with hear() as outer, hear() as heard:
        assert heard is outer, "a command and the run in it hear the same"
        with heard.polite(lambda: said.append("stop"), lambda: said.append("end"), 60.0):
            signal.raise_signal(signal.SIGHUP)
            assert said == ["stop"]
            signal.raise_signal(signal.SIGTERM)
            assert said == ["stop", "end"]
        assert heard.first is not None
        assert heard.first.exit_code == 129
        assert not heard.expired


def test_what_somebody_swallowed_is_heard_when_the_run_begins() -> None:
    said: list[str] = []
    with hear() as heard:
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
        with heard.polite(lambda: said.append("stop"), lambda: None, 60.0):
            assert said == ["stop"]


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with hear() as heard:
            signal.raise_signal(signal.SIGHUP)
        assert heard.first is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_politeness_ends_at_its_deadline() -> None:
    over = threading.Event()
    with hear() as heard, heard.polite(lambda: None, over.set, 0.0):
        signal.raise_signal(signal.SIGTERM)
        assert over.wait(60)
        assert heard.expired


HANGS = {
    "in a polite place": "with s.polite(lambda: None, lambda: None, 0.01): signal.raise_signal(15); hang()",
    "after an interrupt": "try: signal.raise_signal(15)\n    except KeyboardInterrupt: hang()",
    "until a second one": "signals.GRACE_S = 1e6\n    try: signal.raise_signal(15)\n"
    "    except KeyboardInterrupt: signal.raise_signal(2)\n    hang()",
}


@pytest.mark.parametrize("place", HANGS)
def test_whatever_hangs_does_not_keep_the_process(place: str) -> None:
    """Nor does an ``os._exit`` that somebody has replaced."""
    code = f"""
import os, signal
from stretto.kernel import signals
signals.GRACE_S = 0.01
def hang():
    while True: pass
os._exit = lambda status: None
with signals.hear() as s:
    {HANGS[place]}
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, check=False)
    assert done.returncode == 143, done.stderr


@pytest.mark.parametrize("told", [True, False])
def test_no_deadline_counts_a_pause_of_the_process(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told of it by SIGCONT; otherwise the clock's jump is time like any other."""
    clock, jump_s = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock() + jump_s)

    async def main() -> list[str]:
        nonlocal jump_s
        loop, late = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, WallLoop)
        TimeoutQueue(loop, 500.0, late.append).add("a member")
        with loop.minding_pauses():
            try:
                async with asyncio.timeout(500):
                    jump_s = 1000.0
                    if told:
                        signal.raise_signal(signal.SIGCONT)
                    await asyncio.sleep(0.001)
                    await asyncio.sleep(0.001)
            except TimeoutError:
                late.append("a wait")
        return sorted(late)

    with asyncio.Runner(loop_factory=WallLoop) as runner:
        assert runner.run(main()) == ([] if told else ["a member", "a wait"])


class Gone(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("mode", ["rich", "plain"])
def test_a_view_outlives_its_terminal(mode: str) -> None:
    with LiveView(mode, 3, console=Terminal(file=Gone())) as live:  # type: ignore[arg-type]
        live.progress("loading")
        live({"e": "Fault", "t": 1.0, "where": "here", "what": "nothing"})


def test_signals_are_heard_by_the_main_thread_alone() -> None:
    found: list[object] = []

    def other() -> None:
        with hear() as heard:
            found.append(heard)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found
    assert signals._current is None
