"""The learner scores the distribution that each token was sampled from: its temperature, what top-k and top-p left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.data.columns import concatenate, pack, unpack
from stretto.data.records import padded_records
from stretto.data.trajectory import Trajectory, Transcript
from stretto.kernel.errors import DataError, InvariantError
from stretto.learner.scores import Scorer
from stretto.models.load import load_policy
from stretto.models.logp import Transform, token_logp, unpacked
from stretto.rollout.engine import TorchEngine
from stretto.rollout.types import Request, SamplingParams

PLAIN = SamplingParams(max_new_tokens=5)
CASES: dict[str, tuple[SamplingParams, list[dict[str, Any]]]] = {
    "plain": (PLAIN, [{}]),
    "top-p": (replace(PLAIN, top_p=0.9), [{}]),
    "top-k": (replace(PLAIN, top_k=5), [{}]),
    "all at once": (replace(PLAIN, top_k=7, top_p=0.8, temperature=0.6), [{}]),
    "a turn of its own temperature": (PLAIN, [{}, {"temperature": 0.5}, {"temperature": 2.0}]),
    "each turn its own": (PLAIN, [{}, {"top_p": 0.7}, {"top_k": 3, "temperature": 0.4}, {"temperature": 0.0}]),
    "a turn without": (replace(PLAIN, top_p=0.8), [{"top_p": 1.0}, {}, {"top_k": 1}]),
}


def trajectories(engine: TorchEngine, base: SamplingParams, turns: list[dict[str, Any]]) -> list[Trajectory]:
    """Of six episodes every third has the first turn alone."""
    rng, out = np.random.default_rng(3), []
    for i in range(6):
        transcript = Transcript(i, i // 3)
        transcript.observe(rng.integers(3, engine.vocab, 2 + i).astype(np.int32))
        for k, overrides in enumerate(turns if i % 3 else turns[:1]):
            params = replace(base, **overrides)
            own = params.filters or params.temperature != base.temperature
            engine.add([Request(10 * i + k, i, i // 3, transcript.tokens(), params, distribution=own, noise_key=i)])
            done: dict[int, Any] = {}
            while not done:
                done.update(engine.advance(3).finished)
            transcript.sample(done[10 * i + k])
            transcript.observe([5, 6])
        out.append(transcript.finish(1.0))
    return out


@pytest.mark.parametrize("name", CASES)
def test_the_ratio_of_a_policy_with_itself_is_one(model_dir: Path, name: str) -> None:
    base, turns = CASES[name]
    engine = TorchEngine(load_policy(model_dir), max_num_seqs=4, max_model_len=64, eos_ids=(2,), seed=5, version=0)
    made = trajectories(engine, base, turns)
    columns = concatenate([pack(made[:1]), pack(made[1:])])  # the first lacks what only later turns record
    assert ("record.support" in columns) == any(replace(base, **t).filters for t in turns)
    batch = TokenBatch.from_columns(pack(unpack(columns)), 0)
    assert batch.logp_behavior is not None
    assert batch.entropy is not None
    scorer = Scorer(str(model_dir), LearnerConfig(), 0, base.temperature)
    scores = scorer.scores(batch, values=False)
    ratio = (scores.logp.detach() - batch.logp_behavior)[batch.mask].exp()
    assert abs(float(ratio.mean()) - 1) < 1e-5
    assert float((ratio - 1).abs().max()) < 1e-3
    torch.testing.assert_close(scores.entropy, batch.entropy[batch.mask], rtol=0, atol=1e-4)
    scores.logp.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in scorer.model.parameters())
    if batch.support is not None:
        batch = batch.replace(
            sampled_tokens=batch.mask[..., None].long(), sampled_logp_behavior=batch.logp_behavior[..., None]
        )
        with pytest.raises(DataError, match="compares the policies over the whole vocabulary"):
            scorer.scores(batch, values=False, alternatives={"sampled"})


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("cap", [None, 3.0])
def test_value_and_gradient_under_temperatures_supports_and_caps(
    monkeypatch: pytest.MonkeyPatch, chunked: bool, cap: float | None
) -> None:
    if chunked:
        monkeypatch.setattr("stretto.models.logp.LOGITS_BYTES", 0)
        monkeypatch.setattr("stretto.models.logp.CHUNK_BYTES", 2 * 11 * 8)
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, generator=g, dtype=torch.float64).requires_grad_()
    weight = torch.randn(11, 4, generator=g, dtype=torch.float64).requires_grad_()
    kept = np.random.default_rng(0).random((5, 11)) < 0.6
    ids = torch.tensor([3, 0, 10, 7, 8])
    kept[np.arange(5), ids] = True
    support = torch.from_numpy(np.packbits(kept, axis=1, bitorder="little"))
    assert torch.equal(unpacked(support, 11), torch.from_numpy(kept))
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.3, 0.7], dtype=torch.float64)
    logits = hidden @ weight.T * 0.5
    logits = logits if cap is None else torch.tanh(logits / cap) * cap
    logq = (logits / temperature[:, None]).masked_fill(~torch.from_numpy(kept), float("-inf")).log_softmax(1)
    logp, entropy = token_logp(hidden, weight, ids, None, temperature, support, Transform(0.5, cap))
    torch.testing.assert_close(logp, logq.gather(1, ids[:, None])[:, 0])
    torch.testing.assert_close(entropy, torch.special.entr(logq.exp()).sum(1))
    upstream = torch.linspace(-1, 2, 5, dtype=torch.float64)
    ours = torch.autograd.grad((logp * upstream).sum(), [hidden, weight])
    theirs = torch.autograd.grad((logq.gather(1, ids[:, None])[:, 0] * upstream).sum(), [hidden, weight])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(DataError, match="of different models"):
        unpacked(support[:, :1], 11)


def test_only_what_says_how_a_token_was_sampled_may_be_missing() -> None:
    with pytest.raises(InvariantError, match="'top_ids' is there for some"):
        padded_records([(1, {"top_ids": np.zeros((1, 2))}), (1, {})])
    filled = padded_records([(1, {"temperature": np.ones((1, 1))}), (2, {})])
    assert np.isnan(filled["temperature"][1]).all()
