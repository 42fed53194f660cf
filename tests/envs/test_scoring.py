from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
import scoring_functions as f

from stretto.envs.scoring import InlineScoring, ScoringPool
from stretto.envs.verifiers import Run, UserFunction
from stretto.kernel.errors import DataError, DeadlineError, WorkerError


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def guarded() -> Any:
        asyncio.get_running_loop().set_debug(True)
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(guarded())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pid: int, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if gone(pid):
            return True
        time.sleep(0.02)
    return False


def test_calls_return_values_and_raise_what_was_raised() -> None:
    async def body() -> None:
        pool = ScoringPool(1)
        try:
            assert await asyncio.gather(*(pool.call(f.add, i, 1) for i in range(20))) == list(range(1, 21))
            with pytest.raises(KeyError, match="no such unit"):
                await pool.call(f.fail)
            with pytest.raises(RuntimeError, match="Odd"):  # this exception can't be rebuilt from its pickle
                await pool.call(f.fail_oddly)
            for odd, said in (("mute", "Mute: .its text can't be shown"), ("stop", "StopIteration: 3"),
                              ("astop", "StopAsyncIteration"), ("half", r"ValueError: \\ud800")):  # fmt: skip
                with pytest.raises(RuntimeError, match=said):
                    await pool.call(f.fail_with, odd)
            assert len({await pool.call(f.pid) for _ in range(3)}) == 1  # an exception costs no process
            with pytest.raises(RuntimeError):
                await pool.call(f.unpicklable)
            with pytest.raises(DataError, match="module-level"):
                await pool.call(lambda: 0)
            assert not {"torch", "transformers"} & set(await pool.call(f.heavy_modules))
        finally:
            await pool.close()

    run(body())


def test_a_hang_loses_its_process_at_the_deadline_and_disturbs_nobody() -> None:
    async def body() -> None:
        events: list[tuple[str, str]] = []
        pool = ScoringPool(2, deadline_s=30, on_event=lambda kind, worker, reason: events.append((kind, reason)))
        try:
            await asyncio.gather(pool.call(f.sleep_then, 0.05, 0), pool.call(f.sleep_then, 0.05, 0))
            pids = set(pool.pids)
            other = asyncio.create_task(pool.call(f.sleep_then, 1.0, "fine"))
            with pytest.raises(DeadlineError, match=r"scoring_functions:hang ran past its deadline of 0\.5 s"):
                await pool.call(f.hang, deadline_s=0.5)
            assert await other == "fine"
            assert await asyncio.gather(*(pool.call(f.add, i, i) for i in range(8))) == [2 * i for i in range(8)]
            killed = pids - set(pool.pids)
            assert len(killed) == 1
            assert gone(killed.pop())
            assert len(pool.pids) == 2
            assert [k for k, _ in events].count("down") == 1
        finally:
            await pool.close()

    run(body())


def test_a_killed_process_fails_only_its_current_call_and_shows_what_it_printed() -> None:
    async def body() -> None:
        pool = ScoringPool(2)
        try:
            calls = [pool.call(f.sleep_then, 0.2, "ok"), pool.call(f.die), *(pool.call(f.add, i, 0) for i in range(5))]
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(done[1], WorkerError)
            assert "the last words" in str(done[1])
            assert "scoring_functions:die" in str(done[1])
            assert [done[0], *done[2:]] == ["ok", 0, 1, 2, 3, 4]
        finally:
            await pool.close()

    run(body())


def test_a_process_that_is_killed_while_idle_is_replaced_and_no_call_fails() -> None:
    async def body() -> None:
        pool = ScoringPool(1)
        try:
            first = await pool.call(f.pid)
            os.kill(first, signal.SIGKILL)
            await asyncio.sleep(0.3)
            assert await pool.call(f.pid) != first
        finally:
            await pool.close()

    run(body())


