"""Child processes: asked, watched, ended with what they started, and their last words."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from stretto.kernel.supervised import Child

ECHO = """
import os, pickle, socket, subprocess, sys
from stretto.kernel.child import receive, send
wire = socket.socket(fileno=int(sys.argv[1]))
while (message := receive(wire)) is not None:
    order = pickle.loads(message)
    if order == "die":
        print("the last words", flush=True)
        os._exit(3)
    if order == "hang":
        import time
        time.sleep(1000)
    if order == "child":
        order = subprocess.Popen(["sleep", "1000"]).pid
    if order == "daemon":
        order = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
    if order == "print":
        for n in range(100_000):
            print("line", n)
        sys.stdout.flush()
    send(wire, pickle.dumps(order))
"""


def echo(fd: int) -> Sequence[str]:
    return [sys.executable, "-c", ECHO, str(fd)]


def asked(child: Child, order: object, deadline_s: float = 60.0) -> object:
    return child.ask(pickle.dumps(order), deadline_s)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_child_answers_lives_and_ends_with_what_it_started() -> None:
    child = Child(echo)
    assert asked(child, {"a": 1}) == {"a": 1}
    grandchild = asked(child, "child")
    assert isinstance(grandchild, int)
    assert (child.alive, child.status, child.fate) == (True, None, "closed its connection")
    assert child.kill() == child.kill() == -9
    assert (child.alive, child.fate, child.obituary) == (False, "was killed by SIGKILL", "; it printed nothing")
    end = time.monotonic() + 60
    while not gone(grandchild) and time.monotonic() < end:
        time.sleep(0.01)
    assert gone(grandchild)


def test_a_child_past_its_deadline_is_still_there_to_be_killed() -> None:
    child = Child(echo)
    asked(child, 1)
    with pytest.raises(TimeoutError):
        asked(child, "hang", 0.01)
    assert child.alive
    child.kill()


def test_a_dead_child_says_how_and_what_it_printed_last() -> None:
    child = Child(echo)
    with pytest.raises(EOFError):
        asked(child, "die")
    assert child.fate == "exited (3)"
    with pytest.raises(EOFError):
        asked(child, 1)
    child.kill()
    assert child.obituary == "; it last printed:\nthe last words"


def test_however_much_it_prints_only_the_end_is_kept() -> None:
    child = Child(echo)
    asked(child, "print")
    child.kill()
    assert child.said.endswith("line 99999")
    assert len(child.said) <= 4096


def test_a_log_file_is_appended_to_and_holds_the_last_words(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("before\n")
    child = Child(echo, log=log, environment={**os.environ, "X": "1"})
    with pytest.raises(EOFError):
        asked(child, "die")
    assert child.said == "before\nthe last words"
    child.kill()


def test_a_descendant_of_another_session_keeps_nobody_waiting() -> None:
    child = Child(echo)
    daemon = asked(child, "daemon")
    assert isinstance(daemon, int)
    child.kill()
    assert not gone(daemon), "documented: it began a session of its own"
    psutil.Process(daemon).kill()


def test_an_event_loop_goes_on_while_it_waits_for_the_end() -> None:
    async def body() -> None:
        child = Child(echo)
        assert not await child.exited(0)
        reader, writer = await asyncio.open_connection(sock=child.socket)
        watch = asyncio.create_task(child.exited())
        await asyncio.sleep(0)
        os.kill(child.pid, 9)
        assert await watch
        assert await reader.read() == b""
        assert await child.exited(0)
        writer.close()
        assert await child.killed() == -9

    asyncio.run(asyncio.wait_for(body(), 60))


def test_what_can_not_be_started_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for log in (None, Path("/proc/nowhere/x.log")):
        with pytest.raises(OSError, match="No such file"):
            Child(lambda fd: ["/nonexistent"], log=log)
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_stays_open_after_a_child() -> None:
    before = len(os.listdir("/proc/self/fd"))
    child = Child(echo)
    asked(child, 1)
    child.kill()
    assert len(os.listdir("/proc/self/fd")) == before
