"""Completions without content: a simulation samples numbers of tokens, so that all share a few read-only arrays."""

from __future__ import annotations

import numpy as np

from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Ints

LONGEST = 1 << 20
"""Tokens of a completion at most."""
_ZEROS = np.zeros(LONGEST, np.float32)
_TOKENS = np.zeros(LONGEST, np.int32)
for _array in (_ZEROS, _TOKENS):
    _array.flags.writeable = False
_CONSTANTS: dict[int, Ints] = {}
_WHOLE: dict[int, dict[int, Completion]] = {}
_VERSIONS = 64


def constant(version: int, n: int) -> Ints:
    """``n`` times ``version``; a read-only slice of an array that is kept."""
    found = _CONSTANTS.get(version)
    if found is None or len(found) < n:
        while len(_CONSTANTS) >= _VERSIONS:
            gone = next(iter(_CONSTANTS))
            del _CONSTANTS[gone]
            _WHOLE.pop(gone, None)
        found = np.full(1 << max(12, n.bit_length()), version, np.int32)
        found.flags.writeable = False
        _CONSTANTS[version] = found
    return found[:n]


def whole(version: int, n: int) -> Completion:
    """``n`` tokens of one version, finished. Their content is zeros, so those of equal length share one value."""
    versions = constant(version, n)
    lengths = _WHOLE.get(version)
    if lengths is None:
        lengths = _WHOLE[version] = {}
    found = lengths.get(n)
    if found is None:
        if len(lengths) >= 4096:
            lengths.clear()
        found = lengths[n] = Completion(_TOKENS[:n], _ZEROS[:n], _ZEROS[:n], versions, Finish.STOP)
    return found


def blank(versions: Ints, finish: Finish) -> Completion:
    """A completion whose tokens have these versions."""
    n = len(versions)
    return Completion(_TOKENS[:n], _ZEROS[:n], _ZEROS[:n], versions, finish)
