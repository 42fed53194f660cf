"""What every transport keeps: what is fetched is what was staged, any number of versions, nothing but whole ones."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stretto.kernel.errors import ConfigError, InvariantError, WeightsError
from stretto.weights.files import Files
from stretto.weights.in_process import InProcess
from stretto.weights.memory import SharedMemory
from stretto.weights.staged import StagedWeights
from stretto.weights.transport import Place, Transport, find_transport

from .tensors import equal, small, version, weights


class Ends:
    """A run with its learner's and an engine's object, as in processes of their own."""

    def __init__(self, kind: type[Transport], directory: Path) -> None:
        self.run = kind.open(directory)
        self.learner, self.engine = kind(self.run.place), kind(self.run.place)


@pytest.fixture(params=[SharedMemory, Files])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    made = Ends(request.param, tmp_path / "weights")
    yield made
    made.run.close()


def test_what_is_fetched_is_what_was_staged(ends: Ends) -> None:
    first, second = (ends.learner.stage(version(n), weights(n)) for n in (1, 2))
    assert equal(ends.engine.fetch(first), weights(1))
    assert equal(ends.engine.fetch(second), weights(2))
    assert [e.name for e in first.layout.entries] == list(weights())
    assert (first.version, first.transport) == (version(1), ends.run.name)
    assert first.nbytes >= 700 * 500 * 4
    assert ends.learner.stage(version(3), weights(1)).checksum != first.checksum, "the version is part of it"


def test_live_tensors_may_change_once_they_are_staged(ends: Ends) -> None:
    live = small(1)
    staged = ends.learner.stage(version(1), live)
    live["w"].zero_()
    assert equal(ends.engine.fetch(staged), small(1))


def test_any_number_of_versions_live_in_any_order_of_release(ends: Ends) -> None:
    rng = random.Random(0)
    alive: dict[int, StagedWeights] = {}
    for number in range(40):
        alive[number] = ends.learner.stage(version(number), small(number))
        for old in rng.sample(sorted(alive), rng.choice([0, 0, 1, 2])) if len(alive) > 2 else ():
            gone = alive.pop(old)
            ends.learner.release(version(old))
            with pytest.raises(WeightsError, match=f"version {old} of policy"):
                ends.engine.fetch(gone)
        for old, staged in alive.items():
            assert equal(ends.engine.fetch(staged), small(old))
    assert len(alive) > 3


def test_versions_of_several_policies_lie_side_by_side(ends: Ends) -> None:
    staged = {name: ends.learner.stage(version(4, name), small(i)) for i, name in enumerate(("a", "b/../c"))}
    ends.learner.release(version(4, "a"))
    assert equal(ends.engine.fetch(staged["b/../c"]), small(1))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_and_the_version_before_stays(ends: Ends, bad: float) -> None:
    good = ends.learner.stage(version(1), weights())
    broken = weights(2)
    broken["embed"][699, 499] = bad
    with pytest.raises(WeightsError, match="version 2 of policy isn't published: weight 'embed' isn't finite"):
        ends.learner.stage(version(2), broken)
    assert equal(ends.engine.fetch(good), weights())
    assert equal(ends.engine.fetch(ends.learner.stage(version(2), weights(2))), weights(2)), "nothing was left of it"


def test_large_finite_weights_whose_sum_overflows_pass(ends: Ends) -> None:
    big = {"w": torch.full((4,), 3e38)}
    assert equal(ends.engine.fetch(ends.learner.stage(version(1), big)), big)


def test_empty_tensors_and_versions_without_any_pass(ends: Ends) -> None:
    for number, tensors in enumerate(({"none": torch.zeros(0, 3), "one": torch.ones(1)}, dict[str, Tensor]())):
        assert equal(ends.engine.fetch(ends.learner.stage(version(number), tensors)), tensors)


def test_another_version_than_was_said_is_refused(ends: Ends) -> None:
    staged = ends.learner.stage(version(1), small(1))
    with pytest.raises(WeightsError, match="version 2"):
        ends.engine.fetch(dataclasses.replace(staged, version=version(2)))
    with pytest.raises(WeightsError, match="was staged by 'pigeons'"):
        ends.engine.fetch(dataclasses.replace(staged, transport="pigeons"))


def test_types_that_weights_do_not_have_are_refused(ends: Ends) -> None:
    with pytest.raises(WeightsError, match="weight 'w' is int64; only float32"):
        ends.learner.stage(version(1), {"w": torch.zeros(3, dtype=torch.int64)})


@pytest.mark.parametrize("kind", [SharedMemory, Files, InProcess])
def test_calls_out_of_order_are_defects(kind: type[Transport], tmp_path: Path) -> None:
    made = InProcess() if kind is InProcess else kind.open(tmp_path / "weights")
    made.stage(version(1), small(1))
    with pytest.raises(InvariantError, match="version 1 of policy is staged already"):
        made.stage(version(1), small(1))
    made.release(version(1))
    with pytest.raises(InvariantError, match="version 1 of policy can't be released"):
        made.release(version(1))
    made.close()


def test_in_one_process_versions_are_copies(tmp_path: Path) -> None:
    made, live = InProcess(), small(1)
    first, second = made.stage(version(1), live), made.stage(version(2), small(2))
    live["w"].zero_()
    assert equal(made.fetch(first), small(1))
    made.release(version(1))
    with pytest.raises(WeightsError, match="version 1 of policy isn't staged here"):
        made.fetch(first)
    assert equal(made.fetch(second), small(2))


@pytest.mark.parametrize("kind", [SharedMemory, Files])
def test_more_versions_than_there_is_room_for_are_refused_before_the_start(
    kind: type[Transport], tmp_path: Path
) -> None:
    run = kind.open(tmp_path / "weights")
    run.reserve(1 << 20, 3)
    with pytest.raises(WeightsError, match=r"weights\.staged_versions = 1000: 1000 versions of 1125899906842624 bytes"):
        run.reserve(1 << 50, 1000)
    run.close()


class Abstract(Transport):
    """Lacks everything."""


class Own(Files):
    """A user's."""


class Nameless(Transport):
    """Names itself not."""

    def stage(self, version: object, tensors: object) -> StagedWeights:
        raise NotImplementedError

    def release(self, version: object) -> None:
        raise NotImplementedError

    def fetch(self, staged: object) -> dict[str, Tensor]:
        raise NotImplementedError


def test_a_transport_is_built_in_or_a_class_of_ones_own() -> None:
    assert find_transport("shared-memory") is SharedMemory
    assert find_transport("files") is Files
    assert find_transport(f"{__name__}:Own") is Own
    assert find_transport(f"{__name__}:Nameless").name == f"{__name__}:Nameless"
    for name, said in (
        ("pigeons", "unknown transport 'pigeons'.*files, shared-memory"),
        (f"{__name__}:Abstract", "this class lacks `fetch`, `release`, `stage`"),
        (f"{__name__}:equal", "not a subclass of stretto.weights.transport.Transport"),
        (f"{__name__}:Pigeon", "has no 'Pigeon'"),
    ):
        with pytest.raises(ConfigError, match=rf"weights\.transport.*{said}"):
            find_transport(name)


def test_a_transport_without_needs_of_its_own_opens_a_place(tmp_path: Path) -> None:
    made = find_transport(f"{__name__}:Nameless").open(tmp_path)
    made.reserve(1 << 60, 9)
    made.close()
    assert made.place == Place(str(tmp_path))
