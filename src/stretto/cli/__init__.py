"""The command line. Every command says what is wrong in one message and exits 1; a bug keeps its traceback."""

from __future__ import annotations

import stretto.cli.policy
import stretto.cli.research
import stretto.cli.runs  # noqa: F401  (commands register themselves)
from stretto.cli.app import app
from stretto.cli.entry import main

__all__ = ["app", "main"]
