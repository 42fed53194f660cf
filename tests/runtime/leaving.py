"""An environment whose scoring tries to end the process that it runs in."""

from __future__ import annotations

import os
import sys
import zlib

from stretto.data.trajectory import Ints
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import LateClient, Task
from stretto.envs.verifiers import Score


class Leaving(Arithmetic):
    """A third calls sys.exit, a third os._exit, the others score."""

    async def own_score(self, client: LateClient, task: Task, tokens: Ints) -> Score:
        fate = zlib.crc32(tokens.tobytes()) % 3
        if fate == 0:
            sys.exit(0)
        if fate == 1:
            os._exit(0)
        return Score(float(len(tokens)))
