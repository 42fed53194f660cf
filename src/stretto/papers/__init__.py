"""The field's papers as experiments: what each claims, our experiment, the figure. Wiring only.

``PAPERS`` lists all; a paper whose ``module`` is set has ``reproduce(settings) -> Outcome`` there.
"""

from __future__ import annotations

from stretto.papers.base import Check, Outcome, Paper, Settings
from stretto.papers.catalog import PAPERS, find

__all__ = ["PAPERS", "Check", "Outcome", "Paper", "Settings", "find"]
