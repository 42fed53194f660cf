"""The hooks: what each is asked, and where its rules are registered.

A rule is a dataclass whose fields are its options; its methods are pure functions of the view. What it promises it
lists as ``guarantees`` (``control.guarantees``). ``Rules`` holds one rule per hook, built from ``control.*`` of the
config.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stretto.config.plugins import build_component
from stretto.config.schema import RunConfig
from stretto.config.sections import Component, Control
from stretto.control.actions import Limits, PreemptionAction, RoleChange
from stretto.control.guarantees import HOOKS_OF, Guarantee, kept, promises
from stretto.control.view import View
from stretto.kernel.components import Registry
from stretto.kernel.errors import ConfigError

T = TypeVar("T")


class Admission(Protocol):
    """May one more group start?"""

    def decide(self, view: View, version: int) -> int:
        """How many groups may start now if dispatched at ``version``."""
        ...


class VersionPinning(Protocol):
    """Which version serves a group?"""

    def assign(self, view: View, engine: str) -> int | None:
        """A version to pin the group to, or None: whatever its engine has loaded, token by token."""
        ...


class Router(Protocol):
    """Which engine serves a group?"""

    def route(self, view: View, versions: Collection[int]) -> str | None:
        """Name of an engine that is up and holds one of ``versions`` (those at which a group may start), or None."""
        ...


class Preemption(Protocol):
    """Which running trajectories pause, go on, or move?"""

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        """What happens now; asked whenever something has changed, and seen in the view at once."""
        ...


class PoolRule(Protocol):
    """Which ready groups are rejected before the next batch is formed?"""

    def evict(self, view: View) -> Sequence[int]: ...


class Filter(Protocol):
    """Is a finished group dropped before it becomes ready?"""

    def drop(self, rewards: Sequence[float]) -> str | None:
        """The reason, or None to keep it. ``rewards``: the raw valid ones."""
        ...


class BatchForm(Protocol):
    """Which ready groups form the batch of a step that could start now?"""

    def form(self, view: View) -> Sequence[int] | None:
        """Group ids in training order, or None: wait. ``view.take`` of them: fewer than ``view.batch`` only where the
        data ends."""
        ...


class Publish(Protocol):
    """Which engines load the newest version now?"""

    def check(self, config: RunConfig) -> None:
        """Raise ``ConfigError`` if the rule can't work with this configuration."""
        ...

    def engines(self, view: View) -> Sequence[str]: ...


