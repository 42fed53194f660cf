"""Ids in, ids out: text is for people and verifiers, never for training."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from env_clients import ScriptedClient
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from stretto.envs.data import Data
from stretto.envs.tool import ToolAgent
from stretto.models.tokenizer import LightTokenizer, light_tokenizer


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> LightTokenizer:
    """A BPE tokenizer that merges ``46`` and ``7]``, so that encode(decode(x)) != x for single characters; pad is
    eos."""
    root = tmp_path_factory.mktemp("merging")
    characters = list("0123456789+-*=[]>?")
    vocabulary = {token: i for i, token in enumerate(["<end>", *characters, "46", "7]"])}
    backend = Tokenizer(models.BPE(vocabulary, [("4", "6"), ("7", "]")]))
    backend.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<end>", special=True)])
    backend.save(str(root / "tokenizer.json"))
    (root / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "pad_token": "<end>"}))
    return light_tokenizer(root)


def test_sampled_ids_train_as_they_were_sampled_although_encoding_their_text_gives_others(
    tmp_path: Path, merging: LightTokenizer
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "12+34=", "answer": "46"}\n{"prompt": "1+1=", "answer": "2"}\n')
    env = Data(str(file), eval_fraction=0.0)
    env.bind(merging, 0)
    task = next(t for t in (env.task(0), env.task(1)) if t.answer == "46")
    split = [*merging.encode("4").tolist(), *merging.encode("6").tolist()]
    assert merging.encode(merging.decode(split)).tolist() != split
    trajectory = asyncio.run(env.rollout(ScriptedClient([[*split, 0]], eos=(0,)), task))
    assert trajectory.reward == 1.0
    assert trajectory.tokens[trajectory.mask].tolist() == [*split, 0]


def test_with_pad_equal_to_eos_the_final_eos_still_trains(tmp_path: Path, merging: LightTokenizer) -> None:
    assert merging.eos_ids == (0,) == (merging.pad_id,)
    env = ToolAgent()
    env.bind(merging, 0)
    answer = merging.encode(env.task(0).answer).tolist()
    trajectory = asyncio.run(env.rollout(ScriptedClient([[*answer, 0]], eos=(0,)), env.task(0)))
    assert trajectory.tokens[-1] == 0
    assert trajectory.mask[-1]
    tokens, mask = env.demonstration(0)
    assert (tokens[-1], mask[-1]) == (0, True)


def test_a_call_whose_bracket_merged_with_a_digit_still_stops_and_reaches_the_tool(merging: LightTokenizer) -> None:
    env = ToolAgent()
    env.bind(merging, 0)
    call = merging.encode("[3*7]").tolist()
    assert call[-1] == merging.backend.token_to_id("7]")
    client = ScriptedClient([call, [*merging.encode("21").tolist(), 0]], eos=(0,))
    trajectory = asyncio.run(env.rollout(client, env.task(0)))
    assert call[-1] in client.overrides[0]["stop"]
    assert trajectory.turns == 2
    assert merging.decode(trajectory.tokens[~trajectory.mask]).endswith("=21>")
