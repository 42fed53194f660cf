"""Arrays by what they hold: the words that signatures use for NumPy arrays of one dtype and any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Reals = NDArray[np.floating]
"""Of either precision."""
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
"""Keys and random bits."""
Bools = NDArray[np.bool_]
Array = NDArray[Any]
"""Of a dtype that something else says: columns by name, records."""
