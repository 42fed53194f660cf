"""What a comparison compares: objectives with options, as typed on a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stretto.config.load import parse_override
from stretto.kernel.errors import ConfigError
from stretto.objectives import get

_ARM = re.compile(r"(?:(?P<label>[^=\[\]]+)=)?(?P<name>[^=\[\]]+)(?:\[(?P<options>.*)\])?")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: an objective with options; ``label`` names it in tables and figures."""

    label: str
    name: str
    options: dict[str, object] = field(default_factory=dict)

    def settings(self, critic: str) -> list[str]:
        """Overrides of a recipe that train with it; ``critic``: the recipe's kind of critic, kept where it fits."""
        needs = get(self.name, **self.options).needs
        kind = "none" if "values" not in needs else critic if critic != "none" else "head"
        options = [f"objective.{key}={_toml(value)}" for key, value in self.options.items()]
        return [f"objective.name={self.name}", *options, f"learner.critic.kind={kind}", "allow_uncorrected=true"]


def parse_arms(text: str) -> list[Arm]:
    """``grpo,tis[cap=3],plain=grpo[reference=proximal]`` as arms: objectives separated by commas, options in
    brackets, an own label before ``=``. ``ConfigError`` on anything else, an unknown objective or option included."""
    arms = [_arm(part.strip()) for part in _split(text)]
    if not arms:
        raise ConfigError("--objectives names no objective")
    labels = [arm.label for arm in arms]
    if repeated := [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        raise ConfigError(f"--objectives: {repeated[0]!r} twice; give one of them a label: LABEL={repeated[0]}")
    for arm in arms:
        get(arm.name, **arm.options)
    return arms


def parse_numbers(text: str, option: str) -> list[int]:
    """The distinct integers >= 0 in a text such as ``0,1,8``; ``ConfigError`` for another text."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} = {text!r}: expected whole numbers with commas between, such as 0,1,8") from None
    if any(n < 0 for n in numbers) or len(set(numbers)) != len(numbers):
        raise ConfigError(f"{option} = {text!r}: each number once, none below 0")
    return numbers


def _arm(text: str) -> Arm:
    found = _ARM.fullmatch(text)
    if found is None:
        raise ConfigError(f"--objectives: can't read {text!r}; expected NAME, NAME[option=value,...], LABEL=NAME[...]")
    options: dict[str, object] = {}
    for part in _split(found["options"] or ""):
        (_, key, *rest), value = parse_override(f"objective.{part.strip()}")
        if rest:
            raise ConfigError(f"--objectives: {text!r}: an option's name has no dots: {part!r}")
        if key == "name" or key in options:
            raise ConfigError(f"--objectives: {text!r}: {key!r} is given twice: leave out {part.strip()!r}")
        options[key] = value
    name = found["name"].strip()
    return Arm((found["label"] or text).strip(), name, options)


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _toml(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
