"""Lag bound 0 is the synchronous trainer: same batches, losses and weights (float64). Bit for bit where the same rows
are decoded together; on the wall clock that is for chance to say, and sums of other shapes round otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stretto.config.schema import RunConfig
from stretto.data.columns import pack
from stretto.data.identity import noise_key
from stretto.data.trajectory import Transcript
from stretto.kernel.events import read_events
from stretto.learner.build import build_learner
from stretto.models.tokenizer import light_tokenizer
from stretto.rollout.build import build_engine
from stretto.rollout.types import Request, SamplingParams
from stretto.run.launch import launch

from .dense import Dense, dense_reward
from .harness import assert_clean, configure, keys, of, tiny

STEPS = 3
ROUNDING = 1e-9
"""Far below float32, far above what float64 loses in three steps (Adam divides small gradients by small roots)."""
SIZE = 8


@dataclass
class Trained:
    """What a trainer did: groups of each batch, reward of each trajectory by its noise key, losses, final weights."""

    batches: list[list[int]]
    rewards: dict[int, float]
    metrics: list[dict[str, float]]
    weights: dict[str, torch.Tensor]


def config_of(model: Path, out: Path, *settings: str) -> RunConfig:
    return configure(
        *tiny(model), f"env.name={Dense.__module__}:Dense", f"out={out}", "lag_bound=0", f"max_steps={STEPS}",
        "prompts_per_step=3", "group_size=4", *settings,
    )  # fmt: skip


def synchronous(model: Path, config: RunConfig, out: Path) -> Trained:
    """The trainer that anybody would write: generate, score, train, load; no part of the loop."""
    tokenizer = light_tokenizer(model)
    env = Dense(digits=1)
    env.bind(tokenizer, config.seed)
    engine = build_engine(model, config.engine, config.seed, tokenizer.eos_ids)
    learner = build_learner(model, config, config.max_steps)
    sampling = SamplingParams(max_new_tokens=config.sampling.max_new_tokens, stop=tuple(tokenizer.eos_ids))
    done = Trained([], {}, [], {})
    for step in range(config.max_steps):
        engine.load(step, {name: w.clone() for name, w in learner.weights().items()}, "keep")
        indices = [step * config.prompts_per_step + k for k in range(config.prompts_per_step)]
        if config.epochs is not None:  # one epoch of ``Finite``
            indices = [index for index in indices if index < SIZE]
        members = {noise_key(g, k): g for g in indices for k in range(config.group_size)}
        prompts = {i: env.task(g).prompt for i, g in members.items()}
        engine.add([Request(i, i, members[i], prompt, sampling, noise_key=i) for i, prompt in prompts.items()])
        completions: dict[int, Any] = {}
        while engine.has_work:
            completions |= dict(engine.advance(1).finished)
        trajectories = []
        for i, prompt in prompts.items():
            transcript = Transcript(i, members[i])
            transcript.observe(prompt)
            completion = completions[i]
            transcript.sample(completion)
            stopped = completion.finish == "stop"
            done.rewards[i] = dense_reward(completion.tokens[:-1] if stopped else completion.tokens)
            trajectory = transcript.finish(done.rewards[i], terminated=stopped, truncated=not stopped)
            trajectory.version_complete = step
            trajectories.append(trajectory)
        result = learner.step(pack(trajectories))
        assert not result.skipped
        done.batches.append(indices)
        done.metrics.append(result.metrics)
    learner.save_model(out)
    done.weights = load_file(out / "model.safetensors")
    return done


def of_run(out: Path) -> Trained:
    """The same of a run's directory."""
    events = read_events(out)
    assert_clean(events)
    key = keys(events)
    return Trained(
        [e["groups"] for e in of(events, "StepStart")],
        {key[e["traj"]]: e["reward"] for e in of(events, "TrajDone")},
        [e["metrics"] for e in of(events, "StepEnd")],
        load_file(out / "model" / "model.safetensors"),
    )


def assert_same(ours: Trained, theirs: Trained) -> None:
    """The same decisions, and numbers to ``ROUNDING``: rows may meet in the engine in other company."""
    assert ours.batches == theirs.batches
    assert ours.rewards == theirs.rewards
    for a, b in zip(ours.metrics, theirs.metrics, strict=True):
        timeless = [name for name in b if not name.startswith(("time/", "memory/"))]
        assert "loss" in " ".join(timeless)
        assert {n: a[n] for n in timeless} == pytest.approx({n: b[n] for n in timeless}, rel=ROUNDING, abs=ROUNDING)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in theirs.weights.items():
        torch.testing.assert_close(ours.weights[name], weight, rtol=ROUNDING, atol=ROUNDING, msg=name)


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    out = tmp_path_factory.mktemp("sync")
    done = synchronous(model, config_of(model, out), out / "model")
    initial = load_file(model / "model.safetensors")
    assert any(not torch.equal(initial[n].double(), w.double()) for n, w in done.weights.items()), "nothing was learnt"
    return done


def test_rehearsed_at_lag_bound_0_equals_the_synchronous_trainer(
    reference: Trained, model: Path, tmp_path: Path
) -> None:
    launch(config_of(model, tmp_path / "run", "simulation.env.kind=exponential", "simulation.env.mean=3"), "rehearse")
    assert_same(of_run(tmp_path / "run"), reference)


@pytest.mark.parametrize("objective", ["tis", "grpo"])
def test_a_short_last_batch_trains_as_in_the_synchronous_trainer(objective: str, model: Path, tmp_path: Path) -> None:
    """Its denominators are its own."""
    config = config_of(model, tmp_path / "run", f"env.name={Dense.__module__}:Finite", "env.digits=1", "epochs=1",
                       "learner.minibatches=3", f"objective.name={objective}")  # fmt: skip
    launch(config, "rehearse")
    ours = of_run(tmp_path / "run")
    assert [len(batch) for batch in ours.batches] == [3, 3, 2]
    assert_same(ours, synchronous(model, config, tmp_path / "model"))


def test_inline_on_the_wall_clock_equals_the_synchronous_trainer(
    reference: Trained, model: Path, tmp_path: Path
) -> None:
    env = (f"env.name={Dense.__module__}:Jittery", "env.digits=1")
    launch(config_of(model, tmp_path / "run", "workers.kind=inline", *env), "train")
    assert_same(of_run(tmp_path / "run"), reference)


@pytest.mark.parametrize("transport", ["shared-memory", "files"])
def test_worker_processes_equal_the_synchronous_trainer(
    transport: str, reference: Trained, model: Path, tmp_path: Path
) -> None:
    env = (f"env.name={Dense.__module__}:Jittery", "env.digits=1", f"weights.transport={transport}")
    launch(config_of(model, tmp_path / "run", "engine.count=2", *env), "train")
    assert not (tmp_path / "run" / "weights").exists()
    assert_same(of_run(tmp_path / "run"), reference)
