"""A request in a slot of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Ints
from stretto.rollout.types import Request
from stretto.simulation.blank import blank, constant

NOTHING = blank(constant(0, 0), Finish.ABORTED)
"""What a request has sampled that never had a slot."""


@dataclass(slots=True)
class Row:
    """``start``: the engine's token counter when it began, or last went on; ``length``: tokens to sample from there on;
    ``loads``: how many weights the engine had loaded then; ``version``: that it samples with (and keeps, if it is
    pinned); ``before``: versions of the tokens that it had sampled before it was interrupted."""

    request: Request
    start: float
    length: int
    loads: int
    version: int
    before: Ints | None = None
    begun: bool = False
    """Was its first token told?"""

    def partial(self) -> Completion:
        """What it had sampled when it was interrupted."""
        return NOTHING if self.before is None else blank(self.before, Finish.ABORTED)
