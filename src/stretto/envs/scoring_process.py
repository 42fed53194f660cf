"""A scoring process as its parent holds it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
from dataclasses import dataclass
from typing import Any

from stretto.kernel.child import HEADER

_TAIL_BYTES = 4096


@dataclass(slots=True)
class ScoringProcess:
    """The parent's side of one process. ``drain`` keeps the ``tail`` of what it prints, ``exit`` waits for its end."""

    handle: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    tail: bytearray
    drain: asyncio.Task[None]
    exit: asyncio.Task[int]

    async def kill(self) -> None:
        """SIGKILL to the process and to what it started, then wait until it is gone."""
        if self.handle.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.handle.pid, signal.SIGKILL)
        await asyncio.wait({self.exit})  # not `await self.exit`: cancelling this kill must not cancel the watch
        self.writer.close()
        # A grandchild in a session of its own may hold the pipe open: don't wait for its end.
        await asyncio.wait({self.drain}, timeout=0.2)
        self.drain.cancel()
        # Process has no public close; without it such a pipe would stay open until garbage collection.
        self.handle._transport.close()  # type: ignore[attr-defined]

    def said(self) -> str:
        """The tail of what it printed."""
        text = bytes(self.tail).decode(errors="replace").strip()
        return f"; it last printed:\n{text}" if text else "; it printed nothing"


async def receive(reader: asyncio.StreamReader) -> tuple[bool, Any]:
    """One answer: (did it return, what it returned or raised)."""
    (count,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    ok, value = pickle.loads(await reader.readexactly(count))
    return ok, value


async def keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    """Read ``stream`` to its end; ``tail`` holds its last bytes."""
    while part := await stream.read(4096):
        tail += part
        del tail[:-_TAIL_BYTES]
