"""Weights: what an engine serves is what the learner made, wholly, or the version before."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stretto.config.schema import RunConfig
from stretto.data.columns import unpack_completions
from stretto.data.identity import PolicyVersion
from stretto.data.modes import InFlight
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import WeightsError
from stretto.models.load import load_policy, named_weights
from stretto.observe.metrics import read_metrics
from stretto.pool.group import Group
from stretto.rollout.types import Request, SamplingParams
from stretto.runtime.train_loop import TrainLoop
from stretto.runtime.workers import inline
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.requests import pack_requests
from stretto.runtime.workers.serving import EngineProcess
from stretto.weights.memory import HEADER_BYTES, SharedMemory, place_bytes
from stretto.weights.transport import Transport, find_transport

from .lengths import length
from .runs import assert_clean, start, train

REWARD = f"reward={length.__module__}:length"

# --- an engine process's own logic, without a process ---


class Wire:
    """Collects what the worker says."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        self.said.append(message)

    def answers(self) -> list[Any]:
        """[number, what was answered or why not]."""
        return [
            (m.number, m.value if isinstance(m, say.Answer) else m.error)
            for m in self.said if isinstance(m, say.Answer | say.Refused)
        ]  # fmt: skip


class Engine:
    """An engine process driven by hand, and the transport that a learner would stage with."""

    def __init__(self, model: Path, transport: str, directory: Path) -> None:
        self.weights = {n: w.clone() for n, w in named_weights(load_policy(model)).items()}
        self.transport: Transport = find_transport(transport).open(directory / "weights")
        self.wire = Wire()
        sizes = {"max_num_seqs": 4, "max_model_len": 64, "decode_steps": 1}
        config = RunConfig.model_validate(
            {"engine": sizes, "eval": {"weight_drift": True}, "sampling": {"max_new_tokens": 8}}
        )
        spec = say.WorkerSpec(config, str(model), (1,), 1, (transport, self.transport.place), keep_versions=False)
        self.process = EngineProcess(self.wire, spec)  # type: ignore[arg-type]

    def load(self, version: int, mode: str = "keep", flip: bool = False) -> Any:
        staged = self.transport.stage(PolicyVersion(number=version), self.weights)
        if flip and isinstance(self.transport, SharedMemory):
            flip_bit(self.transport.fd, int(staged.where["offset"]) + HEADER_BYTES + 1234)
        elif flip:
            with open(Path(str(staged.where["directory"]), "model.safetensors"), "r+b") as file:
                flip_bit(file.fileno(), 9876)
        self.process.number = version
        self.process.handle(say.Load(staged, InFlight(mode)))
        return self.wire.answers()[-1] if self.wire.answers() else None


def flip_bit(fd: int, at: int) -> None:
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 4]), at)


