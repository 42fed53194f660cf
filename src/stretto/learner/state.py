"""The learner's checkpoint: ``learner.safetensors`` and ``learner.json``. Loading runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict

import xxhash
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from stretto.kernel.errors import CheckpointError
from stretto.learner.old_policy.base import OldPolicyRoute

FORMAT = 1
_OLD = "old."


class LearnerState(TypedDict):
    """What ``learner.json`` holds beside its format and the checksum of the tensors."""

    version: int
    skipped: int
    skipped_in_a_row: int
    seed: int
    old_policy: NotRequired[str]


def write_state(directory: Path, tensors: Mapping[str, Tensor], state: LearnerState) -> None:
    """Write both files; the JSON holds the checksum of the tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    data = save_tensors({name: t.contiguous() for name, t in tensors.items()})
    (directory / "learner.safetensors").write_bytes(data)
    record = {"format": FORMAT, **state, "checksum": xxhash.xxh3_128_hexdigest(data)}
    (directory / "learner.json").write_text(json.dumps(record, indent=2) + "\n")


def read_state(directory: Path) -> tuple[dict[str, Tensor], LearnerState]:
    """Both files, verified. Raises ``CheckpointError`` if one is missing, corrupt, or of a newer format."""
    try:
        state = json.loads((directory / "learner.json").read_text())
        data = (directory / "learner.safetensors").read_bytes()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"learner state in {directory}: can't be read: {error}") from error
    if state.get("format") != FORMAT:
        found = state.get("format")
        raise CheckpointError(f"learner state in {directory}: format {found}, this version reads {FORMAT}")
    if xxhash.xxh3_128_hexdigest(data) != state["checksum"]:
        raise CheckpointError(f"learner state in {directory}: learner.safetensors is corrupt (checksum differs)")
    return load_tensors(data), state


def old_policy_tensors(route: OldPolicyRoute | None, state: LearnerState) -> dict[str, Tensor]:
    """What this old-policy route remembers; ``state`` learns its name."""
    if route is None:
        return {}
    state["old_policy"] = route.name
    return {_OLD + name: t for name, t in route.tensors().items()}


def restore_old_policy(route: OldPolicyRoute | None, tensors: Mapping[str, Tensor], state: LearnerState) -> None:
    """The route goes on at the version of ``state``. ``CheckpointError`` if another route made the checkpoint and this
    one needs a history; ``KeyError`` or ``ValueError`` if it is of another model."""
    if route is None:
        return
    saved = state.get("old_policy")
    if route.remembers and saved != route.name:
        raise CheckpointError(
            f"learner.old_policy.route = {route.name!r} needs what it remembers of earlier versions, but the "
            f"checkpoint was made with {saved!r}: go on with that route, or start a new run"
        )
    if route.remembers:
        route.restore({name[len(_OLD) :]: t for name, t in tensors.items() if name.startswith(_OLD)})
    route.after_step(int(state["version"]))
