"""The environment protocol.

An environment makes tasks and plays them: ``async rollout(client, task) -> Trajectory``. It holds no loop state:
the same object serves many concurrent rollouts. The client gives it the policy (``generate``), the clock
(``sleep``), and a place where blocking or untrusted code can run and be killed (``call``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stretto.data.trajectory import Completion, Ints, Trajectory, Transcript
from stretto.kernel.components import Registry

if TYPE_CHECKING:
    from stretto.models.tokenizer import LightTokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt. ``index`` is its position in the data order; ``prompt`` token ids; ``answer`` and ``info`` are
    the environment's own."""

    index: int
    prompt: Ints
    answer: Any = None
    info: dict[str, Any] = field(default_factory=dict)


class LateClient(Protocol):
    """What a late reward may use: the client of a rollout, without the policy. ``noise_key`` is a number of the
    trajectory's own that is the same in every run of this seed (its id isn't)."""

    @property
    def noise_key(self) -> int: ...

    async def call(self, function: Callable[..., T], *args: object, deadline_s: float | None = None) -> T:
        """Run a module-level function in a process that can be killed; raises what it raised, or
        ``DeadlineError``."""
        ...

    async def sleep(self, seconds: float, what: str) -> None:
        """Wait on the run's clock (virtual in rehearsal); logged as environment time. For a late reward, what had been
        waited before a resume counts."""
        ...

    def uniform(self, *counter: int) -> float:
        """A uniform number in (0, 1): a function of (seed, ``noise_key``, counter) alone."""
        ...


class Client(LateClient, Protocol):
    """What a rollout may use."""

    def transcript(self) -> Transcript:
        """The append-only record of this trajectory (one per rollout)."""
        ...

    async def generate(self, transcript: Transcript, **overrides: object) -> Completion:
        """Let the policy continue the transcript; the completion is appended to it before this returns.

        ``overrides`` replace sampling settings for this turn (``max_new_tokens``, ``stop``, ...).
        """
        ...


class Environment(Protocol):
    """Makes tasks and plays them. Built once per run by the registry; needs ``tokenizer`` and ``seed``.

    One whose rewards arrive in part after the trajectory has an attribute ``promises_late`` (true) and a method
    ``async late_reward(client: LateClient, task, trajectory) -> float | None``, awaited once for each trajectory that
    it finished with ``late=True``; it may return steps after the trajectory trained on ``reward``. It must depend on
    its arguments alone (of the trajectory without ``info``): after a resume it is called anew for those that wait.
    What the number means is the objective's: by default it replaces ``reward``.

    One whose tasks depend on more than its options (files, say) may have a method ``fingerprint() -> dict`` of strings
    and numbers that says what they were; a run goes on from a checkpoint only while it says the same.
    """

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Called once before anything else."""
        ...

    def task(self, index: int) -> Task:
        """Training task number ``index``: a function of (seed, index). Finite sets wrap with a new
        permutation per epoch."""
        ...

    def eval_tasks(self, n: int) -> list[Task]:
        """n tasks that training never samples (indices are -1, -2, ...)."""
        ...

    @property
    def epoch_size(self) -> int | None:
        """Training tasks per epoch; None if the generator is unbounded."""
        ...

    async def rollout(self, client: Client, task: Task) -> Trajectory: ...

    def text(self, trajectory: Trajectory) -> str:
        """The trajectory as a person reads it (reports, samples)."""
        ...


ENVIRONMENTS: Registry[Environment] = Registry(
    "environment",
    ("stretto.envs.arithmetic", "stretto.envs.reverse", "stretto.envs.gym", "stretto.envs.tool", "stretto.envs.data"),
)
