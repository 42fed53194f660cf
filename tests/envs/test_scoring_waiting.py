"""Rewards in virtual time: in a process that can be killed, with a deadline of the wall clock."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine
from typing import Any

import pytest
import scoring_functions as f

from stretto.envs.scoring_waiting import WaitingScoring
from stretto.kernel.errors import DataError, DeadlineError, WorkerError


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_calls_of_virtual_time_run_in_a_process_and_end_as_they_should() -> None:
    async def body() -> None:
        events: list[tuple[str, str]] = []
        scoring = WaitingScoring(30, on_event=lambda kind, worker, reason: events.append((kind, reason)))
        assert not scoring.pids, "a run whose rewards are cheap starts no process"
        first = await scoring.call(f.pid)
        assert first != os.getpid()
        with pytest.raises(KeyError, match="no such unit"):
            await scoring.call(f.fail)
        with pytest.raises(RuntimeError, match="Odd"):
            await scoring.call(f.fail_oddly)
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            await scoring.call(f.leave, "sys.exit")
        with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
            await scoring.call(f.leave, "interrupt")
        with pytest.raises(DataError, match="module-level"):
            await scoring.call(lambda: 0)
        await scoring.call(f.leave_an_alarm)
        assert await scoring.call(f.alarm_left) == 0, "it would hit the next call"
        assert await scoring.call(f.pid) == first
        assert events == [("up", "")], "none of that costs the process its life"
        for hangs in (f.hang, f.sleep_in_c):
            with pytest.raises(DeadlineError, match=rf"{hangs.__name__} ran past its deadline of 0\.1 s"):
                await scoring.call(hangs, deadline_s=0.1)
        with pytest.raises(WorkerError, match=r"(?s)died during .*:die, exit status -9; it last printed:\nthe last"):
            await scoring.call(f.die)
        with pytest.raises(WorkerError, match=r"died during .*:leave, exit status 3; it printed nothing"):
            await scoring.call(f.leave, "os._exit")
        assert await scoring.call(f.add, 1, 1) == 2
        assert [kind for kind, _ in events] == ["up", "down"] * 4 + ["up"]
        (last,) = scoring.pids
        await scoring.close()
        with pytest.raises(ProcessLookupError):
            os.kill(last, 0)
        with pytest.raises(WorkerError, match="closed"):
            await scoring.call(f.add, 1, 1)

    run(body())


@pytest.mark.parametrize("broken", ["calls", "imports"])
def test_scoring_that_can_not_work_says_so_once(broken: str) -> None:
    async def body() -> None:
        heard: list[BaseException] = []
        scoring = WaitingScoring(5, imports=("scoring_functions:nothing",) if broken == "imports" else ())
        scoring.hear_death(heard.append)
        for _ in range(10):
            with pytest.raises(WorkerError):
                await scoring.call(f.leave, "os._exit")
        (error,) = heard
        expected = "none of the first 10 calls returned" if broken == "calls" else "did not start: reward = 'scoring_f"
        assert re.search(expected, str(error))
        await scoring.close()

    run(body())
