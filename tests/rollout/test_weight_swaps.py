from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicCache

from stretto.data.trajectory import Completion
from stretto.kernel.errors import ConfigError, StrettoError, WeightsError

from .support import assert_same, build_model, engine, perturbed, reference_logp, request, run, weights_of

MODEL = build_model()
BASE = weights_of(MODEL)
PROMPT = np.arange(3, 12)


def alone(version: int, weights: dict[str, torch.Tensor], id: int, n: int = 12) -> Completion:
    eng = engine(build_model(), max_num_seqs=1, version=None)
    eng.load(version, weights, "keep")
    eng.add([request(id, PROMPT, n)])
    return run(eng)[id]


def recomputed(weights: dict[int, dict[str, torch.Tensor]], prompt: np.ndarray, got: Completion) -> np.ndarray:
    """Log-probability of each token by a plain forward pass under the version recorded for it."""
    full = np.concatenate([prompt, got.tokens])
    out = np.zeros(len(got.tokens))
    for version in set(got.versions.tolist()):
        logp = reference_logp(build_model(), weights[version], full)
        for i in np.flatnonzero(got.versions == version):
            out[i] = logp[len(prompt) + i - 1, got.tokens[i]]
    return out


def test_fifty_swaps_with_shared_prefixes_record_the_versions_really_used() -> None:
    weights = {0: BASE}
    eng = engine(build_model(), max_num_seqs=5, eos_ids=())
    out: dict[int, Completion] = {}
    for version in range(1, 51):
        eng.add([request(2 * version + i, PROMPT, 7, group=version) for i in range(2)])
        out.update(eng.advance(2).finished)
        weights[version] = perturbed(BASE, version)
        eng.load(version, weights[version], "reprefill")
    out.update(run(eng))
    assert len(out) == 100
    assert max(len(set(c.versions.tolist())) for c in out.values()) >= 3
    for completion in out.values():
        assert (np.diff(completion.versions) >= 0).all()
        np.testing.assert_allclose(completion.logprobs, recomputed(weights, PROMPT, completion), rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["keep", "reprefill", "pin"])
def test_a_prefix_never_outlives_its_version(mode: str) -> None:
    eng = engine(build_model(), max_num_seqs=4)
    eng.add([request(0, PROMPT, 30, version=0 if mode == "pin" else None)])
    eng.advance(2)
    new = perturbed(BASE, 1)
    eng.load(1, new, mode)
    eng.add([request(1, PROMPT, 12)])
    assert_same(run(eng)[1], alone(1, new, 1))


def test_keep_goes_on_with_the_old_cache_under_the_new_weights() -> None:
    new, model = perturbed(BASE, 2), build_model()
    eng = engine(build_model(), eos_ids=())
    eng.add([request(0, PROMPT, 8)])
    eng.advance(3)
    eng.load(1, new, "keep")
    got = run(eng)[0]
    assert got.versions.tolist() == [0] * 3 + [1] * 5
    cache, full = DynamicCache(), torch.as_tensor(np.concatenate([PROMPT, got.tokens]), dtype=torch.long)[None]
    fed, logp = 0, []
    with torch.no_grad():
        for i in range(8):
            if i == 3:
                for name, parameter in model.named_parameters():
                    parameter.copy_(new[name])
            end = len(PROMPT) + i
            logits = model(full[:, fed:end], past_key_values=cache, use_cache=True).logits[0, -1]
            logp.append(float(logits.log_softmax(-1)[got.tokens[i]]))
            fed = end
    np.testing.assert_allclose(got.logprobs, logp, rtol=0, atol=1e-9)


def test_reprefill_loses_no_token_and_counts_its_work() -> None:
    eng = engine(build_model(), eos_ids=())
    eng.add([request(0, PROMPT, 8)])
    eng.advance(3)
    eng.load(1, perturbed(BASE, 3), "reprefill")
    report = eng.advance(1)
    assert report.prefill_tokens == len(PROMPT) + 2
    assert len(run(eng)[0].tokens) == 8


def test_drain_refuses_while_requests_run_and_holding_admission_empties_the_engine() -> None:
    eng = engine(build_model(), max_num_seqs=2)
    eng.add([request(i, PROMPT, 6) for i in range(5)])
    eng.advance(1)
    with pytest.raises(StrettoError, match="2 requests still run"):
        eng.load(1, BASE, "drain")
    assert eng.version == 0
    eng.hold_admission(True)
    out: dict[int, Completion] = {}
    while (report := eng.advance(2)).running:
        out.update(report.finished)
    out.update(report.finished)
    assert (len(out), report.waiting) == (2, 3)
    new = perturbed(BASE, 4)
    eng.load(1, new, "drain")
    eng.hold_admission(False)
    out.update(run(eng))
    assert [set(out[i].versions.tolist()) for i in range(5)] == [{0}, {0}, {1}, {1}, {1}]
    assert_same(out[4], alone(1, new, 4, 6))


def test_abort_returns_what_runs_and_keeps_the_queue() -> None:
    eng = engine(build_model(), max_num_seqs=2, eos_ids=())
    eng.add([request(i, PROMPT, 6) for i in range(3)])
    eng.advance(2)
    aborted = eng.load(1, perturbed(BASE, 5), "abort")
    assert [(id, len(c.tokens), c.finish) for id, c in aborted] == [(0, 2, "aborted"), (1, 2, "aborted")]
    out = run(eng)
    assert list(out) == [2]
    assert set(out[2].versions.tolist()) == {1}


