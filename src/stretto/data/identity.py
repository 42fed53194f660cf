"""What the things of a run are called: which policy, and which version of it."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.kernel.errors import InvariantError

POLICY = "policy"
"""The policy of a run that has one."""


@dataclass(frozen=True, order=True, slots=True)
class PolicyVersion:
    """One version of one policy's weights. ``number`` 0 are the initial ones, the k-th published update makes k; those
    of one policy are ordered by it, policies by their name.

    Raises:
        InvariantError: ``policy`` is empty or ``number`` below 0.
    """

    policy: str = POLICY
    number: int = 0

    def __post_init__(self) -> None:
        if not self.policy or self.number < 0:
            raise InvariantError(f"version {self.number} of policy {self.policy!r}: a policy has a name, and its "
                                 "versions are 0, 1, 2, ...")  # fmt: skip

    def __str__(self) -> str:
        return f"version {self.number} of {self.policy}"
