"""``TokenBatch``: what an objective sees. Torch tensors, right padded, one row a trajectory (or a step of one).

Masks come from lengths and roles. Masked places may hold anything, NaN included, and never matter; the one
exception is a reward on a non-policy token inside ``length``, which belongs to the policy token before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.data.arrays import Array
from stretto.data.totals import Totals
from stretto.kernel.errors import DataError, InvariantError

_TOKEN_FIELDS = (
    "tokens", "mask", "logp_behavior", "logp_proximal", "logp_old", "entropy", "values", "targets", "rewards",
    "versions",
)  # fmt: skip
_ALTERNATIVE_FIELDS = (
    "sampled_tokens", "sampled_logp_behavior", "top_tokens", "top_logp_behavior", "temperature", "support",
)  # fmt: skip
_CURRENT_FIELDS = ("sampled_logp_current", "top_logp_current")
_RECORDS = ("sampled_ids", "sampled_logprobs", "top_ids", "top_logprobs", "temperature", "support")
_RECORDED = {"logp_proximal": "logp_proximal"} | dict(zip(_RECORDS, _ALTERNATIVE_FIELDS, strict=True))
"""Names of records (the engine's, but for the first), and the fields that they become."""
_ROW_FIELDS = (
    "group", "trajectory", "length", "terminated", "truncated", "bootstrap", "reward_fast", "reward_slow", "trained_at",
)  # fmt: skip
_FLOATING = ("logp_behavior", "logp_proximal", "logp_old", "entropy", "sampled_logp_behavior", "top_logp_behavior",
             *_CURRENT_FIELDS)  # fmt: skip
_MEASURED = ("values", "targets", "rewards", "bootstrap", "reward_fast", "reward_slow")
"""May be given as integers: a log-probability or entropy in integers would be a mistake."""
_INTEGERS = ("tokens", "versions", "group", "trajectory", "length", "trained_at", "sampled_tokens", "top_tokens")
_BOOLS = ("terminated", "truncated")


@dataclass(kw_only=True, eq=False)
class TokenBatch:
    """Trajectories as tensors. ``[B,T]``: ``tokens`` and ``versions`` int, ``mask`` bool (True exactly on tokens
    that the policy sampled), ``logp_behavior``, ``logp_proximal``, ``logp_old``, ``entropy`` (nats), ``values``
    (critic before the token), ``rewards`` floating. ``[B]``: ``group``, ``trajectory``, ``length`` (tokens before
    the padding; default T), ``terminated``, ``truncated``, ``bootstrap`` (value after the last token of a
    truncated row). ``targets`` [B,T]: what the critic is fitted to, if made at the start of the step.

    ``version``: the learner's. ``totals``: the step's denominators; None: those of this batch. ``statistics``: what an
    objective computed over the whole optimizer step (scalars, [B] or [B,T]); None: not yet. ``records``: further
    ``[B,T,...]`` tensors. What an objective doesn't need stays None.

    Alternatives to the sampled token, recorded by the engine, for KLPO: ``sampled_tokens``, ``sampled_logp_behavior``
    [B,T,M] of M independent samples, ``top_tokens``, ``top_logp_behavior`` [B,T,K] of the K likeliest tokens.
    ``sampled_logp_current``, ``top_logp_current``: the current policy's log-probabilities of them, there for the call
    of the loss, with gradient like its ``logp``.

    The distribution that a token was sampled from, where it isn't the run's own: ``temperature`` [B,T,1] (NaN: the
    run's), ``support`` [B,T,W] uint8, the tokens that the sampler kept (``records.UNRECORDED``).

    Late rewards, for RAC [B]: ``reward_fast`` known when the row first trained, ``reward_slow`` arrived later (NaN: not
    yet), ``trained_at``: version of the step that first trained the row (-1: this one).

    Numbers are brought to one kind: floating fields to the widest of their dtypes, at least float32 (rewards, values
    and targets may be given as integers or bools: 0 and 1 for wrong and right), integers to int64.

    Raises ``DataError`` on a wrong shape or dtype, and on a policy token beyond ``length``.
    """

    mask: Tensor
    tokens: Tensor | None = None
    logp_behavior: Tensor | None = None
    logp_proximal: Tensor | None = None
    logp_old: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    targets: Tensor | None = None
    rewards: Tensor | None = None
    versions: Tensor | None = None
    group: Tensor | None = None
    trajectory: Tensor | None = None
    length: Tensor | None = None
    terminated: Tensor | None = None
    truncated: Tensor | None = None
    bootstrap: Tensor | None = None
    reward_fast: Tensor | None = None
    reward_slow: Tensor | None = None
    trained_at: Tensor | None = None
    sampled_tokens: Tensor | None = None
    sampled_logp_behavior: Tensor | None = None
    top_tokens: Tensor | None = None
    top_logp_behavior: Tensor | None = None
    sampled_logp_current: Tensor | None = None
    top_logp_current: Tensor | None = None
    temperature: Tensor | None = None
    support: Tensor | None = None
    version: int = 0
    totals: Totals | None = None
    statistics: dict[str, Tensor] | None = None
    records: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mask.ndim != 2:
            raise DataError(f"TokenBatch: mask must be [B,T], got {list(self.mask.shape)}")
        if self.mask.dtype != torch.bool:
            raise DataError(f"TokenBatch: mask must be bool, got {self.mask.dtype}")
        for name in _TOKEN_FIELDS:
            self._check(name, getattr(self, name), self.mask.shape)
        for name in _ROW_FIELDS:
            self._check(name, getattr(self, name), self.mask.shape[:1])
        for name in _ALTERNATIVE_FIELDS + _CURRENT_FIELDS:
            values = getattr(self, name)
            if values is not None and (values.ndim != 3 or values.shape[:2] != self.mask.shape):
                want = [*self.mask.shape, "K"]
                raise DataError(f"TokenBatch: {name} must be {want} like the mask, got {list(values.shape)}")
        for name, values in self.records.items():
            self._check(f"records[{name!r}]", values[..., 0] if values.ndim > 2 else values, self.mask.shape)
        for name, values in (self.statistics or {}).items():
            self._check(f"statistics[{name!r}]", values, self.mask.shape[: values.ndim])
        for ids, logp in (("sampled_tokens", "sampled_logp_behavior"), ("top_tokens", "top_logp_behavior")):
            if getattr(self, ids) is not None and getattr(self, logp) is not None:
                self._check(ids, getattr(self, ids), getattr(self, logp).shape, logp)
        self._bring_to_one_kind()
        if self.length is not None and bool((self.mask & ~self.inside).any()):
            row = int((self.mask & ~self.inside).any(1).nonzero()[0])
            raise DataError(f"TokenBatch: row {row} has policy tokens beyond its length {int(self.length[row])}")

    def _bring_to_one_kind(self) -> None:
        """One floating dtype, the widest given and at least float32, so that nothing is rounded to a narrower one in
        passing; int64; bool."""
        dtype = self.dtype
        for name in _FLOATING + _MEASURED + _INTEGERS + _BOOLS:
            values = getattr(self, name)
            if values is None:
                continue
            floating = values.dtype.is_floating_point
            counted = not floating and not values.dtype.is_complex
            if name in _BOOLS:
                want, fits = torch.bool, values.dtype == torch.bool
            elif name in _INTEGERS:
                want, fits = torch.int64, counted and values.dtype != torch.bool
            else:
                want, fits = dtype, floating or (counted and name in _MEASURED)
            if not fits:
                kind = "bool" if name in _BOOLS else "integers" if name in _INTEGERS else "floating point"
                raise DataError(f"TokenBatch: {name} must be {kind}, got {values.dtype}")
            if values.dtype != want:
                setattr(self, name, values.to(want))

    @property
    def dtype(self) -> torch.dtype:
        """Of the floating fields: the widest of what was given, at least float32."""
        found = torch.float32
        for name in _FLOATING + _MEASURED:
            values = getattr(self, name)
            if values is not None and values.dtype.is_floating_point:
                found = torch.promote_types(found, values.dtype)
        return found

    def _check(self, name: str, values: Tensor | None, shape: torch.Size, like: str = "the mask") -> None:
        if values is not None and not isinstance(values, Tensor):
            raise DataError(f"TokenBatch: {name} must be a torch tensor, got {type(values).__name__}")
        if values is not None and values.shape != shape:
            raise DataError(f"TokenBatch: {name} must be {list(shape)} like {like}, got {list(values.shape)}")

    def need(self, *names: str) -> list[Tensor]:
        """These fields; ``DataError`` names the first that is missing."""
        out = []
        for name in names:
            values = getattr(self, name)
            if values is None:
                raise DataError(f"TokenBatch.{name} is missing, but the objective needs it")
            out.append(values)
        return out

    @property
    def rows(self) -> int:
        """B."""
        return int(self.mask.shape[0])

    @property
    def inside(self) -> Tensor:
        """[B,T] bool: True before the padding."""
        if self.length is None:
            return torch.ones_like(self.mask)
        return torch.arange(self.mask.shape[1], device=self.mask.device) < self.length[:, None]

    def step_totals(self) -> Totals:
        """The step's denominators, or this batch's own."""
        return self.totals or Totals(int(self.mask.sum()), self.rows, self.trajectories)

    @property
    def trajectories(self) -> int:
        """Distinct trajectories; a row each where ``trajectory`` is None."""
        return self.rows if self.trajectory is None else int(torch.unique(self.trajectory).numel())

    def trajectory_index(self) -> Tensor:
        """[B] int: number of the row's trajectory, 0 .. trajectories - 1."""
        if self.trajectory is None:
            return torch.arange(self.rows, device=self.mask.device)
        return torch.unique(self.trajectory, return_inverse=True)[1]

    def widened(self, dtype: torch.dtype) -> TokenBatch:
        """Its floating fields in ``dtype``, if that is wider than theirs."""
        want = torch.promote_types(self.dtype, dtype)
        if want == self.dtype:
            return self
        fields = {name: getattr(self, name) for name in _FLOATING + _MEASURED}
        return self.replace(**{name: x.to(want) for name, x in fields.items() if x is not None})

    def replace(self, **changes: Any) -> TokenBatch:
        """A copy with other fields."""
        return dataclasses.replace(self, **changes)

    def select(self, rows: Tensor, columns: int | None = None) -> TokenBatch:
        """These rows [n] (and the first ``columns`` tokens). ``totals`` are carried over as they are."""
        changes: dict[str, Any] = {}
        for name in _TOKEN_FIELDS + _ALTERNATIVE_FIELDS + _CURRENT_FIELDS:
            values = getattr(self, name)
            changes[name] = None if values is None else values[rows, :columns]
        if self.statistics is not None:
            changes["statistics"] = {
                name: x if x.ndim == 0 else x[rows] if x.ndim == 1 else x[rows, :columns]
                for name, x in self.statistics.items()
            }
        for name in _ROW_FIELDS:
            values = getattr(self, name)
            changes[name] = None if values is None else values[rows]
        records = {name: values[rows, :columns] for name, values in self.records.items()}
        return dataclasses.replace(self, records=records, **changes)

    def split(self, max_tokens: int) -> list[tuple[Tensor, int]]:
        """Micro-batches as (rows [n], width): sorted by length, at most ``max_tokens`` padded tokens each (a
        longer row goes alone). Every row appears once, the rows of one trajectory in one part, whatever its size; the
        order is a function of the lengths alone."""
        width = self.mask.shape[1]
        lengths = [width] * self.rows if self.length is None else self.length.tolist()
        if self.rows * max(lengths, default=0) <= max_tokens:
            return [(torch.arange(self.rows), max(lengths, default=0))] if self.rows else []
        units: dict[int, list[int]] = {}  # rows by trajectory
        for row, trajectory in enumerate(self.trajectory_index().tolist()):
            units.setdefault(trajectory, []).append(row)
        longest = {unit: max(lengths[row] for row in rows) for unit, rows in units.items()}
        parts: list[tuple[Tensor, int]] = []
        rows: list[int] = []
        widest = 0
        for unit in sorted(units, key=longest.__getitem__):
            if rows and (len(rows) + len(units[unit])) * longest[unit] > max_tokens:
                parts.append((torch.tensor(rows), widest))
                rows = []
            rows = rows + units[unit]
            widest = longest[unit]
        return [*parts, (torch.tensor(rows), widest)]

    def micro_batches(self, max_tokens: int) -> Iterator[TokenBatch]:
        """The batch in parts that carry the totals of the whole, so that their losses add up exactly."""
        whole = self.replace(totals=self.step_totals())
        for rows, width in self.split(max_tokens):
            yield whole.select(rows, width)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Array], version: int, dtype: torch.dtype = torch.float32) -> TokenBatch:
        """Padded batch of packed trajectories (``stretto.data.columns``); floats become ``dtype``.

        Raises ``InvariantError`` if a trajectory has no reward (it must never train).
        """
        lengths = torch.from_numpy(np.asarray(columns["length"], np.int64))
        rows = len(lengths)
        if rows == 0:
            return cls(mask=torch.zeros(0, 0, dtype=torch.bool), version=version)
        absent = np.flatnonzero(np.isnan(columns["reward"]))
        if len(absent):
            raise InvariantError(f"trajectory {columns['trajectory'][absent[0]]} trains without a reward")
        width = int(lengths.max())
        at = torch.arange(int(lengths.sum()))
        row = torch.repeat_interleave(torch.arange(rows), lengths)
        place = at + (torch.arange(rows) * width - (torch.cumsum(lengths, 0) - lengths))[row]

        def pad(name: str, kind: torch.dtype) -> Tensor:
            flat = torch.as_tensor(columns[name]).to(kind)
            out = torch.zeros(rows * width, *flat.shape[1:], dtype=kind)
            out[place] = flat
            return out.view(rows, width, *flat.shape[1:])

        records = {}
        for name in columns:
            if name.startswith("record."):
                floating = np.issubdtype(columns[name].dtype, np.floating)
                whole = torch.uint8 if columns[name].dtype == np.uint8 else torch.int64
                records[name[7:]] = pad(name, dtype if floating else whole)
        optional: dict[str, Any] = {ours: records.pop(name) for name, ours in _RECORDED.items() if name in records}
        if "trained_at" in columns:  # late rewards (``stretto.pool.late``)
            optional |= {name: torch.as_tensor(columns[name]).to(dtype) for name in ("reward_fast", "reward_slow")}
            optional["trained_at"] = torch.as_tensor(columns["trained_at"])
        return cls(
            tokens=pad("tokens", torch.int64),
            mask=pad("mask", torch.bool),
            logp_behavior=pad("logp_behavior", dtype),
            entropy=pad("entropy", dtype) if _recorded(columns["entropy"], columns["mask"]) else None,
            rewards=pad("rewards", dtype),
            versions=pad("versions", torch.int64),
            group=torch.as_tensor(columns["group"]),
            trajectory=torch.as_tensor(columns["trajectory"]),
            length=lengths,
            terminated=torch.as_tensor(columns["terminated"]),
            truncated=torch.as_tensor(columns["truncated"]),
            version=version,
            records=records,
            **optional,
        )


def _recorded(column: Array, mask: Array) -> bool:
    """Is there a number for any policy token? An engine that records none says NaN."""
    first = int(mask.argmax()) if len(mask) else 0
    return not len(mask) or not np.isnan(column[first]) or not mask.any() or not np.isnan(column[mask]).all()
