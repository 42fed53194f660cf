"""What an environment may be able to do beyond ``Environment``, as protocols to be asked for with ``isinstance``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stretto.data.trajectory import Trajectory
from stretto.envs.base import LateClient, Task

if TYPE_CHECKING:
    from stretto.envs.verifiers import Verifier


@runtime_checkable
class TakesVerifier(Protocol):
    """Scores with the reward function of the run's configuration."""

    def use_verifier(self, verifier: Verifier) -> None:
        """Called once, before ``bind``."""
        ...


@runtime_checkable
class ChecksAnswers(Protocol):
    """Knows the expected answers of all its tasks."""

    def check_answers(self) -> None:
        """Raise ``DataError`` if one is nothing that its reward can compare. Called once, before ``bind``."""
        ...


@runtime_checkable
class ChecksPrompts(Protocol):
    """Knows the prompts of all its tasks."""

    def check_prompts(self, room: int) -> Iterable[str] | None:
        """Raise ``DataError`` if one has more than ``room`` tokens; notes for the user. Called after ``bind``."""
        ...


@runtime_checkable
class Fingerprinted(Protocol):
    """Its tasks depend on more than its options (files, say)."""

    def fingerprint(self, rows: int | None = None) -> dict[str, object]:
        """Strings and numbers that say what they were (of the first ``rows`` rows; None: of all): ``rows`` (how many)
        and ``content`` (their hash) at least. A run goes on from a checkpoint only while it says the same."""
        ...


@runtime_checkable
class PromisesLate(Protocol):
    """Says whether rewards arrive in part after their trajectory."""

    @property
    def promises_late(self) -> bool:
        """True: it has ``late_reward``."""
        ...


@runtime_checkable
class RewardsLate(Protocol):
    """Gives late rewards (see ``Environment``)."""

    async def late_reward(self, client: LateClient, task: Task, trajectory: Trajectory) -> float | None:
        """Awaited once for each trajectory that it finished with ``late=True``; None: there is none."""
        ...
