"""The papers' methods train a language model: arms, verdicts, what is kept of an interrupted run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from stretto.kernel.errors import ConfigError
from stretto.papers import PAPERS, Settings, find
from stretto.papers import language as module
from stretto.papers.language import PARTS, Effect, effect, reproduce
from stretto.papers.language_contests import CONTESTS, LanguageContest, Run
from stretto.sweep.arms import parse_arms
from stretto.sweep.cells import Cell, Record, _check

RUN = Run(8)


def record(arm: str, seed: int, accuracies: list[float], **more: Any) -> Record:
    rewards: list[float | None] = [0.5] * 3
    made: Any = {"name": f"{arm}{seed}", "arm": arm, "lag": 8, "rate": 2e-3, "seed": seed, "exact_lag": True,
                 "accuracy": [(10 * i, a) for i, a in enumerate(accuracies)],
                 "series": {"reward/trained/mean": rewards}, **more}  # fmt: skip
    return made  # type: ignore[no-any-return]


def test_every_paper_with_an_objective_has_a_contest() -> None:
    assert set(CONTESTS) == {p.name for p in PAPERS[:12]} - {"collapse"}
    assert list(PARTS) == [f"{name}-language" for name in CONTESTS]
    assert find("copc-language").only == "copc-language"
    with pytest.raises(ConfigError, match="copc-language"):
        find("copc-languag")


@pytest.mark.parametrize("name", CONTESTS)
def test_arms_are_objectives_and_claims_are_between_arms(name: str) -> None:
    contest = CONTESTS[name]
    assert all(len(parse_arms(text)) == 1 for text in contest.arms.values())
    assert {arm for claim in contest.claims for arm in claim} <= set(contest.arms)
    assert {*contest.own, *contest.more_lag} <= set(contest.arms)
    assert contest.breaks is None or contest.breaks in contest.arms
    method = next(iter(contest.arms))
    assert any(better == method for better, _ in contest.claims)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTESTS)
def test_every_run_is_a_valid_configuration(name: str) -> None:
    contest = CONTESTS[name]
    cells: list[Cell] = [module._cell(contest, arm, run, 0, Settings()) for arm in contest.arms for run in contest.runs]
    _check(contest.recipe, (), cells)


def found(one: list[list[float]], other: list[list[float]]) -> module.Runs:
    return {
        ("a", RUN): [record("a", i, row) for i, row in enumerate(one)],
        ("b", RUN): [record("b", i, row) for i, row in enumerate(other)],
    }


def test_an_arm_wins_where_an_interval_says_so_and_loses_where_it_says_the_opposite() -> None:
    low, high = [[0.5, 0.1], [0.5, 0.2], [0.5, 0.1]], [[0.5, 0.8], [0.5, 0.8], [0.5, 0.7]]
    assert effect(found(high, low), "a", "b", RUN).word == "wins"
    assert effect(found(low, high), "a", "b", RUN).word == "loses"
    assert effect(found(low, low), "a", "b", RUN).word == "ties"
    assert effect(found(low[:1], high[:1]), "a", "b", RUN).word == "says nothing"
    e = effect(found(high, low), "a", "b", RUN)
    assert e.final[0] == pytest.approx((0.7 + 0.6 + 0.6) / 3)
    assert e.area[0] == pytest.approx(e.final[0] / 2)
    assert Effect((0.1, 0.05, 0.2), (-0.1, -0.2, -0.05)).word == "ties"  # they contradict one another


def contest(**changes: Any) -> LanguageContest:
    base = LanguageContest(
        {"a": "tis", "b": "grpo[reference=proximal]"}, [("a", "b")], runs=(RUN,), breaks="b",
        settings=("max_steps=10", "sft.accuracy=0"),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that didn't take place: b collapses, a doesn't."""
    asked: list[Any] = []

    def run_cells(source: str, settings: Any, cells: Any, out: Path, **how: Any) -> list[Record]:
        asked.append((out, cells))
        out.mkdir(parents=True, exist_ok=True)
        return [record(c.key["arm"], c.key["seed"], [0.6, 0.6 if c.key["arm"] == "a" else 0.1]) for c in cells]

    monkeypatch.setattr(module, "run_cells", run_cells)
    return asked


def test_the_verdict_says_who_wins_and_where(made: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(CONTESTS, "x", contest())
    outcome = reproduce("x", Settings(scratch=tmp_path / "kept"))
    assert outcome.verdict == "pass"
    assert outcome.notes[-1] == "a beats b at lag 8, lr 0.002 (tried: lag 8, lr 0.002)."
    assert [c.name for c in outcome.checks][-1] == "lag 8, lr 0.002: a wins against b"
    assert len({c.key["seed"] for c in made[0][1]}) == 5
    assert made[0][0] == tmp_path / "kept"
    assert not (tmp_path / "kept").exists()  # complete: nothing to go on with


def test_a_baseline_that_holds_fails_and_a_method_that_never_helps_is_told(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        CONTESTS, "x", contest(claims=[("b", "a")], breaks="a", arms=dict(reversed(contest().arms.items())))
    )
    outcome = reproduce("x", Settings())
    assert outcome.verdict == "FAIL, 1 not reproduced"
    assert outcome.checks[0].measured == "0 of 5"
    assert outcome.notes[-1] == "b helped in no setting that we tried: lag 8, lr 0.002."


def test_one_seed_judges_nothing(made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTESTS, "x", contest())
    outcome = reproduce("x", Settings(quick=True))
    assert outcome.verdict == "reported"
    assert outcome.notes[-1] == "One seed says nothing of who wins."


def test_two_tiny_runs_go_on_where_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(CONTESTS, "x", contest())
    said: list[str] = []

    class Stop(Exception):
        pass

    def stop(line: str) -> None:
        said.append(line)
        raise Stop

    settings = Settings(seeds=1, quick=True, say=stop, scratch=tmp_path / "kept")
    with pytest.raises(Stop):
        reproduce("x", settings)
    assert (tmp_path / "kept" / "results.jsonl").read_text().count("\n") == 1
    outcome = reproduce("x", dataclasses.replace(settings, say=said.append))
    assert len(said) == 3  # the one that was kept is told again, the other was run
    assert [c.verdict for c in outcome.checks] == ["reported"] * 4
