"""Numba's threads, without a change to anybody else's."""

from __future__ import annotations

import sys

import numba


def start_threads() -> int:
    """Starts Numba's threads (once a process); how many compiled loops use. Call it before a loop over ``prange``.

    Numba's OpenMP layer sets, as it starts, the number of OpenMP threads of its caller: PyTorch's too, which then
    computes on more threads than it was told, slower where cores are shared and with other last digits. What PyTorch
    had is put back."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    threads = numba.get_num_threads()
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)
    return threads
