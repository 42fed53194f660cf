"""Calls in processes: their results, and that nothing of them outlives an exception or this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.process_map import ProcessMap

_PARENT = """
import time
from stretto.kernel.process_map import ProcessMap
if __name__ == "__main__":
    with ProcessMap(2) as pool:
        import os
        for pid in pool.results(os.getpid, [()]):
            print(pid, flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_of_all_calls(jobs: int) -> None:
    with ProcessMap(jobs) as pool:
        assert sorted(pool.results(pow, [(2, 3), (3, 2), (2, 2)])) == [4, 8, 9]
        here = list(pool.results(os.getpid, [()])) == [os.getpid()]
    assert here == (jobs == 1)


def test_an_interrupt_waits_for_no_call() -> None:
    pids: list[int] = []
    with contextlib.suppress(KeyboardInterrupt), ProcessMap(2) as pool:
        pids += pool.results(os.getpid, [(), ()])
        for _ in pool.results(time.sleep, [(0,), (1000,), (1000,), (1000,)]):
            raise KeyboardInterrupt
    assert pids
    assert not any(map(_alive, pids))


def test_whatever_a_call_raises_comes_with_its_traceback_and_costs_no_process() -> None:
    with ProcessMap(2) as pool:
        with pytest.raises(ZeroDivisionError) as caught:
            list(pool.results(divmod, [(1, 0)]))
        assert "In the process that called builtins:divmod" in caught.value.__notes__[0]
        assert "ZeroDivisionError" in caught.value.__notes__[0]
        with pytest.raises(RuntimeError, match="SystemExit: 3"):
            list(pool.results(sys.exit, [(3,)]))
        assert list(pool.results(abs, [(-1,)])) == [1]


def test_a_process_that_dies_is_an_error_that_says_how() -> None:
    with ProcessMap(2) as pool, pytest.raises(WorkerError, match=r"a process exited \(7\) during posix:_exit"):
        list(pool.results(os._exit, [(7,)]))


def test_calls_that_nobody_waits_for_end() -> None:
    with ProcessMap(2) as pool:
        found = pool.results(time.sleep, [(0,), (1000,), (1000,)])
        next(found)
        found.close()  # type: ignore[attr-defined]
        assert list(pool.results(abs, [(-1,), (-2,)])) in ([1, 2], [2, 1])


def test_a_function_of_the_main_script_can_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_alive, "__module__", "__main__")
    with ProcessMap(2) as pool, pytest.raises(StrettoError, match="move the function to a module"):
        list(pool.results(_alive, [(1,)]))


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(_PARENT)
    parent = subprocess.Popen([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 30
    while _alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(child)
    parent.stdout.close()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
