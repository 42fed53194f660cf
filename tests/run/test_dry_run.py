"""A dry run refuses what a start refuses, in the same words, and neither leaves anything behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stretto.config.load import load_config
from stretto.kernel.errors import StrettoError
from stretto.run import rundir
from stretto.run.launch import check_start, launch

TASK = """
from stretto.envs.reverse import Reverse
class NoWorked(Reverse):
    demonstration = property()
class NoTask(Reverse):
    def task(self, index): raise ValueError("no task today")
class NoEval(Reverse):
    def eval_tasks(self, n): raise ValueError("no evaluation today")
class NoBind(Reverse):
    def bind(self, tokenizer, seed): raise ValueError("no tokenizer today")
"""
BAD = [
    ("own-data", ["env.path={tmp}/long.jsonl"], r"long\.jsonl:2: prompt of 300 tokens"),
    ("own-data", ["env.path={tmp}/odd.jsonl"], r"odd\.jsonl:1"),
    ("own-data", ["env.path={tmp}/broken.jsonl"], r"broken\.jsonl:2: not JSON"),
    ("own-data", ["env.path={tmp}/chat.jsonl"], r"chat\.jsonl:1: chat messages, but no chat template"),
    ("own-data", ["env.path={tmp}/missing.jsonl"], "no such file"),
    ("own-data", ["env.path={tmp}/empty.jsonl"], "holds no rows"),
    ("own-data", ["env.chat=true"], "no chat template"),
    ("own-data", ["env.max_prompt_tokens=2"], "more than env.max_prompt_tokens = 2"),
    ("own-data", ["engine.max_model_len=7", "env.system=x"], "env.system needs a chat template"),
    ("own-data", ["epochs=0.001"], "is not one task: raise epochs"),
    ("quickstart", ["epochs=1"], "has no end"),
    ("quickstart", ["eval.tasks=1000001"], "eval.tasks = 1000001"),
    ("quickstart", ["prompts_per_step=1000000000"], "trajectories in one step"),
    ("quickstart", ["group_size=2147483647"], "trajectories in one step"),
    ("quickstart", ["logging.wandb=true"], "wandb isn't installed"),
    ("quickstart", ["workers.own_cores=true", "workers.threads={cores}"], "own_cores"),
    ("quickstart", ["model={tmp}"], "lacks config.json"),
    ("quickstart", ["reward=dry_task:missing"], "'dry_task' has no 'missing'"),
    ("quickstart", ["env.name=dry_task:NoTask"], "no task today"),
    ("quickstart", ["env.name=dry_task:NoEval"], "no evaluation today"),
    ("quickstart", ["env.name=dry_task:NoBind"], "no tokenizer today"),
    ("quickstart", ["out={tmp}/file"], "is not a directory"),
    ("quickstart", ["out={tmp}"], "other things in it"),
    ("quickstart", ["out={tmp}/held"], "is in use"),
]


@pytest.mark.parametrize(("recipe", "settings", "says"), BAD, ids=[" ".join(s) for _, s, _ in BAD])
def test_a_dry_run_and_a_start_refuse_alike(
    recipe: str, settings: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_CACHE", str(tmp_path / "cache"))
    if "wandb" in says:
        monkeypatch.setitem(sys.modules, "wandb", None)
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    row = {"question": "1+1=", "result": "2"}
    rows = {
        "long": [row, {"question": "1" * 300, "result": "2"}], "odd": [{"question": "é", "result": "2"}, row],
        "chat": [{"question": [{"role": "user", "content": "hi"}], "result": "2"}, row], "empty": [],
    }  # fmt: skip
    for name, lines in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "broken.jsonl").write_text(json.dumps(row) + "\n{oops\n")
    (tmp_path / "dry_task.py").write_text(TASK)
    (tmp_path / "file").touch()
    monkeypatch.syspath_prepend(tmp_path)
    cores = len(os.sched_getaffinity(0))
    given = [text.format(tmp=tmp_path, cores=cores) for text in settings]
    if not any(text.startswith("out=") for text in given):
        given.append(f"out={tmp_path}/run")
    config = load_config(recipe, [*given, "logging.console=off"])
    (tmp_path / "held").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with rundir.hold(tmp_path / "held"):
        answers = []
        for ask in (check_start, launch):
            with pytest.raises(StrettoError, match=says) as refused:
                ask(config, "train")
            answers.append(str(refused.value))
    assert answers[0] == answers[1]
    made = set(tmp_path.rglob("*")) - set(before) - {tmp_path / "held" / rundir.LOCK, tmp_path / "__pycache__"}
    assert not {p for p in made if "__pycache__" not in p.parts}
