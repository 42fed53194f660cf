from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.rollout.sampling import RowSampling, sample
from stretto.rollout.types import SamplingParams


def brute_force(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities after temperature, top-k, top-p, written out."""
    x = logits / (params.temperature or 1.0)
    p = np.exp(x - x.max())
    p /= p.sum()
    if params.temperature == 0:
        return p
    order = np.argsort(-p)
    keep = order[: params.top_k] if params.top_k else order
    kept, mass = [], 0.0
    total = p[keep].sum()
    for token in keep:
        if kept and mass >= params.top_p * total:
            break
        kept.append(token)
        mass += p[token]
    out = np.zeros_like(p)
    out[kept] = p[kept] / p[kept].sum()
    return out


CASES = [
    SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(temperature=0.0), SamplingParams(top_k=1),
    SamplingParams(top_k=7), SamplingParams(top_p=0.5), SamplingParams(top_p=0.95, top_k=12, temperature=1.7),
    SamplingParams(top_p=1e-9), SamplingParams(top_k=999),
]  # fmt: skip


def test_records_are_those_of_the_distribution_really_sampled_from() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(len(CASES), 30)) * 2
    rows = RowSampling.of(CASES, 30, torch.float64)
    for u in rng.uniform(size=(40, len(CASES))):
        out = sample(torch.from_numpy(logits), rows, u)
        for row, params in enumerate(CASES):
            p = brute_force(logits[row], params)
            want = int(p.argmax()) if params.temperature == 0 else int(np.searchsorted(np.cumsum(p), u[row]))
            assert out.tokens[row] == want
            assert out.logprobs[row] == pytest.approx(np.log(p[want]), abs=1e-12)
            assert out.entropy[row] == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), abs=1e-12)


def test_tokens_come_at_their_probabilities() -> None:
    params, n = SamplingParams(top_p=0.8), 20_000
    logits = np.random.default_rng(1).normal(size=12) * 1.5
    p = brute_force(logits, params)
    u = (np.arange(n) + 0.5) / n
    rows = RowSampling.of([params] * n, 12, torch.float64)
    out = sample(torch.from_numpy(logits).expand(n, -1), rows, u)
    np.testing.assert_allclose(np.bincount(out.tokens, minlength=12) / n, p, atol=2 / n)


def test_a_token_without_mass_is_never_drawn() -> None:
    logits = torch.full((2, 5), -torch.inf)
    logits[:, 2] = 0.0
    rows = RowSampling.of([SamplingParams()] * 2, 5, torch.float32)
    out = sample(logits, rows, np.array([1e-300, 1.0 - 2.0**-53]))
    assert out.tokens.tolist() == [2, 2]
    assert out.logprobs.tolist() == [0.0, 0.0]
    assert out.entropy.tolist() == [0.0, 0.0]


def test_the_likeliest_and_further_samples_follow_the_same_distribution() -> None:
    params = SamplingParams(top_k=3, temperature=0.8)
    logits = np.random.default_rng(2).normal(size=(1, 9))
    p = brute_force(logits[0], params)
    draws = (np.arange(3000)[None] + 0.5) / 3000
    rows = RowSampling.of([params], 9, torch.float64)
    out = sample(torch.from_numpy(logits), rows, np.array([0.5]), top=4, extra_noise=draws)
    assert out.top_ids is not None
    assert out.top_logprobs is not None
    assert out.sampled_ids is not None
    assert out.sampled_logprobs is not None
    assert out.top_ids[0, :3].tolist() == np.argsort(-p)[:3].tolist()
    assert out.top_logprobs[0, 3] == -np.inf
    np.testing.assert_allclose(np.bincount(out.sampled_ids[0], minlength=9) / 3000, p, atol=1e-3)
    np.testing.assert_allclose(out.sampled_logprobs[0], np.log(p[out.sampled_ids[0]]), atol=1e-12)
