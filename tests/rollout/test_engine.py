from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.trajectory import Completion, join
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.rollout.engine import TorchEngine
from stretto.rollout.noise import uniforms
from stretto.rollout.types import Request, SamplingParams

from .support import (
    EOS,
    MAX_TOKENS,
    VOCAB,
    assert_same,
    build_model,
    engine,
    mixed_requests,
    reference_logp,
    request,
    run,
    weights_of,
)

MODEL = build_model()


def solo(item: Request, **options: object) -> Completion:
    eng = engine(MODEL, max_num_seqs=1, **options)
    eng.add([item])
    return run(eng)[item.id]


REQUESTS = mixed_requests(10)
SOLO = {item.id: solo(item) for item in REQUESTS}


@pytest.mark.parametrize("max_num_seqs", [1, 3, 10])
@pytest.mark.parametrize("forward", ["fast", "transformers"])
def test_a_request_gives_the_same_tokens_alone_and_batched(max_num_seqs: int, forward: str) -> None:
    eng = engine(MODEL, max_num_seqs=max_num_seqs, forward=forward)
    eng.add(REQUESTS)
    out = run(eng)
    assert out.keys() == SOLO.keys()
    for id, completion in out.items():
        assert_same(completion, SOLO[id])


def test_behaviour_records_equal_a_plain_forward_pass() -> None:
    item = request(0, [3, 9, 4], 20, temperature=0.7, top_logprobs=4, sampled_logprobs=3)
    got = solo(item)
    full = np.concatenate([item.tokens, got.tokens])
    logp = reference_logp(MODEL, weights_of(MODEL), full)[2 : 2 + len(got.tokens)] / 0.7
    logp = logp - np.log(np.exp(logp).sum(-1, keepdims=True))
    steps = np.arange(len(got.tokens))
    np.testing.assert_allclose(got.logprobs, logp[steps, got.tokens], atol=1e-9)
    np.testing.assert_allclose(got.entropy, -(np.exp(logp) * logp).sum(-1), atol=1e-9)
    assert got.records["top_ids"].shape == got.records["top_logprobs"].shape == (len(steps), 4)
    assert got.records["sampled_ids"].shape == got.records["sampled_logprobs"].shape == (len(steps), 3)
    np.testing.assert_array_equal(got.records["top_ids"], np.argsort(-logp, -1)[:, :4])
    np.testing.assert_allclose(
        got.records["sampled_logprobs"], logp[steps[:, None], got.records["sampled_ids"]], atol=1e-9
    )


def test_extra_draws_have_noise_of_their_own() -> None:
    got = solo(request(6, [3, 9], 10, sampled_logprobs=2))
    prompt = np.array([3, 9], np.int32)
    logp = reference_logp(MODEL, weights_of(MODEL), np.concatenate([prompt, got.tokens]))
    cdf = np.exp(logp).cumsum(-1)
    for i, position in enumerate(range(2, 2 + len(got.tokens))):
        at = [int(np.searchsorted(cdf[position - 1], uniforms(7, 6, position, s)[0])) for s in (0, 1, 2)]
        assert at == [got.tokens[i], *got.records["sampled_ids"][i]]


def test_rows_start_and_end_at_any_step() -> None:
    eng = engine(MODEL, max_num_seqs=3)
    out: dict[int, Completion] = {}
    for item in REQUESTS:
        eng.add([item])
        out.update(eng.advance(2).finished)
    out.update(run(eng))
    for id, completion in out.items():
        assert_same(completion, SOLO[id])


def test_prompts_of_a_group_share_one_prefill() -> None:
    prompt = np.arange(3, 15)
    group = [request(i, prompt, 8) for i in range(6)]
    eng = engine(MODEL, max_num_seqs=4)
    eng.add(group)
    report = eng.advance(1)
    assert report.prefill_tokens == 11  # one prompt, less the token that the first step feeds
    out = dict(report.finished) | run(eng)
    for item in group:
        assert_same(out[item.id], solo(item))


def test_latecomers_share_the_cache_of_a_running_row_of_their_group() -> None:
    prompt = np.arange(3, 15)
    eng = engine(MODEL, max_num_seqs=4)
    eng.add([request(0, prompt, 20, stop=()), request(1, prompt, 20)])
    eng.advance(2)
    eng.add([request(2, prompt, 8)])
    report = eng.advance(1)
    assert report.prefill_tokens == 0
    assert_same(run(eng)[2], solo(request(2, prompt, 8)))


def test_a_row_never_sees_what_was_in_its_slot_before() -> None:
    eng = engine(MODEL, max_num_seqs=2)
    for round_, item in enumerate(REQUESTS):
        long = request(100 + round_, np.full(30, 3 + round_), 18, temperature=1.5)
        eng.add([long])
        run(eng)
        eng.add([item])
        assert_same(run(eng)[item.id], SOLO[item.id])


def test_every_eos_id_ends_a_completion_and_belongs_to_it() -> None:
    seen = set()
    for id in range(60):
        got = solo(request(id, [3 + id % 30], 40, temperature=1.3))
        assert not set(got.tokens[:-1].tolist()) & set(EOS)
        if got.finish == "stop":
            assert got.tokens[-1] in EOS
            seen.add(int(got.tokens[-1]))
        else:
            assert len(got.tokens) == 40
    assert seen == set(EOS)


