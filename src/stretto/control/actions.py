"""What rules may ask for beside saying yes or no: that a trajectory rests or moves, that a worker changes its role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stretto.data.identity import ENGINES, Role
from stretto.kernel.errors import ConfigError


class Preempt(StrEnum):
    """What becomes of a running trajectory."""

    PAUSE = "pause"
    """It samples no more until it is resumed; its KV cache and its slot stay."""
    EVICT = "evict"
    """As ``pause``, but it leaves its engine: its cache is dropped, and computed anew when it is resumed."""
    RESUME = "resume"
    """It goes on; on ``engine``, if one is named."""
    MIGRATE = "migrate"
    """It goes on in ``engine``, and its cache goes along: no token is prefilled again."""


@dataclass(frozen=True, slots=True)
class PreemptionAction:
    """``verb`` for ``trajectory``. ``engine``: where it goes on (``migrate`` needs it, ``resume`` may say it).

    Raises:
        ConfigError: an unknown verb, or an engine where none belongs or none is named.
    """

    verb: Preempt
    trajectory: int
    engine: str | None = None

    def __post_init__(self) -> None:
        if self.verb not in tuple(Preempt):
            raise ConfigError(f"control.preemption: {self.verb!r} is no verb; there are {', '.join(Preempt)}")
        if self.engine is None and self.verb == Preempt.MIGRATE:
            raise ConfigError(f"control.preemption migrates trajectory {self.trajectory} to no engine: name one")
        if self.engine is not None and self.verb in (Preempt.PAUSE, Preempt.EVICT):
            raise ConfigError(f"control.preemption: {self.verb} of trajectory {self.trajectory} names engine "
                              f"{self.engine!r}, and goes nowhere: leave it out")  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Elastic action: from now on this engine is ``Role.ENGINE`` (work is routed to it) or ``Role.STANDBY`` (none is).
    One that is down changes, too, and stays down.

    Raises:
        ConfigError: another role.
    """

    engine: str
    role: Role

    def __post_init__(self) -> None:
        if self.role not in ENGINES:
            raise ConfigError(f"control.elastic gives {self.engine} the role {str(self.role)!r}: an engine can be "
                              f"{' or '.join(repr(str(role)) for role in sorted(ENGINES))}")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Concurrency limits; None: no limit of this kind."""

    trajectories: int | None = None
    """Running trajectories in all."""