class Streaming(Protocol):
    """How many groups does the learner take at a time?"""

    def portions(self, view: View, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """The batch's groups in the portions handed to the learner; one portion is one optimizer step's batch."""
        ...


class Elastic(Protocol):
    """Which workers change role?"""

    def decide(self, view: View) -> Sequence[RoleChange]: ...


class Quota(Protocol):
    """How much may run at once?"""

    def limits(self, view: View) -> Limits: ...


class LossMask(Protocol):
    """Which sampled tokens count in the loss?"""

    def keep(self, tokens: int, turns: int) -> slice:
        """The part of a trajectory's policy tokens that trains."""
        ...


ADMISSION: Registry[Admission] = Registry("control.admission", ("stretto.control.admission",))
VERSION_PINNING: Registry[VersionPinning] = Registry("control.version_pinning", ("stretto.control.version_pinning",))
ROUTER: Registry[Router] = Registry("control.router", ("stretto.control.router",))
PREEMPTION: Registry[Preemption] = Registry("control.preemption", ("stretto.control.preemption",))
POOL: Registry[PoolRule] = Registry("control.pool", ("stretto.control.pool", "stretto.control.pace"))
FILTER: Registry[Filter] = Registry("control.filter", ("stretto.control.filter",))
BATCH: Registry[BatchForm] = Registry("control.batch", ("stretto.control.batch",))
PUBLISH: Registry[Publish] = Registry("control.publish", ("stretto.control.publish",))
STREAMING: Registry[Streaming] = Registry("control.streaming", ("stretto.control.streaming",))
ELASTIC: Registry[Elastic] = Registry("control.elastic", ("stretto.control.elastic",))
QUOTA: Registry[Quota] = Registry("control.quota", ("stretto.control.quota",))
LOSS_MASK: Registry[LossMask] = Registry("control.loss_mask", ("stretto.control.loss_mask",))

HOOKS: dict[str, Registry[object]] = {
    "admission": ADMISSION,
    "version_pinning": VERSION_PINNING,
    "router": ROUTER,
    "preemption": PREEMPTION,
    "pool": POOL,
    "filter": FILTER,
    "batch": BATCH,
    "publish": PUBLISH,
    "streaming": STREAMING,
    "elastic": ELASTIC,
    "quota": QUOTA,
    "loss_mask": LOSS_MASK,
}

METHODS: dict[str, tuple[str, ...]] = {
    "admission": ("decide",),
    "version_pinning": ("assign",),
    "router": ("route",),
    "preemption": ("decide",),
    "pool": ("evict",),
    "filter": ("drop",),
    "batch": ("form",),
    "publish": ("check", "engines"),
    "streaming": ("portions",),
    "elastic": ("decide",),
    "quota": ("limits",),
    "loss_mask": ("keep",),
}
"""What each hook's rule is asked."""

UNHEARD: dict[str, str] = {
    "streaming": "the learner takes a batch whole",
}
"""Hooks whose answers nothing can act on yet, and why: any rule but the default is refused."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One rule per hook."""

    admission: Admission
    version_pinning: VersionPinning
    router: Router
    preemption: Preemption
    pool: PoolRule
    filter: Filter
    batch: BatchForm
    publish: Publish
    streaming: Streaming
    elastic: Elastic
    quota: Quota
    loss_mask: LossMask

    @property
    def guarantees(self) -> list[Guarantee]:
        """What a run with these rules keeps, beside what the loop keeps in any run."""
        return kept({hook: getattr(self, hook) for hook in HOOKS})

    def view(self) -> View:
        """A new view that keeps what these rules read."""

        def read(what: str) -> bool:
            return any(getattr(getattr(self, hook), what, False) for hook in HOOKS)

        return View(read("watches_trajectories"), read("watches_pool"))


def build_rules(config: RunConfig) -> Rules:
    """The rules that the config names; unknown names, options or combinations raise ``ConfigError``."""
    chosen = in_order(config)
    names: dict[str, str] = {}

    def rule(hook: str, registry: Registry[T]) -> T:
        spec: Component = chosen.get(hook) or getattr(config.control, hook)
        names[hook] = spec.name
        _check_heard(hook, spec.name)
        built = build_component(registry, spec, f"control.{hook}", METHODS[hook])
        promises(hook, built)
        return built

    built = Rules(
        admission=rule("admission", ADMISSION),
        version_pinning=rule("version_pinning", VERSION_PINNING),
        router=rule("router", ROUTER),
        preemption=rule("preemption", PREEMPTION),
        pool=rule("pool", POOL),
        filter=rule("filter", FILTER),
        batch=rule("batch", BATCH),
        publish=rule("publish", PUBLISH),
        streaming=rule("streaming", STREAMING),
        elastic=rule("elastic", ELASTIC),
        quota=rule("quota", QUOTA),
        loss_mask=rule("loss_mask", LOSS_MASK),
    )
    _check_soft(names, built)
    _check_quota(config, built.quota)
    built.publish.check(config)
    return built


def _check_heard(hook: str, name: str) -> None:
    default = getattr(Control(), hook).name
    if hook in UNHEARD and name != default:
        raise ConfigError(f"control.{hook}.name = {name!r} would change nothing: {UNHEARD[hook]}. Leave it out "
                          f"(the default is {default!r})")  # fmt: skip


def _check_quota(config: RunConfig, quota: Quota) -> None:
    """A group's trajectories start together: what never holds one would start nothing."""
    limit = getattr(quota, "trajectories", None)
    if config.control.quota.name == "fixed" and limit is not None and limit < config.group_size:
        raise ConfigError(
            f"control.quota.trajectories = {limit} is less than group_size = {config.group_size}, whose trajectories "
            "start together: raise it, or lower group_size"
        )


def _check_soft(names: dict[str, str], rules: Rules) -> None:
    """The soft baseline is whole or not at all. ``slots`` starts more than can train in time, so a batch rule that
    waits for deadlines waits forever and what is ready grows without end; ``fifo`` trains without regard to the lag
    bound, which ``demand`` admission can't keep alone. What rules of the user's own can is theirs to know."""
    pair = [hook for hook in HOOKS_OF[Guarantee.LAG_BOUND] if ":" not in names[hook]]
    asked = [hook for hook in pair if Guarantee.LAG_BOUND not in promises(hook, getattr(rules, hook))]
    if not asked:
        return
    wrong = [hook for hook in pair if hook not in asked]
    if names["pool"] == "keep":
        wrong.append("pool")
    if wrong:
        have = ", ".join(f"control.{hook}.name = {names[hook]!r}" for hook in wrong)
        raise ConfigError(
            f"control.{asked[0]}.name = {names[asked[0]]!r} can't go with {have}: groups would pile up or train beyond "
            "the lag bound. The soft baseline is control.admission.name = 'slots', control.batch.name = 'fifo' and "
            "control.pool.name = 'drop-oldest' or 'pace' together; leave it out to keep the bound"
        )


def in_order(config: RunConfig) -> dict[str, Component]:
    """The rules of ``control`` that ``order`` replaces: submission needs its own batch rule and its own admission."""
    if "submission" not in (config.order, config.control.batch.name):
        return {}
    own = {"batch": "demand", "admission": "demand"}
    for hook, default in own.items():
        name = getattr(config.control, hook).name
        if name != "submission" and (name != default or hook in config.control.model_fields_set):
            asked = "order" if config.order == "submission" else "control.batch.name"
            raise ConfigError(
                f"{asked} = 'submission' and control.{hook}.name = {name!r} contradict each other: leave one out"
            )
    return {hook: Component(name="submission") for hook in own}