def test_pinned_requests_go_on_under_their_version_until_it_is_freed() -> None:
    weights = {0: BASE, 1: perturbed(BASE, 6), 2: perturbed(BASE, 7)}
    eng = engine(build_model(), max_num_seqs=6)
    for version in range(3):
        if version:
            eng.load(version, weights[version], "pin")
        eng.add([request(10 * version + i, PROMPT, 12, version=version) for i in range(2)])
        eng.advance(2)
    assert eng.versions_held() == [0, 1, 2]
    out = run(eng)
    for id, completion in out.items():
        assert_same(completion, alone(id // 10, weights[id // 10], id))
    later = np.concatenate([PROMPT, out[0].tokens]).astype(np.int32)[:30]
    eng.add([request(40, later, 5, version=0, trajectory=0)])
    assert set(run(eng)[40].versions.tolist()) == {0}
    eng.add([request(42, later, 5, version=1)])
    eng.free([1, 2])
    assert eng.versions_held() == [0, 1, 2], "a request that is here needs version 1, and 2 is the newest"
    run(eng)
    assert eng.versions_held() == [0, 2]
    eng.free([0])
    assert eng.versions_held() == [2]
    with pytest.raises(StrettoError, match="pinned to version 0"):
        eng.add([request(41, later, 5, version=0)])


def test_pin_also_holds_the_version_of_requests_that_named_none() -> None:
    eng = engine(build_model(), max_num_seqs=2)
    eng.add([request(0, PROMPT, 12)])
    eng.advance(2)
    eng.load(1, perturbed(BASE, 8), "pin")
    assert_same(run(eng)[0], alone(0, BASE, 0))
    assert eng.versions_held() == [0, 1]
    eng.free([0])
    assert eng.versions_held() == [1]


def test_an_engine_that_keeps_versions_serves_one_that_nobody_has_asked_for_yet() -> None:
    eng = engine(build_model(), keep_versions=True)
    for version in (1, 2):
        eng.load(version, perturbed(BASE, version), "keep")
    eng.add([request(0, PROMPT, 12, version=0)])
    assert_same(run(eng)[0], alone(0, BASE, 0))
    assert eng.versions_held() == [0, 1, 2]
    eng.free([0, 1])
    assert eng.versions_held() == [2]


def test_a_subset_of_the_weights_changes_only_that_subset() -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    eng = engine(build_model())
    before = {n: p.clone() for n, p in eng.parameters().items()}
    eng.load(1, {name: BASE[name] * 2}, "keep")
    after = eng.parameters()
    assert torch.equal(after[name], BASE[name] * 2)
    assert all(torch.equal(after[n], before[n]) for n in before if n != name)


@pytest.mark.parametrize("forward", ["fast", "transformers"])
def test_wrong_weights_are_refused_by_name_and_the_old_version_stays(forward: str) -> None:
    eng = engine(build_model(), forward=forward)
    checksum = eng.weights_checksum()
    good = {"model.norm.weight": BASE["model.norm.weight"] * 2}
    with pytest.raises(WeightsError, match=r"no parameter 'model.norm.wait'.*model.norm.weight"):
        eng.load(1, {**good, "model.norm.wait": BASE["model.norm.weight"]}, "keep")
    with pytest.raises(WeightsError, match=r"'model.embed_tokens.weight' has shape \(2, 2\)"):
        eng.load(1, {**good, "model.embed_tokens.weight": torch.zeros(2, 2)}, "keep")
    with pytest.raises(ConfigError, match="'keep'"):
        eng.load(1, good, "kept")
    assert (eng.version, eng.weights_checksum()) == (0, checksum)
    eng.load(1, good, "keep")
    assert eng.weights_checksum() != checksum


def test_a_version_never_goes_back_under_running_requests() -> None:
    eng = engine(build_model(), version=3)
    eng.add([request(0, PROMPT, 3)])
    with pytest.raises(WeightsError, match="version 2 can't follow 3"):
        eng.load(2, {}, "keep")


def test_checksum_and_distance_are_taken_from_the_served_weights() -> None:
    one, two = engine(build_model(), keep_initial=True), engine(build_model(), forward="transformers")
    assert one.weights_checksum() == two.weights_checksum()
    assert one.distance_to_initial() == 0.0
    one.load(1, {name: w * 1.5 for name, w in BASE.items()}, "keep")
    assert one.distance_to_initial() == pytest.approx(0.5, abs=1e-12)
    with pytest.raises(WeightsError, match="keep_initial"):
        two.distance_to_initial()


@pytest.mark.parametrize("forward", ["fast", "transformers"])
def test_non_finite_output_names_request_and_version_and_poisons_nobody_else(forward: str) -> None:
    bad = {name: w.clone() for name, w in BASE.items()}
    bad["model.layers.0.self_attn.v_proj.weight"][0, 0] = torch.nan
    eng = engine(build_model(), max_num_seqs=3, forward=forward)
    eng.add([request(0, PROMPT, 30, version=0, temperature=0.8)])
    eng.advance(2)
    eng.load(1, bad, "pin")
    eng.add([request(1, np.arange(3, 33), 9), request(2, np.arange(3, 20), 9)])
    with pytest.raises(StrettoError, match=r"request [12] \(version 1\), request [12] \(version 1\)"):
        eng.advance(3)
    eng.load(2, BASE, "pin")
    eng.add([request(3, PROMPT, 12)])
    out = dict(eng.advance(1).finished)
    eng.add([request(4, np.full(34, 5), 12)])  # longer: the first must mask what the bad rows left behind
    out |= run(eng)
    assert out.keys() == {0, 3, 4}
    assert_same(out[3], alone(2, BASE, 3))
    clean = engine(build_model(), max_num_seqs=1)
    clean.add([request(0, PROMPT, 30, version=0, temperature=0.8)])
    assert_same(out[0], run(clean)[0])
