"""The commands on methods and papers, as a script sees them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from stretto import cli
from stretto.objectives import names
from stretto.papers import PAPERS, Check, Outcome, Settings
from stretto.papers.catalog import EXPERIMENTS
from stretto.papers.run import plain, reproduce_all, table

TINY = (
    "max_steps=4", "prompts_per_step=2", "group_size=4", "eval.every=2", "eval.tasks=4", "sft.accuracy=0",
    "sft.hidden=8", "sft.layers=1", "sft.intermediate=8",
)  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["stretto", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_objectives_lists_all_and_describes_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "objectives", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == names()
    code, out, _ = run(monkeypatch, capsys, "objectives", "gspo", "--json")
    found = json.loads(out)
    assert "1707" in found["text"] or "2507.18071" in found["text"]
    assert {row["multiplier"] for row in found["gradient"]} >= {0.0, 1.0}
    assert next(o for o in found["options"] if o["name"] == "clip_low")["symbols"]
    code, out, _ = run(monkeypatch, capsys, "objectives", "sat")
    assert "multiplier of A grad logp" in out
    code, _, err = run(monkeypatch, capsys, "objectives", "gsp")
    assert code == 1
    assert "did you mean 'gspo'" in err


@pytest.mark.parametrize("name", names())
def test_every_objective_can_be_described(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "objectives", name, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["gradient"]) == 10
    assert re.search(r"arXiv\s+\d{4}\.\d+|(19|20)\d\d", found["text"]), "the docstring names no source"


def test_papers_lists_27(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "papers", "--json")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == 27
    assert all(set(row) == {"name", "title", "arxiv", "status", "parts"} for row in rows)
    assert sum(row["status"] == "reproducible" for row in rows) >= 12
    code, out, _ = run(monkeypatch, capsys, "papers")  # in 80 columns names can still be copied
    assert {row["name"] for row in rows} | {"td-rate", "pricing-divergence"} <= set(out.split())
    begin = " ".join(out.split("paper, claim")[0].split())
    assert begin.startswith("These are papers on asynchronous reinforcement learning")
    assert len(re.findall(r"[.?](?:\s|$)", begin)) == 2


def test_reproduce_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ((), "which paper"),
        (("copc", "--all"), "which paper"),
        (("copcc",), "did you mean 'copc'"),
        (("marlaas",), "no experiment yet"),
    ):
        code, _, err = run(monkeypatch, capsys, "reproduce", *arguments)
        assert code == 1
        assert message in err


def test_reproduce_without_a_name_lists_those_that_have_an_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(monkeypatch, capsys, "reproduce")
    named = set(re.findall(r"[a-z0-9-]+", err.split("experiment:")[1].split(". ")[0]))
    assert code == 1
    assert {paper.name for paper in PAPERS if paper.module} <= named
    assert not {paper.name for paper in PAPERS if not paper.module} & named


def fake(passed: bool) -> Any:
    def reproduce(settings: Settings) -> Outcome:
        checks = [Check("slope", -0.5, "<= 0", -1.0, passed), Check("return", {"a": 1.0}, paper=2, where="table 1")]
        return Outcome(checks, ["a note"], lambda figure: figure.subplots().plot([1, 2]))

    return reproduce


@pytest.mark.parametrize("passed", [True, False])
def test_reproduce_ends_with_one_json_object(
    passed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("stretto.papers.copc.reproduce", fake(passed))
    code, out, _ = run(monkeypatch, capsys, "reproduce", "copc", "--json", "--figures", str(tmp_path))
    record = json.loads(out.splitlines()[-1])
    assert (record["verdict"], record["failed"], code) == (("pass", False, 0) if passed else ("FAIL", True, 1))
    assert record["checks"] == [
        {"name": "slope", "paper": None, "where": "", "reference": -1.0, "here": -0.5, "condition": "<= 0",
         "verdict": record["verdict"]},
        {"name": "return", "paper": 2, "where": "table 1", "reference": None, "here": {"a": 1.0}, "condition": "",
         "verdict": "reported"},
    ]  # fmt: skip
    assert (record["notes"], record["seeds"], record["quick"]) == (["a note"], {"first": 0, "count": None}, False)
    assert record["versions"]["numpy"]
    assert Path(record["figure"]).read_bytes()[:4] == b"\x89PNG"
    code, out, _ = run(monkeypatch, capsys, "reproduce", "copc", "--figures", str(tmp_path))
    assert ("FAIL" in out) is not passed
    assert "a note" in out
    assert "2 (table 1)" in out


def test_what_asks_nothing_is_reported_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = Outcome([Check("x", 1), Check("effect", 2, absent=True)])
    monkeypatch.setattr("stretto.papers.copc.reproduce", lambda settings: found)
    code, out, _ = run(monkeypatch, capsys, "reproduce", "copc", "--figures", str(tmp_path))
    assert code == 0
    assert "reported, 1 not reproduced in" in out


def test_a_figure_that_cannot_be_written_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def never(settings: Settings) -> Outcome:
        raise AssertionError("the experiment must not begin")

    (tmp_path / "file").touch()
    monkeypatch.setattr("stretto.papers.copc.reproduce", never)
    for where in (("copc",), ("--all",)):
        code, _, err = run(monkeypatch, capsys, "reproduce", *where, "--figures", str(tmp_path / "file"))
        assert code == 1
        assert "ConfigError: --figures = " in err

    def full(figure: Any) -> None:
        raise OSError(28, "No space left on device")

    found = Outcome([Check("x", 1, "", 1, True)], [], full)
    monkeypatch.setattr("stretto.papers.copc.reproduce", lambda settings: found)
    code, out, _ = run(monkeypatch, capsys, "reproduce", "copc", "--figures", str(tmp_path))
    assert code == 0
    assert "no figure: [Errno 28] No space left on device" in out


@pytest.mark.slow
def test_all_quick_experiments_side_by_side(tmp_path: Path) -> None:
    verdicts = reproduce_all(Settings(quick=True), tmp_path, 2, lambda v: None)
    assert [v.paper.name for v in verdicts] == [p.name for p in EXPERIMENTS]
    text = table(verdicts)
    for verdict in verdicts:
        assert f"| {verdict.paper.name} |" in text
        json.dumps(verdict.record())


def test_figures_become_json() -> None:
    import numpy as np

    assert plain({"a": np.float64(1.5), 2: np.arange(2), "n": float("nan")}) == {"a": 1.5, "2": [0, 1], "n": "nan"}


def test_compare_and_calibrate_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    common = ("--jobs", "1", "--json")
    unevaluated = [setting for setting in TINY if not setting.startswith("eval")]
    code, out, err = run(monkeypatch, capsys, "compare", "stale", *TINY, "--objectives", "grpo,x=tis[cap=3]", "--lag",
                         "0,2", "--seeds", "1", "--out", str(tmp_path / "c"), *common)  # fmt: skip
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert set(result["verdicts"]) == {"grpo", "x"}
    assert Path(result["report"]).exists()
    assert "4/4" in err
    code, out, err = run(monkeypatch, capsys, "calibrate", "stale", *unevaluated, "--sync", "1,2", "--rates", "1e-4",
                         "--interval", "4", "--horizon", "50", "--out", str(tmp_path / "k"), *common)  # fmt: skip
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert result["rate"] > 0
    assert Path(result["figure"]).exists()
    code, _, err = run(monkeypatch, capsys, "calibrate", "stale", "--rates", "x")
    assert code == 1
    assert "--rates" in err


@pytest.mark.parametrize(
    "command", ["objectives", "papers", "reproduce", "compare", "calibrate", "rehearse", "simulate"]
)
def test_a_research_command_begins_with_two_plain_sentences_and_fits_a_terminal(command: str) -> None:
    from typer.testing import CliRunner

    from stretto.cli import app

    said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert said.exit_code == 0
    assert all(len(line) <= 80 for line in said.output.splitlines())
    text = said.output.split("╭")[0]
    assert len(re.findall(r"[.?](?:\s|$)", text)) >= 2


def test_the_objectives_say_when_to_use_which() -> None:
    from stretto.objectives import names
    from stretto.objectives.describe import WHEN

    named = set(re.findall(r"[a-z0-9-]+", WHEN)) & set(names())
    assert {"tis", "gspo", "topr", "grpo", "ppo", "rac", "reinforce", "vtrace"} <= named
    assert all(len(line) <= 80 for line in WHEN.splitlines())
    assert WHEN.startswith("An objective decides")


def test_types_are_written_as_people_write_them() -> None:
    from typing import Annotated, Any, Literal

    from pydantic import Field

    from stretto.config.learner import LearnerConfig
    from stretto.config.rewards import RewardFunction
    from stretto.kernel.components import type_text

    share = Annotated[float, Field(ge=0, lt=1)]
    for kind, says in [
        (int, "whole number"), (float | None, "number or nothing"), (list[str], "list of texts"),
        (Literal["a", "b"] | None, "`a` or `b` or nothing"), (dict[str, Any], "table"), (bool, "true or false"),
        (tuple[float, float], "two numbers"),
        (tuple[Literal["+"], ...], "list of `+`"), (share, "number, at least 0 and below 1"),
        (tuple[share, share], "two numbers, at least 0 and below 1, each"),
        (str | list[RewardFunction] | None, "text or list of tables or nothing"),
    ]:  # fmt: skip
        assert type_text(kind) == says
    field = LearnerConfig.model_fields["warmup_steps"]
    assert type_text(field.annotation, field.metadata) == "whole number, at least 0"
