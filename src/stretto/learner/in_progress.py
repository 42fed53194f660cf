"""The version that is being made: its optimizer steps so far, and what takes them back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from stretto.learner.randomness import DropoutStream


class VersionInProgress:
    """From the first gradient after a version to the optimizer step that completes the next one.

    ``dropout``: do its passes sample? They do so from (seed, version), in the order of the calls; passes of the critic
    alone sample from streams of their own, so that what the policy does doesn't depend on them.
    """

    def __init__(self, seed: int, version: int, dropout: bool) -> None:
        self._seed, self._version = seed, version
        self._dropout = DropoutStream(seed, version) if dropout else None
        self._critic_passes = 0
        self.optimizer_steps = 0
        """Those made so far."""
        self.before: dict[str, Tensor] | None = None
        """Weights and moments at its start; None while nothing has to be taken back."""
        self.average_due = False
        """Has the old-policy route yet to see the last optimizer step of the policy?"""

    def drawing(self, critic_only: bool) -> AbstractContextManager[None]:
        """The randomness of one pass."""
        if self._dropout is None:
            return nullcontext()
        if not critic_only:
            return self._dropout.drawing()
        self._critic_passes += 1
        return DropoutStream(self._seed, self._version, self._critic_passes).drawing()
