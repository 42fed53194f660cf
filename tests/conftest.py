"""What all tests share."""

from __future__ import annotations

from stretto.tabular.threads import start_threads

start_threads()  # tests ask Numba about its threads; PyTorch's are to stay those of the environment
