"""``docs/objectives.md`` is current, its code runs, and every method learns in its loop."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from blocks import DOCS, Block, blocks

from stretto.objectives import names

PAGE = "objectives.md"
FAST = ("brace", "grpo", "gspo", "klpo", "tis")
"""Methods of different kinds: critic, group, sequence, whole vocabulary, token. `make slow` has all."""
UNTRAINED = 1 / 8
"""Mean reward of a random policy in the page's world: one token of eight is right."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("objectives_page", DOCS / "objectives.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_current(generator: ModuleType) -> None:
    page = (DOCS / PAGE).read_text()
    assert page == generator.text(page), "run: make docs"


def test_a_new_method_gets_a_section_of_its_own(generator: ModuleType) -> None:
    page = (DOCS / PAGE).read_text()
    without = re.sub(r"### `tis`\n.*?(?=### )", "", page, flags=re.DOTALL)
    again = generator.text(without)
    assert "### `tis`" not in without
    section = again[again.index("### `tis`") :]
    assert 'train(get("tis"))' in section
    assert "min(x, cap)" in section


def test_every_method_has_a_section_and_says_when_to_use_it() -> None:
    page = (DOCS / PAGE).read_text()
    sections = re.findall(r"^### `([^`]+)`\n\n(.*?)\n\n<!-- begin (\S+) -->", page, re.DOTALL | re.MULTILINE)
    assert sorted(name for name, _, _ in sections) == names()
    assert all(name == begun and when.endswith(".") for name, when, begun in sections)


def split() -> tuple[list[Block], dict[str, Block]]:
    """The blocks before the methods' sections, and each method's."""
    found = blocks(PAGE, "python")
    uses = {m[1]: block for block in found if (m := re.fullmatch(r'train\(get\("([^"]+)".*\)\n', block.text))}
    return [block for block in found if block not in uses.values()], uses


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    """The namespace of somebody who has typed in everything above the methods' sections; ``rewards``: what ``train``
    returned."""
    namespace: dict[str, Any] = {"__name__": "page"}
    torch.manual_seed(0)
    for block in split()[0]:
        block.run(namespace)
    train: Callable[..., float] = namespace["train"]
    namespace["rewards"] = []

    def heard(*arguments: Any) -> None:
        torch.manual_seed(0)
        torch.nn.init.zeros_(namespace["critic"].weight)
        namespace["rewards"].append(train(*arguments))

    namespace["train"] = heard
    return namespace


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names()]
)
def test_a_method_learns_from_stale_data_in_the_pages_loop(name: str, reader: dict[str, Any]) -> None:
    split()[1][name].run(reader)
    assert reader["rewards"][-1] > 2 * UNTRAINED


def test_every_link_within_the_page_has_its_heading() -> None:
    page = (DOCS / PAGE).read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", page, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings


@pytest.mark.slow
def test_the_trl_trainer_takes_the_same_step_as_trls_own_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: dict[str, Any]
) -> None:
    """At one optimizer step a batch, PPO's clip of TRL and ours have one gradient, whole or in micro-batches."""
    pytest.importorskip("trl", reason="TRL comes with the 'bench' extra")
    from trl import GRPOConfig, GRPOTrainer

    from stretto.config.load import load_config
    from stretto.envs.build import build_environment
    from stretto.models.load import load_policy, load_tokenizer
    from stretto.models.resolve import resolve_model

    monkeypatch.chdir(tmp_path)
    config = load_config("quickstart", ["sft.accuracy=0"])
    where = resolve_model(config, build_environment(config), lambda line: None)
    space = reader | {"model": load_policy(where), "tokenizer": load_tokenizer(where)}
    for block in blocks(PAGE, "python", "trl"):
        block.run(space)
    logged = [row for row in space["trainer"].state.log_history if "ess" in row]
    assert space["trainer"].state.global_step == 2
    assert len(logged) == 2
    assert all(0 < row["ess"] <= 1 for row in logged)

    def step(kind: Any, parts: int, **more: Any) -> dict[str, torch.Tensor]:
        args = GRPOConfig(
            output_dir="runs/same", max_steps=1, per_device_train_batch_size=8 // parts, num_generations=4,
            gradient_accumulation_steps=parts, max_completion_length=5, beta=0.0, use_cpu=True, bf16=False,
            report_to="none", save_strategy="no", loss_type="dapo", optim="sgd", learning_rate=0.1, seed=3,
            warmup_steps=0, lr_scheduler_type="constant", max_grad_norm=1e9, disable_dropout=True,
        )  # fmt: skip
        trainer = kind(
            model=load_policy(where), processing_class=space["tokenizer"], args=args, train_dataset=dataset,
            reward_funcs=lambda completions, **_: [float(len(text)) + text.count("1") for text in completions], **more,
        )  # fmt: skip
        trainer.train()
        return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}

    dataset = space["Dataset"].from_dict({"prompt": ["1+2="] * 16})
    objective = space["get"]("grpo", aggregation="token-mean")
    start = {name: p.detach() for name, p in load_policy(where).named_parameters()}
    theirs = step(GRPOTrainer, 1)
    assert max(float((theirs[name] - start[name]).abs().max()) for name in start) > 1e-3  # it took a step
    for parts in (1, 2):
        ours = step(space["StrettoTrainer"], parts, objective=objective)
        for name in start:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-6)
