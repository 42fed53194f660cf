"""A trajectory's next turn goes on from the cache of the one before, and samples what it would have sampled anyway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from stretto.data.trajectory import Completion
from stretto.rollout.engine import TorchEngine
from stretto.rollout.kept import KeptTurns

from .support import VOCAB, assert_same, build_model, engine, perturbed, request, run, weights_of

MODEL = build_model()
BASE = weights_of(MODEL)
SEEN = np.random.default_rng(0).integers(3, VOCAB, (8, 4))


Loads = Mapping[int, tuple[int, int, str]]


def play(
    eng: TorchEngine, turns: int, version: int | None = None, loads: Loads = MappingProxyType({})
) -> list[Completion]:
    """So many turns of a trajectory: three tokens of the policy, then four observed ones. ``loads``: {turn: (after how
    many steps, version, mode)}."""
    text, out = np.arange(3, 10), []
    for turn in range(turns):
        asked = replace(request(turn, text, 3, trajectory=5, version=version), keep=True)
        eng.add([asked])
        found: dict[int, Completion] = {}
        if turn in loads:
            steps, new, mode = loads[turn]
            found.update(eng.advance(steps).finished)
            found.update(eng.load(new, perturbed(BASE, new), mode))
        found.update(run(eng))
        out.append(found[turn])
        text = np.concatenate([text, out[-1].tokens, SEEN[turn]]).astype(np.int32)
    return out


def engine_of(kept_tokens: int | None = None, forward: str = "auto", **options: object) -> TorchEngine:
    return engine(build_model(), max_num_seqs=2, max_model_len=64, eos_ids=(), kept_tokens=kept_tokens,
                  forward=forward, **options)  # fmt: skip


@pytest.mark.parametrize("forward", ["fast", "transformers"])
def test_it_prefills_what_is_new_and_nothing_else(forward: str) -> None:
    eng, without = engine_of(forward=forward), engine_of(0, forward)
    for got, want in zip(play(eng, 7), play(without, 7), strict=True):
        assert_same(got, want)
    counted = []
    for made in (engine_of(forward=forward), engine_of(0, forward)):
        counted.append(prefilled(made, 7))
    assert counted[0] == 6 + 6 * 4, "the first prompt, and each observation with the token before it, but for its last"
    assert counted[1] == sum(6 + 7 * turn for turn in range(7))


def prefilled(eng: TorchEngine, turns: int) -> int:
    """Tokens prefilled in all."""
    count, advance = 0, eng.advance

    def counting(n: int) -> object:
        nonlocal count
        report = advance(n)
        count += report.prefill_tokens
        return report

    eng.advance = counting  # type: ignore[method-assign, assignment]
    play(eng, turns)
    return count


@pytest.mark.parametrize(
    ("mode", "steps"), [*((mode, steps) for mode in ("keep", "reprefill", "pin") for steps in (0, 2, 5)), ("abort", 5)]
)
def test_new_weights_leave_nothing_behind(mode: str, steps: int) -> None:
    """Loaded before a turn, in its midst, or after it."""
    pin = 0 if mode == "pin" else None
    options = {"keep_versions": mode == "pin"}
    loads = {2: (steps, 1, mode), 4: (5 if mode == "abort" else 1, 2, mode)}
    got = play(engine_of(**options), 6, version=pin, loads=loads)
    want = play(engine_of(0, **options), 6, version=pin, loads=loads)
    for one, other in zip(got, want, strict=True):
        assert_same(one, other)
    if mode == "pin":
        assert {v for c in got for v in c.versions} == {0}


def test_a_text_that_was_changed_is_prefilled_from_there_on() -> None:
    def twice(eng: TorchEngine) -> Completion:
        eng.add([replace(request(0, np.arange(3, 12), 4, trajectory=5), keep=True)])
        first = run(eng)[0]
        text = np.concatenate([np.arange(3, 12), first.tokens, SEEN[0]]).astype(np.int32)
        text[6] = 30
        eng.add([replace(request(1, text, 4, trajectory=5), keep=True)])
        return run(eng)[1]

    assert_same(twice(engine_of()), twice(engine_of(0)))


def test_what_was_kept_longest_ago_goes_first_and_never_more_than_the_limit_stays() -> None:
    kept: KeptTurns[str] = KeptTurns(10)
    kept.put(1, 4, 0, False, "a")
    kept.put(2, 4, 0, False, "b")
    kept.put(1, 5, 0, False, "c")
    kept.put(3, 4, 0, True, "d")
    assert kept.take(2, 0) is None
    assert kept.take(3, 1) is None, "it is of another version"
    assert kept.take(1, 0) == (5, "c")
    assert kept.take(1, 0) is None
    kept.put(4, 11, 0, False, "too long")
    assert len(kept) == 0
    kept.put(5, 3, 0, False, "e")
    kept.put(6, 3, 0, True, "f")
    kept.put(7, 3, 1, True, "g")
    kept.loaded()
    kept.freed([1])
    assert (kept.take(5, 0), kept.take(6, 0), kept.take(7, 1)) == (None, (3, "f"), None)
    kept.put(8, 10, 0, False, "all of it again")
    assert len(kept) == 1
