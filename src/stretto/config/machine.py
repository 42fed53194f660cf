"""What this machine has that a configuration should know of."""

from __future__ import annotations

import os
import re
from pathlib import Path


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Does the processor multiply bfloat16 numbers itself? None: it doesn't say."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(found[1].split())
