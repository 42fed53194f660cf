"""``docs/weights.md``: its transport is one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from blocks import blocks

from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import WeightsError
from stretto.weights.transport import find_transport


def test_the_pages_transport_brings_weights_and_finds_what_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = blocks("weights.md", "python")
    (tmp_path / "my_transport.py").write_text(block.text)
    monkeypatch.syspath_prepend(tmp_path)
    kind = find_transport("my_transport:Arrays")
    run = kind.open(tmp_path / "weights")
    learner, engine = kind(run.place), kind(run.place)
    tensors = {n: {"a.weight": torch.full((3, 5), float(n)), "b": torch.arange(4.0)} for n in range(3)}
    staged = [learner.stage(PolicyVersion(number=n), tensors[n]) for n in range(3)]
    learner.release(staged[1].version)
    for n in (0, 2):
        fetched = engine.fetch(staged[n])
        assert all(torch.equal(fetched[name], tensor) for name, tensor in tensors[n].items())
    with pytest.raises(WeightsError, match="isn't finite"):
        learner.stage(PolicyVersion(number=3), {"w": torch.tensor([float("nan")])})
    file = Path(str(staged[2].where["directory"]), "b.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    with pytest.raises(WeightsError, match="version 2 of policy is corrupt"):
        engine.fetch(staged[2])
    run.close()
    assert not (tmp_path / "weights").exists()
    del sys.modules["my_transport"]