def test_stop_ids_are_the_requests_own() -> None:
    free = solo(request(1, [3, 4], 20))
    third = int(free.tokens[2])
    eng = engine(MODEL)
    eng.add([request(1, [3, 4], 20, stop=(third,)), request(2, [3, 4], 20, trajectory=1)])
    out = run(eng)
    first = free.tokens.tolist().index(third) + 1
    assert out[1].tokens.tolist() == free.tokens[:first].tolist()
    assert out[1].finish == "stop"
    assert out[2].tokens.tolist() == free.tokens.tolist()


def test_a_completion_is_cut_at_the_engines_capacity() -> None:
    got = solo(request(4, np.full(MAX_TOKENS - 3, 7), 50, temperature=0.0), eos_ids=())
    assert (len(got.tokens), got.finish) == (3, "length")
    with pytest.raises(StrettoError, match=r"request 5 .*no room"):
        engine(MODEL).add([request(5, np.full(MAX_TOKENS, 7), 1)])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(9, [], 1), "no tokens"),
        (request(9, [VOCAB], 1), "token ids"),
        (request(9, [3], 1, version=4), "pinned to version 4"),
        (request(9, [3], 1, top_p=0.0), "top_p"),
        (request(9, [3], 0), "sampling settings"),
        (request(9, [3], 1, top_logprobs=VOCAB + 1), "top_logprobs"),
        (request(1, [3], 1), "in use"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_nothing_is_queued(bad: Request, message: str) -> None:
    eng = engine(MODEL)
    eng.add([request(1, [3], 1)])
    with pytest.raises(StrettoError, match=f"request {bad.id} .*{message}"):
        eng.add([request(2, [3], 1), bad])
    assert eng.waiting == 1


def test_nothing_is_served_before_the_first_version() -> None:
    eng = engine(MODEL, version=None)
    assert eng.version is None
    with pytest.raises(StrettoError, match="load a version first"):
        eng.add([request(0, [3], 4)])
    eng.load(5, weights_of(MODEL), "keep")
    eng.add([request(0, [3], 4)])
    assert set(run(eng)[0].versions.tolist()) == {5}
    assert eng.version == 5


def test_a_paused_request_keeps_its_cache_and_its_tokens() -> None:
    eng = engine(MODEL, max_num_seqs=4)
    eng.add(REQUESTS[:6])
    eng.advance(2)
    eng.pause([0, 2, 5])
    others = eng.advance(60)
    assert not {0, 2, 5} & {id for id, _ in others.finished}
    assert others.running >= 1
    eng.pause()
    assert eng.advance(5).decode_steps == 0
    eng.resume()
    out = dict(others.finished) | run(eng)
    for id in (i for i in out if i in SOLO):
        assert_same(out[id], SOLO[id])


@pytest.mark.parametrize("target", ["fast", "transformers"])
def test_an_exported_request_goes_on_in_another_engine(target: str) -> None:
    first, second = engine(MODEL, max_num_seqs=10), engine(MODEL, max_num_seqs=4, forward=target)
    first.add(REQUESTS)
    out = dict(first.advance(4).finished)
    second.add([request(50, [3, 4, 5], 9)])
    second.advance(1)
    for item in REQUESTS:
        if item.id not in out:
            state = first.export(item.id)
            assert state.keys is not None
            assert state.keys.shape[2] == len(item.tokens) + 3
            second.import_(state)
    assert first.advance(1).running == 0
    out |= run(second)
    for id, completion in SOLO.items():
        assert_same(out[id], completion)


def test_an_export_without_cache_is_prefilled_again() -> None:
    first, second = engine(MODEL), engine(MODEL)
    first.add(REQUESTS[:1])
    first.advance(3)
    second.import_(dataclasses.replace(first.export(0), keys=None, values=None))
    assert_same(run(second)[0], SOLO[0])
    with pytest.raises(StrettoError, match="request 0 isn't here"):
        first.export(0)


def test_an_import_needs_its_version_and_a_fitting_cache() -> None:
    first = engine(MODEL)
    first.add(REQUESTS[:1])
    first.advance(2)
    state = first.export(0)
    with pytest.raises(StrettoError, match="version 0"):
        engine(MODEL, version=3).import_(state)
    assert state.keys is not None
    with pytest.raises(StrettoError, match="shape"):
        engine(MODEL).import_(dataclasses.replace(state, keys=state.keys[:1]))


def test_an_aborted_request_continues_as_if_uninterrupted() -> None:
    item, want = REQUESTS[7], SOLO[7]
    eng = engine(MODEL)
    eng.add([item])
    done, rest, parts = 0, item, Completion(*(np.zeros(0) for _ in range(4)), "aborted")
    for _ in range(50):
        report = eng.advance(2)
        if report.finished:
            parts = join(parts, report.finished[0][1]) if done else report.finished[0][1]
            break
        ((_, partial),) = eng.abort([item.id])
        assert partial.finish == "aborted"
        parts = join(parts, partial) if done else partial
        done += len(partial.tokens)
        rest = dataclasses.replace(
            rest, tokens=np.concatenate([item.tokens, parts.tokens]).astype(np.int32),
            sampling=dataclasses.replace(item.sampling, max_new_tokens=item.sampling.max_new_tokens - done),
        )  # fmt: skip
        eng.add([rest])
    assert done
    assert_same(parts, want)


def test_aborting_what_is_queued_returns_nothing_sampled() -> None:
    eng = engine(MODEL, max_num_seqs=1)
    eng.add(REQUESTS[:3])
    eng.advance(1)
    assert [(i, len(c.tokens), c.finish) for i, c in eng.abort([2, 99])] == [(2, 0, "aborted")]
    assert eng.waiting + eng.running == 2


def test_float32_stays_within_its_tolerance() -> None:
    model, eng = build_model(dtype=torch.float32), engine(build_model(dtype=torch.float32), max_num_seqs=10)
    eng.add(REQUESTS)
    batched = run(eng)
    for item in REQUESTS:
        alone = engine(model, max_num_seqs=1)
        alone.add([item])
        assert_same(run(alone)[item.id], batched[item.id], atol=1e-4)
        assert batched[item.id].logprobs.dtype == np.float32


def test_reports_count_steps_and_tokens() -> None:
    eng = engine(MODEL, max_num_seqs=2, eos_ids=())
    eng.add([request(0, [3, 4, 5], 4), request(1, [6], 2), request(2, [7, 8], 3)])
    report = eng.advance(100)
    assert sorted(len(c.tokens) for _, c in report.finished) == [2, 3, 4]
    assert (report.decode_tokens, report.prefill_tokens) == (9, 3)
    assert report.decode_steps == 5
    assert (report.running, report.waiting) == (0, 0)


def test_reports_name_each_request_once_when_it_has_its_first_token() -> None:
    eng = engine(MODEL, max_num_seqs=2, eos_ids=())
    eng.add([request(0, [3, 4, 5], 4), request(1, [6], 1), request(2, [7, 8], 3)])
    assert [eng.advance(1).first for _ in range(6)] == [[0, 1], [2], [], [], [], []]
    eng.add([request(3, [3, 4], 5), request(4, [5], 5)])
    eng.abort([4])
    assert eng.advance(2).first == [3]
    moved = engine(MODEL, max_num_seqs=1, eos_ids=())
    moved.import_(eng.export(3))
    assert moved.advance(9).first == [], "it had its first token elsewhere"


def test_a_wrong_construction_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        TorchEngine(MODEL, max_num_seqs=0, max_model_len=8, eos_ids=EOS, seed=0)
    with pytest.raises(ConfigError, match="eos"):
        TorchEngine(MODEL, max_num_seqs=1, max_model_len=8, eos_ids=(VOCAB,), seed=0)


@settings(max_examples=25, derandomize=True)
@given(st.data())
def test_no_schedule_changes_any_token(data: st.DataObject) -> None:
    engines = [engine(MODEL, max_num_seqs=data.draw(st.integers(1, 4))) for _ in range(2)]
    items = list(REQUESTS)
    partial_completions: dict[int, list[Completion]] = {}
    out: dict[int, Completion] = {}
    where: dict[int, int] = {}

    def collect(finished: list[tuple[int, Completion]]) -> None:
        for id, completion in finished:
            parts = [*partial_completions.pop(id, []), completion]
            whole = parts[0]
            for part in parts[1:]:
                whole = join(whole, part) if len(whole.tokens) else part
            out[id] = whole
            where.pop(id, None)

    for _ in range(data.draw(st.integers(5, 30))):
        action = data.draw(st.sampled_from(["add", "advance", "advance", "pause", "resume", "move", "abort"]))
        side = data.draw(st.integers(0, 1))
        here = [id for id, at in where.items() if at == side]
        if action == "add" and items:
            item = items.pop(0)
            engines[side].add([item])
            where[item.id] = side
        elif action == "advance":
            collect(engines[side].advance(data.draw(st.integers(1, 5))).finished)
        elif here:
            id = data.draw(st.sampled_from(here))
            if action == "pause":
                engines[side].pause([id])
            elif action == "resume":
                engines[side].resume([id])
            elif action == "move":
                engines[1 - side].import_(engines[side].export(id))
                where[id] = 1 - side
            elif action == "abort":
                ((_, part),) = engines[side].abort([id])
                parts = partial_completions.setdefault(id, [])
                parts.append(part)
                done = np.concatenate([p.tokens for p in parts])
                original = REQUESTS[id]
                rest: SamplingParams = dataclasses.replace(
                    original.sampling, max_new_tokens=original.sampling.max_new_tokens - len(done)
                )
                tokens = np.concatenate([original.tokens, done]).astype(np.int32)
                engines[side].add([dataclasses.replace(original, tokens=tokens, sampling=rest)])
    engines[0].add(items)
    for eng in engines:
        eng.resume()
        collect(list(run(eng).items()))
    assert out.keys() == SOLO.keys()
    for id, completion in out.items():
        assert_same(completion, SOLO[id])