@pytest.fixture(params=["shared-memory", "files"])
def engine(model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = Engine(model, request.param, tmp_path)
    yield made
    made.transport.close()


def request(id: int = 1) -> Request:
    return Request(id, id, id, np.array([3, 4, 5], np.int32), SamplingParams(max_new_tokens=40), noise_key=id)


def test_a_flipped_byte_is_refused_and_the_old_version_stays(engine: Engine) -> None:
    assert engine.load(0)[1].version == 0
    before = engine.process.engine.weights_checksum()
    engine.weights = {n: w + 1 for n, w in engine.weights.items()}
    number, error = engine.load(1, flip=True)
    assert number == 1
    assert isinstance(error, WeightsError)
    assert re.match(r"version 1 of policy in .* is corrupt: checksum", str(error))
    assert engine.process.engine.version == 0
    assert engine.process.engine.weights_checksum() == before
    assert engine.load(2)[1].version == 2, "and the next good one loads"


def test_an_engine_in_the_middle_of_an_update_answers_other_questions_at_once(engine: Engine) -> None:
    engine.load(0)
    engine.process.handle(say.Add(pack_requests([request()])))
    engine.process.advance()
    engine.load(1, "drain")
    assert len(engine.wire.answers()) == 1, "the update waits for the running request"
    engine.process.number = 7
    engine.process.handle(say.Snapshot(False))
    number, columns = engine.wire.answers()[-1]
    assert number == 7
    assert [i for i, _ in unpack_completions(columns)] == [1]


def test_an_engine_serves_exactly_what_was_staged_and_says_which_version(engine: Engine) -> None:
    for version in range(3):
        engine.weights = {n: torch.randn_like(w) for n, w in engine.weights.items()}
        assert engine.load(version)[1].version == version
        served = engine.process.engine.parameters()
        assert all(torch.equal(served[n], w) for n, w in engine.weights.items())


def test_constant_filled_weights_are_never_torn(engine: Engine) -> None:
    names = list(engine.weights)
    for version in range(60):
        engine.weights = {n: torch.full_like(engine.weights[n], version + 1.0) for n in names}
        assert engine.load(version)[1].version == version
        for value in engine.process.engine.parameters().values():
            assert float(value.min()) == float(value.max()) == version + 1.0


def test_the_canary_grows_with_each_real_update(engine: Engine) -> None:
    distances = []
    for version in range(3):
        engine.load(version)
        engine.process.handle(say.Distance())
        distances.append(engine.wire.answers()[-1][1])
        engine.weights = {n: w * 1.01 for n, w in engine.weights.items()}
    assert distances[0] == 0
    assert 0 < distances[1] < distances[2]


# --- whole runs ---


def test_evaluations_report_how_far_the_engines_are_from_their_first_weights(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    start(
        out, model, REWARD, "max_steps=4", "eval.tasks=4", "eval.every=2", "eval.weight_drift=true", "learner.lr=1e-2"
    )
    found = [row["weights/distance_to_initial"] for row in read_metrics(out) if "eval/count" in row]
    assert len(found) == 3
    assert found[0] == 0
    assert 1e-4 < found[1] < found[2]


class Recorder:
    """Keeps every staged version and every trained trajectory of an inline run."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.trained: list[Trajectory] = []
        stage = inline.InlineLearner.stage

        async def kept(handle: inline.InlineLearner) -> Any:
            staging = await stage(handle)
            self.weights[staging.staged.version.number] = handle._transport.fetch(staging.staged)
            return staging

        train = TrainLoop._train

        async def training(loop: TrainLoop, groups: list[Group]) -> None:
            self.trained += [t for group in groups for t in group.trajectories()]
            await train(loop, groups)

        patch.setattr(inline.InlineLearner, "stage", kept)
        patch.setattr(TrainLoop, "_train", training)


class Recomputed:
    """Log-probabilities by plain Transformers in float64."""

    def __init__(self, model: Path, weights: dict[int, dict[str, torch.Tensor]]) -> None:
        self.models = {}
        for version, tensors in weights.items():
            policy = load_policy(model, torch.float64)
            parameters = dict(policy.named_parameters())
            with torch.no_grad():
                for name, value in tensors.items():
                    parameters[name].copy_(value)
            self.models[version] = policy

    @torch.no_grad()
    def clean(self, trajectory: Trajectory) -> np.ndarray[Any, Any]:
        """Each token under its own version, all of its prefix computed by that version."""
        ids = torch.from_numpy(trajectory.tokens.astype(np.int64))[None]
        out = np.zeros(len(trajectory.tokens))
        for version in np.unique(trajectory.versions[trajectory.mask]):
            logp = self.models[int(version)](ids[:, :-1]).logits[0].log_softmax(-1)
            logp = logp.gather(1, ids[0, 1:, None])[:, 0].numpy()
            mine = np.flatnonzero(trajectory.mask & (trajectory.versions == version))
            out[mine] = logp[mine - 1]
        return out[trajectory.mask]

    @torch.no_grad()
    def replayed(self, trajectory: Trajectory) -> np.ndarray[Any, Any]:
        """Each token under its own version, keys and values of its prefix by the versions that computed them then."""
        ids = torch.from_numpy(trajectory.tokens.astype(np.int64))[None]
        first = int(trajectory.mask.argmax())
        versions = trajectory.versions.copy()
        versions[:first] = versions[first]
        out, cache, at, n = np.zeros(len(ids[0])), None, 0, len(ids[0]) - 1
        while at < n:  # position p was fed by the version that sampled token p + 1
            end = at + 1
            while end < n and versions[end + 1] == versions[at + 1]:
                end += 1
            answer = self.models[int(versions[at + 1])](ids[:, at:end], past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            logp = answer.logits[0].log_softmax(-1).gather(1, ids[0, at + 1 : end + 1, None])[:, 0]
            out[at + 1 : end + 1] = logp.numpy()
            at = end
        return out[trajectory.mask]


@pytest.mark.parametrize("mode", ["keep", "reprefill", "drain", "abort", "pin"])
def test_behaviour_logp_of_all_trained_tokens_equals_a_recomputation_under_their_versions(
    mode: str, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Recorder(monkeypatch)
    settings = (REWARD, f"control.in_flight={mode}", "max_steps=8", "engine.dtype=float64", "learner.dtype=float64",
                "learner.lr=3e-2", "sampling.max_new_tokens=24", "engine.decode_steps=2",
                "simulation.step_base_s=0.06", "simulation.publish_s=0.01", "lag_bound=4", "group_size=4")  # fmt: skip
    start(tmp_path / "run", model, *settings, mode="rehearse")
    assert_clean(tmp_path / "run", complete=True)
    truth = Recomputed(model, record.weights)
    mixed = 0
    for trajectory in record.trained:
        versions = trajectory.versions[trajectory.mask]
        mixed += len(np.unique(versions)) > 1
        expected = truth.replayed(trajectory) if mode == "keep" else truth.clean(trajectory)
        np.testing.assert_allclose(trajectory.logprobs[trajectory.mask], expected, atol=1e-9, rtol=0)
    assert len(record.trained) == 64
    assert (mixed > 5) == (mode in ("keep", "reprefill", "abort"))
    if mode == "keep":
        assert any(np.abs(truth.clean(t) - t.logprobs[t.mask]).max() > 1e-4 for t in record.trained), (
            "kept KV does differ"
        )


@pytest.mark.slow
def test_a_byte_that_flips_in_shared_memory_ends_the_run_and_is_never_served(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with train(out, model, "max_steps=100000") as run:
        run.until_event("StepEnd", 3)
        engine, learner = run.child("engine-0"), run.child("learner")
        os.kill(engine, signal.SIGSTOP)
        try:
            run.until(lambda: run.events[-1]["e"] in ("StepStart", "Published") or None, 20)
            time.sleep(1.0)  # the learner has staged what it could
            (memory,) = [fd for fd in Path(f"/proc/{learner}/fd").iterdir() if "stretto-weights" in os.readlink(fd)][:1]
            nbytes = next(e["bytes"] for e in run.events if e["e"] == "Published")
            fd = os.open(memory, os.O_RDWR)
            for place in (0, 1):
                flip_bit(fd, place * place_bytes(nbytes) + HEADER_BYTES + nbytes // 2)
            os.close(fd)
        finally:
            os.kill(engine, signal.SIGCONT)
        code, output = run.end(30)
    assert code == 1
    assert "is corrupt: checksum" in output
    assert_clean(out)
