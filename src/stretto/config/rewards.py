"""``reward``: one verifier by its name, or several with weights."""

from __future__ import annotations

import math
from typing import Self

from pydantic import Field, ValidationError, model_validator

from stretto.config.sections import Component


class RewardFunction(Component):
    """One of several reward functions. Every other key is an option of the built-in verifier that ``name`` names."""

    name: str = Field(min_length=1, description="exact, numeric, regex, math-verify, or `module:function`.")
    weight: float = Field(1.0, description="The reward is the sum of weight x value. 0: only watched.")
    label: str | None = Field(None, min_length=1, description="Its name in the metrics; None: `name`.")
    required: bool = Field(
        True,
        description="Where it is absent, so is the reward. False: it then counts as 0, as in TRL. With weight 0 it is "
        "always false.",
    )

    @model_validator(mode="after")
    def _finite(self) -> Self:
        if not math.isfinite(self.weight):
            raise ValueError(f"weight = {self.weight} is not a finite number")
        if self.weight == 0:  # only watched: its failure must not cost the answer
            if self.required and "required" in self.model_fields_set:
                raise ValueError(
                    "required = true with weight = 0: what is only watched can't be required. Leave it out"
                )
            self.__dict__["required"] = False
        return self

    @property
    def shown(self) -> str:
        """Its name in metrics and messages."""
        return self.label or self.name


def reward_functions(value: object) -> object:
    """A list of names and tables, or one table, as ``RewardFunction``s; anything else as it is. ``ValueError`` says
    which entry is wrong."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    if not value:
        raise ValueError("an empty list: name at least one reward function, or leave `reward` out")
    functions = [_function(entry, f"entry {number}") for number, entry in enumerate(value, 1)]
    shown = [function.shown for function in functions]
    if twice := sorted({label for label in shown if shown.count(label) > 1}):
        raise ValueError(f"{twice[0]!r} comes twice: give each one a `label` of its own")
    if not any(function.weight for function in functions):
        raise ValueError("every weight is 0: the reward would be 0 whatever the policy writes")
    return functions


def _function(entry: object, where: str) -> RewardFunction:
    if isinstance(entry, RewardFunction):
        return entry
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, dict):
        raise ValueError(f'{where} is {entry!r}: expected a name or a table, {{name = "exact", weight = 1.0}}')
    if "name" not in entry:
        raise ValueError(f'{where}: name is missing: an entry is {{name = "exact", weight = 1.0}}')
    try:
        return RewardFunction.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where}: {key}{key and ': '}{first['msg'].removeprefix('Value error, ')}") from error


def reward_names(reward: str | list[RewardFunction] | None) -> list[str]:
    """The names of the verifiers that ``reward`` names."""
    if reward is None:
        return []
    return [reward] if isinstance(reward, str) else [function.name for function in reward]
