"""Messages between the orchestrator and a worker process: length-prefixed pickles over a socket pair.

Both ends are ours and the socket has no name, so pickle carries nothing foreign. The parent side is asyncio streams
and never blocks; the child side blocks only when it has nothing to do.
"""

from __future__ import annotations

import asyncio
import pickle
import select
import socket
import struct
from typing import Any

_HEADER = struct.Struct("<Q")


def encode(message: Any) -> bytes:
    """Bytes of one message."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message; raises ``asyncio.IncompleteReadError`` when the other end is gone."""
    (size,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    return pickle.loads(await reader.readexactly(size))


class ChildWire:
    """The child's end."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def send(self, message: Any) -> None:
        """Send one message."""
        self._socket.sendall(encode(message))

    def poll(self) -> bool:
        """Is a message (or the end) waiting?"""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self) -> Any:
        """The next message; raises ``EOFError`` when the parent is gone."""
        (size,) = _HEADER.unpack(self._exactly(_HEADER.size))
        return pickle.loads(self._exactly(size))

    def _exactly(self, n: int) -> bytearray:
        data = bytearray(n)
        view, at = memoryview(data), 0
        while at < n:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise EOFError("the parent is gone")
            at += got
        return data