def test_closing_leaves_no_process_and_fails_waiting_calls() -> None:
    async def body() -> list[int]:
        pool = ScoringPool(2)
        grandchild = await pool.call(f.spawn_child)
        stuck = [asyncio.create_task(pool.call(f.hang)) for _ in range(5)]
        await asyncio.sleep(0.3)
        pids = [*pool.pids, grandchild]
        assert len(pids) == 3
        await pool.close()
        results = await asyncio.gather(*stuck, return_exceptions=True)
        assert all(isinstance(r, WorkerError) for r in results)
        with pytest.raises(WorkerError, match="closed"):
            await pool.call(f.add, 1, 1)
        return pids

    for pid in run(body()):
        assert wait_gone(pid)


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import scoring_functions as f\n"
        "from stretto.envs.scoring import ScoringPool\n"
        "async def main():\n"
        "    pool = ScoringPool(2)\n"
        "    await pool.call(f.add, 1, 1)\n"
        "    asyncio.create_task(pool.call(f.hang)); await asyncio.sleep(0.5)\n"
        "    print(*pool.pids, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(p) for p in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all(wait_gone(pid) for pid in pids)


def test_a_pool_that_cannot_start_says_why_instead_of_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken interpreter\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))

    async def body() -> None:
        pool = ScoringPool(1)
        with pytest.raises(WorkerError, match="broken interpreter"):
            await pool.call(f.add, 1, 1)
        await pool.close()

    run(body())


@pytest.mark.parametrize("function", [f.hang, f.die])
def test_a_pool_none_of_whose_first_calls_returns_gives_up_and_says_so_once(function: Any) -> None:
    async def body() -> None:
        heard: list[BaseException] = []
        pool = ScoringPool(2, deadline_s=0.1)
        pool.hear_death(heard.append)
        results = await asyncio.gather(*(pool.call(function) for _ in range(40)), return_exceptions=True)
        assert all(isinstance(r, DeadlineError | WorkerError) for r in results)
        (error,) = heard
        message = rf"none of the first 10 calls returned\. The last one: .*scoring_functions:{function.__name__}"
        assert re.search(message, str(error))
        with pytest.raises(WorkerError, match="none of the first"):
            await pool.call(f.add, 1, 1)
        await pool.close()

    run(body())


def test_a_pool_that_has_returned_something_outlives_calls_that_hang() -> None:
    async def body() -> None:
        pool = ScoringPool(1, deadline_s=0.1)
        assert await pool.call(f.add, 1, 1, deadline_s=10) == 2
        await asyncio.gather(*(pool.call(f.die) for _ in range(12)), return_exceptions=True)
        assert await pool.call(f.add, 1, 1, deadline_s=10) == 2
        await pool.close()

    run(body())


def test_no_call_pays_for_imports_not_even_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy_reward.py").write_text(
        "import time\ntime.sleep(1)\ndef f(text, answer, info): return float(text == answer)\n"
        "def hang(text, answer, info):\n    while True: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def body() -> None:
        pool = ScoringPool(1, deadline_s=0.8, imports=("heavy_reward:f",))
        good, bad = (Run(UserFunction(f"heavy_reward:{name}")) for name in ("f", "hang"))
        for _ in range(2):
            assert (await pool.call(good, "1", "1", {})).reward == 1.0
            with pytest.raises(DeadlineError, match=r"^reward heavy_reward:hang ran past its deadline"):
                await pool.call(bad, "1", "1", {})
        await pool.close()

    run(body())


def test_a_pool_whose_imports_fail_says_what_failed() -> None:
    async def body() -> None:
        heard: list[BaseException] = []
        pool = ScoringPool(1, imports=("scoring_functions:nothing",))
        pool.hear_death(heard.append)
        with pytest.raises(WorkerError, match="did not start: reward = 'scoring_functions:nothing'"):
            await pool.call(f.add, 1, 1)
        assert len(heard) == 1
        await pool.close()

    run(body())


def test_a_full_queue_makes_callers_wait() -> None:
    async def body() -> None:
        pool = ScoringPool(1, queue_size=2)
        try:
            calls = [asyncio.create_task(pool.call(f.sleep_then, 0.01, i)) for i in range(12)]
            await asyncio.sleep(0)
            assert pool.queued <= 2
            assert await asyncio.gather(*calls) == list(range(12))
        finally:
            await pool.close()

    run(body())


def test_inline_scoring_calls_directly() -> None:
    assert run(InlineScoring().call(f.pid)) == os.getpid()
