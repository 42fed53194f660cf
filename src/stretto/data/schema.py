"""What pooled trajectories are made of: named columns, one number (or vector) a step or a trajectory.

A schema names a payload and what every payload comes with: which steps the policy took (``mask``), under which weights
(``versions``), with which probability (``logp_behavior``), and what they earned. ``TOKENS`` is that of language models;
``actions`` makes one of observations and actions. Whatever the schema, a group is packed once when it is complete, and
batches are selected and concatenated from its columns.

Columns are flat: per-step ones are [sum(length), ...], trajectory after trajectory, per-row ones [B]. Further per-step
columns called ``record.<name>`` may come with any payload: what an engine or a scorer noted of each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from stretto.data.arrays import Array
from stretto.kernel.errors import InvariantError

Columns = dict[str, Array]
"""Name -> array, as the schema says; the lengths of the trajectories are the column ``length`` [B]."""
RECORD = "record."
"""How the names of records begin."""


@dataclass(frozen=True)
class Field:
    """One column: ``shape`` of one entry, ``per`` step or row (a trajectory). ``dtype`` may be a family
    (``np.floating``)."""

    name: str
    dtype: type[np.generic]
    shape: tuple[int, ...] = ()
    per: Literal["step", "row"] = "step"

    def check(self, column: Array, entries: int) -> None:
        """Raise ``InvariantError`` unless ``column`` holds so many entries of this kind."""
        want = (entries, *self.shape)
        if column.shape != want or not np.issubdtype(column.dtype, self.dtype):
            raise InvariantError(
                f"column {self.name!r}: expected {self.dtype.__name__} {list(want)} (one per {self.per}), got "
                f"{column.dtype} {list(column.shape)}"
            )


_COMMON = (
    Field("length", np.int64, per="row"),
    Field("trajectory", np.int64, per="row"),
    Field("group", np.int64, per="row"),
    Field("mask", np.bool_),
    Field("versions", np.signedinteger),
    Field("logp_behavior", np.floating),
    Field("rewards", np.floating),
    Field("reward", np.float64, per="row"),
    Field("terminated", np.bool_, per="row"),
    Field("truncated", np.bool_, per="row"),
    Field("version_complete", np.int32, per="row"),
)
"""Of every payload. ``mask``: the policy took this step. ``reward``: of the whole trajectory, NaN if absent."""


@dataclass(frozen=True)
class Schema:
    """A payload by name, and all its columns."""

    name: str
    payload: tuple[Field, ...]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All columns but records, by name."""
        return {field.name: field for field in (*_COMMON, *self.payload)}

    def per_step(self, name: str) -> bool:
        """Has this column an entry for each step?"""
        return name.startswith(RECORD) or (name in self.fields and self.fields[name].per == "step")

    def check(self, columns: Mapping[str, Array]) -> None:
        """Raise ``InvariantError`` that names the first column that isn't as this schema says."""
        missing = [name for name in self.fields if name not in columns]
        unknown = [name for name in columns if name not in self.fields and not name.startswith(RECORD)]
        if missing or unknown:
            what = f"lack {missing}" if missing else f"have {unknown}, which it doesn't know"
            raise InvariantError(f"columns of the schema {self.name!r} {what}")
        rows, steps = len(columns["length"]), int(columns["length"].sum())
        for name, field in self.fields.items():
            field.check(columns[name], steps if field.per == "step" else rows)
        for name, column in columns.items():
            if name.startswith(RECORD) and len(column) != steps:
                raise InvariantError(f"column {name!r} has {len(column)} entries for {steps} steps")

    def pack(self, episodes: Sequence[Mapping[str, Any]]) -> Columns:
        """Columns of these episodes, each given as name -> [T, ...] or one value; ``length`` is that of ``mask``.
        Raises ``InvariantError`` as ``check``."""
        columns: Columns = {"length": np.array([len(e["mask"]) for e in episodes], np.int64)}
        for name in dict.fromkeys([*self.fields, *(name for e in episodes for name in e)]):
            if name == "length":
                continue
            if missing := [k for k, e in enumerate(episodes) if name not in e]:
                raise InvariantError(f"schema {self.name!r}: episode {missing[0]} has no {name!r}")
            if self.per_step(name):
                columns[name] = np.concatenate([np.asarray(e[name]) for e in episodes])
            else:
                kind = self.fields[name].dtype if name in self.fields else None
                columns[name] = np.array([e[name] for e in episodes], kind)
        self.check(columns)
        return columns

    def select(self, columns: Columns, rows: Sequence[int]) -> Columns:
        """The columns of these trajectories alone, in this order, in arrays of their own."""
        index = np.asarray(rows, np.int64)
        ends = np.cumsum(columns["length"])
        steps = [np.arange(ends[row] - columns["length"][row], ends[row]) for row in index]
        at = np.concatenate([np.empty(0, np.int64), *steps])
        return {name: column[at if self.per_step(name) else index] for name, column in columns.items()}


TOKENS = Schema(
    "tokens",
    (Field("tokens", np.int32), Field("entropy", np.floating), Field("turns", np.int32, per="row")),
)
"""Tokens of a language model: ids, the entropy of what each was sampled from (nats), turns of the policy."""


def actions(
    observation: tuple[int, ...],
    action: tuple[int, ...] = (),
    *,
    observation_dtype: type[np.generic] = np.float32,
    action_dtype: type[np.generic] = np.float32,
) -> Schema:
    """Observations and actions of a simulator or a robot: shapes and dtypes of one of each, ``()`` for one number."""
    return Schema(
        "actions", (Field("observation", observation_dtype, observation), Field("action", action_dtype, action))
    )
