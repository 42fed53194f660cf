"""KLPO through the real model: what the engine recorded, scored with gradient, against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.data.schema import Columns
from stretto.kernel.errors import DataError
from stretto.learner.learner import Learner
from stretto.objectives import get

Make = Callable[..., Columns]
KINDS = [(route, estimator) for route in ("token", "sequence") for estimator in ("mc", "topk", "full", "binary")]
DRAWS, HEAD = 3, 4


def learner(model_dir: Path, route: str, estimator: str, **options: Any) -> Learner:
    objective = get("klpo", route=route, estimator=estimator, beta=0.3, M=DRAWS, K=HEAD)
    config = LearnerConfig(**{"dtype": "float64", "warmup_steps": 0, "lr": 1e-2, **options})
    return Learner(model_dir, config, objective, temperature=0.8, max_steps=10)


def logits(one: Learner, tokens: Tensor) -> Tensor:
    """[B,T,V] log-probabilities of the next token, by a plain forward pass."""
    with torch.no_grad():
        return torch.log_softmax(one.scorer.model(input_ids=tokens).logits / 0.8, -1)


def recorded(one: Learner, columns: Columns, seed: int = 3) -> Columns:
    """``columns`` with what a nearby sampler would have recorded at each position."""
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    assert batch.tokens is not None
    g = torch.Generator().manual_seed(seed)
    p = logits(one, batch.tokens)
    q = torch.log_softmax(p + 0.3 * torch.randn(p.shape, generator=g, dtype=p.dtype), -1)
    q = torch.cat([torch.full_like(q[:, :1], -5.0), q[:, :-1]], 1)  # that of token t stands at t
    wide = q.shape[2] if one.objective.top is None else HEAD
    top = q.topk(wide, -1)
    drawn = torch.multinomial(q.exp().flatten(0, 1), DRAWS, True, generator=g).view(*q.shape[:2], DRAWS)
    records = {
        "logp_behavior": q.gather(2, batch.tokens[..., None])[..., 0],
        "record.sampled_ids": drawn.int(), "record.sampled_logprobs": q.gather(2, drawn),
        "record.top_ids": top.indices.int(), "record.top_logprobs": top.values,
    }  # fmt: skip
    return {**columns, **{name: x[batch.inside].numpy() for name, x in records.items()}}


def batch_of(one: Learner, columns: Columns) -> TokenBatch:
    return TokenBatch.from_columns(recorded(one, columns), 0, torch.float64)


def exact_norm(norm: Any, x: Tensor) -> Tensor:
    """Transformers' is float32 in any precision, which finite differences would see."""
    normed: Tensor = norm.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon)
    return normed


def test_alternatives_are_scored_like_a_plain_forward_pass(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "token", "mc")
    batch = batch_of(one, make_columns(2, 2))
    scores = one.scorer.scores(batch, values=False, alternatives={"sampled", "top"})
    assert batch.tokens is not None
    before = logits(one, batch.tokens)[:, :-1]
    for name, ids in (("sampled_logp_current", batch.sampled_tokens), ("top_logp_current", batch.top_tokens)):
        assert ids is not None
        want = before.gather(2, ids[:, 1:])
        got = scores.alternatives[name][:, 1:]
        assert torch.allclose(got[batch.mask[:, 1:]], want[batch.mask[:, 1:]], atol=1e-12, rtol=0)
    assert one.scorer.scores(batch, values=False).alternatives == {}


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_the_gradient_of_the_weights_is_that_of_finite_differences(
    model_dir: Path, make_columns: Make, route: str, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequence route: of mean D^2/(2 beta). Token route: of the surrogate, with its detached weights frozen."""
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact_norm)
    one = learner(model_dir, route, estimator)
    batch = batch_of(one, make_columns(2, 2))
    objective, scorer = one.objective, one.scorer
    advantages = objective.advantages(batch)

    def loss() -> Any:
        scores = scorer.scores(batch, values=False, alternatives=objective.needs)
        return objective(batch.replace(**scores.alternatives), scores.logp, None, advantages), scores

    total, start = loss()
    leaves = {"logp": start.logp, **start.alternatives}
    frozen = dict(zip(leaves, torch.autograd.grad(total.total, list(leaves.values()), retain_graph=True), strict=True))
    total.total.backward()

    def value() -> float:
        with torch.no_grad():
            now, scores = loss()
            if route == "sequence":
                return float(now.metrics["klpo/objective"])
            return float(sum((frozen[name] * x).sum() for name, x in
                             {"logp": scores.logp, **scores.alternatives}.items()))  # fmt: skip

    parameters = scorer.policy_parameters()
    g = torch.Generator().manual_seed(1)
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight"):
        parameter = parameters[name]
        assert parameter.grad is not None
        direction = torch.randn(parameter.shape, generator=g, dtype=parameter.dtype)
        slopes = []
        for sign in (1, -2):  # there, and from there to the other side
            parameter.data += sign * 1e-6 * direction
            slopes.append(value())
        parameter.data += 1e-6 * direction
        slope, expected = (slopes[0] - slopes[1]) / 2e-6, float((parameter.grad * direction).sum())
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-8), name
        assert abs(expected) > 1e-4


@pytest.mark.parametrize(("route", "estimator"), KINDS)
def test_the_split_into_micro_batches_changes_nothing(
    model_dir: Path, make_columns: Make, route: str, estimator: str
) -> None:
    results = []
    for budget in (10_000, 40, 1):
        one = learner(model_dir, route, estimator, micro_batch_tokens=budget, eps=1.0)
        result = one.step(recorded(one, make_columns()))
        results.append((result.metrics, {name: t.clone() for name, t in one.weights().items()}))
    for metrics, after in results[1:]:
        assert metrics == pytest.approx(results[0][0], rel=1e-11, abs=1e-12)
        assert max(float((after[n] - t).abs().max()) for n, t in results[0][1].items()) < 1e-12


@pytest.mark.parametrize("estimator", ["mc", "topk", "full", "binary"])
def test_the_sequence_route_descends_its_square(model_dir: Path, make_columns: Make, estimator: str) -> None:
    """On one fixed batch. (The token route does so in the mean over the sampler's trajectories alone.)"""
    one = learner(model_dir, "sequence", estimator, lr=3e-3)
    columns = recorded(one, make_columns())
    squares = [one.step(columns).metrics["klpo/objective"] for _ in range(8)]
    assert squares[-1] < 0.8 * squares[0]


def test_a_batch_without_the_records_says_what_is_missing(model_dir: Path, make_columns: Make) -> None:
    with pytest.raises(DataError, match="sampled_tokens is missing"):
        learner(model_dir, "token", "mc").step(make_columns())
