"""What rules promise of a run: said by the rules, logged with ``RunStart``, held against the log by the checker.

A rule's class lists its promises: ``guarantees: ClassVar = frozenset({Guarantee.WHOLE_BATCHES})``. One that lists none
promises none, and nothing is checked that only some rules keep. What takes several hooks is kept where all of them
promise it. The lag bound itself is the loop's own and checked in any run; a rule that promises it never runs into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stretto.kernel.errors import ConfigError, did_you_mean


class Guarantee(StrEnum):
    """One promise."""

    LAG_BOUND = "lag-bound"
    """Everything that starts can train within the lag bound: nothing need be dropped for it."""
    DEPTH = "depth"
    """At most (depth + 1) batches of groups are outstanding."""
    WHOLE_BATCHES = "whole-batches"
    """Each step trains ``prompts_per_step`` groups; what is left at the end of the data may be fewer."""
    SUBMISSION_ORDER = "submission-order"
    """Groups train in the order in which they were submitted."""
    LOADED_VERSION = "loaded-version"
    """A group is dispatched at the version that its engine holds."""
    ONE_VERSION = "one-version"
    """A trajectory is sampled by one version, that of its dispatch."""


HOOKS_OF: dict[Guarantee, tuple[str, ...]] = {
    Guarantee.LAG_BOUND: ("admission", "batch"),
    Guarantee.DEPTH: ("admission",),
    Guarantee.WHOLE_BATCHES: ("batch",),
    Guarantee.SUBMISSION_ORDER: ("batch",),
    Guarantee.LOADED_VERSION: ("version_pinning",),
    Guarantee.ONE_VERSION: ("version_pinning",),
}
"""Whose promise each is."""


def promises(hook: str, rule: object) -> frozenset[Guarantee]:
    """What this rule of ``hook`` promises.

    Raises:
        ConfigError: it is nothing that a rule of this hook can promise.
    """
    said: object = getattr(rule, "guarantees", frozenset())
    known = [str(guarantee) for guarantee, hooks in HOOKS_OF.items() if hook in hooks]
    if not isinstance(said, frozenset | set | tuple | list):
        raise ConfigError(f"control.{hook}: {type(rule).__name__}.guarantees must be a set of Guarantee, got {said!r}")
    for item in said:
        if item not in known:
            hint = did_you_mean(str(item), known) if known else "such rules promise nothing"
            raise ConfigError(f"control.{hook}: {type(rule).__name__} can't guarantee {str(item)!r}; {hint}")
    return frozenset(map(Guarantee, said))


def kept(rules: Mapping[str, object]) -> list[Guarantee]:
    """What a run with these rules, by hook, keeps."""
    said = {hook: promises(hook, rule) for hook, rule in rules.items()}
    return [guarantee for guarantee, hooks in HOOKS_OF.items() if all(guarantee in said[hook] for hook in hooks)]
