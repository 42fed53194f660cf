"""Checkpoints: whole or not there; what is damaged is named, with the way out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.config.schema import RunConfig
from stretto.kernel.errors import CheckpointError
from stretto.run.rundir import find_checkpoint
from stretto.runtime import manifest
from stretto.runtime.manifest import Snapshot, latest, load_checkpoint, save_checkpoint

from .runs import Killed, go_on, start


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    start(out, model, "max_steps=4", "save_every=2", "seed=5")
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    return copy


def files(checkpoint: Path) -> list[str]:
    return sorted(json.loads((checkpoint / "manifest.json").read_text())["files"])


NAMES = ["done.safetensors", "late.safetensors", "learner/learner.json", "learner/learner.safetensors",
         "partial.safetensors", "ready.safetensors"]  # fmt: skip


def test_the_manifest_lists_every_part(run: Path) -> None:
    checkpoint = find_checkpoint(run)
    assert files(checkpoint) == NAMES
    assert load_checkpoint(checkpoint).version == 4


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("damage", "says"), [(flip, "not what was saved"), (cut, "not what was saved"), (Path.unlink, "is missing")]
)
def test_a_damaged_file_is_named_with_the_checkpoint_to_use_instead(
    name: str, damage: Callable[[Path], None], says: str, run: Path
) -> None:
    checkpoint = find_checkpoint(run)
    damage(checkpoint / name)
    with pytest.raises(CheckpointError, match=says) as caught:
        go_on(run, "max_steps=6")
    assert str(checkpoint / name) in str(caught.value)
    assert str(run / "checkpoints" / "step-000002") in str(caught.value)


def test_the_other_checkpoint_does_work(run: Path) -> None:
    flip(find_checkpoint(run) / "ready.safetensors")
    assert go_on(run, "max_steps=6", checkpoint=run / "checkpoints" / "step-000002")["version"] == 6


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_a_manifest_that_makes_no_sense_is_an_error_of_its_own(text: str, run: Path) -> None:
    checkpoint = find_checkpoint(run)
    (checkpoint / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=str(checkpoint)):
        load_checkpoint(checkpoint)


@pytest.mark.parametrize("other", [manifest.FORMAT - 1, manifest.FORMAT + 1])
def test_another_format_says_so(other: int, run: Path) -> None:
    path = find_checkpoint(run) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": other}))
    with pytest.raises(CheckpointError, match=f"has format {other}, and this Stretto reads format {manifest.FORMAT}"):
        go_on(run, "max_steps=6")


def test_without_a_manifest_a_checkpoint_does_not_count(run: Path) -> None:
    (run / "checkpoints" / "step-000004" / "manifest.json").unlink()
    (run / "checkpoints" / ".tmp-1").mkdir()
    assert find_checkpoint(run).name == "step-000002"


def test_a_run_without_checkpoints_says_where_it_looked(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="looked in"):
        go_on(run, "max_steps=6")


def test_a_log_shorter_than_the_checkpoint_says_is_refused(run: Path) -> None:
    log = run / "events.jsonl.gz"
    log.write_bytes(log.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"events\.jsonl\.gz has 500 bytes"):
        go_on(run, "max_steps=6")


# --- killed while it saves ---


def snapshot(version: int) -> Snapshot:
    return Snapshot(version, 7, 28, 1.5, {}, [], [], {}, True)


def save(directory: Path, version: int, config: RunConfig) -> None:
    async def learner(where: Path) -> None:
        (where / "learner.json").write_text(f"{version}")
        (where / "learner.safetensors").write_bytes(b"x" * 100)

    async def partial_completions() -> dict[int, Any]:
        return {}

    asyncio.run(save_checkpoint(directory, learner, partial_completions, lambda parts: snapshot(version), config))


@pytest.mark.parametrize("version", [1, 2], ids=["same step again", "next step"])
def test_killed_at_any_file_boundary_a_complete_checkpoint_loads(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(keep_checkpoints=1)
    calls = [(Path, "write_bytes"), (Path, "write_text"), (Path, "rename"), (shutil, "rmtree"), (manifest, "_sync"),
             (Path, "mkdir")]  # fmt: skip
    boundary, killed = 0, True
    while killed:
        directory = tmp_path / str(boundary)
        save(directory, 1, config)
        killed = False
        left = boundary

        def counted(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **options: Any) -> Any:
                nonlocal left, killed
                if left == 0:
                    killed = True
                    raise Killed
                left -= 1
                return real(*args, **options)

            return call

        with monkeypatch.context() as patch:
            for owner, name in calls:
                patch.setattr(owner, name, counted(getattr(owner, name)))
            with contextlib.suppress(Killed):
                save(directory, version, config)
        found = latest(directory)
        assert found is not None, f"nothing is left after a kill at boundary {boundary}"
        assert load_checkpoint(found).version in (1, version)
        save(directory, version + 1, config)  # what a kill leaves behind is in nobody's way
        assert load_checkpoint(directory / f"step-{version + 1:06d}").version == version + 1
        assert not list(directory.glob(".tmp-*"))
        boundary += 1
    assert boundary > 10
