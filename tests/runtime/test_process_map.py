"""Calls in processes: their results, and that nothing of them outlives an exception or this process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto.runtime.process_map import ProcessMap

_PARENT = """
import time
from stretto.runtime.process_map import ProcessMap
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
    with contextlib.suppress(KeyboardInterrupt), ProcessMap(2) as pool:
        for _ in pool.results(time.sleep, [(0,), (1000,), (1000,), (1000,)]):
            raise KeyboardInterrupt
    assert not multiprocessing.active_children()


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
