"""JSON as Python reads it, and what can be written as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON text reads as."""
JsonObject: TypeAlias = "dict[str, Json]"
Jsonable: TypeAlias = "bool | int | float | str | Sequence[Jsonable] | Mapping[str, Jsonable] | None"
"""What can be written: tuples become lists."""
