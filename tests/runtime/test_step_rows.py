"""Rows of one turn each: what a step of a multi-turn trajectory trains on, alone and in the loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.envs.tool import ToolAgent
from stretto.envs.verifiers import Score
from stretto.kernel.errors import ConfigError
from stretto.learner.learner import Learner
from stretto.learner.turns import by_turn
from stretto.objectives import get
from stretto.pool.group import Group
from stretto.pool.late import DelayedRewards, PendingReward, with_late
from stretto.run.checks import check

from . import runs
from .dense import dense_reward
from .harness import assert_clean, configure, of, rehearse


def trajectory(id: int, *lengths: tuple[bool, int], group: int = 0, reward: float = 1.0, **more: Any) -> Trajectory:
    """Segments (policy or not, tokens)."""
    mask = np.array([sampled for sampled, n in lengths for _ in range(n)], bool)
    n, rng = len(mask), np.random.default_rng(id)
    return Trajectory(
        id, group, rng.integers(2, 15, n).astype(np.int32), mask, np.full(n, id % 2, np.int32), -3 * rng.random(n),
        rng.random(n), reward, turns=sum(s for s, _ in lengths), **more,
    )  # fmt: skip


TALK = trajectory(4, (False, 3), (True, 2), (False, 2), (True, 1), (False, 1), (True, 3), (False, 2), reward=0.5,
                  terminated=False, truncated=True)  # fmt: skip


def test_each_turn_is_a_row_with_everything_before_it_as_context() -> None:
    rows = by_turn(pack([TALK])).columns
    assert rows["length"].tolist() == [5, 8, 14]
    batch = TokenBatch.from_columns(rows, 2, torch.float64)
    assert batch.tokens is not None
    assert batch.rewards is not None
    assert batch.trajectory is not None
    for row, (begin, end) in enumerate(((3, 5), (7, 8), (9, 12))):
        n = int(rows["length"][row])
        assert batch.tokens[row, :n].tolist() == TALK.tokens[:n].tolist()
        assert batch.mask[row].nonzero()[:, 0].tolist() == list(range(begin, end))
    assert batch.rewards.sum(1).tolist() == [0, 0, 0.5]
    assert batch.trajectory.tolist() == [4, 4, 4]
    assert batch.truncated is not None
    assert batch.truncated.tolist() == [False, False, True]
    assert batch.terminated is not None
    assert batch.terminated.tolist() == [False, False, False]


def test_rewards_of_each_turn_stay_with_it() -> None:
    """One on an observation belongs to the turn before, which a later row doesn't tell again."""
    rewards = np.zeros(14)
    rewards[[4, 6, 7, 13]] = [1, 2, 4, 8]
    talk = trajectory(1, (False, 3), (True, 2), (False, 2), (True, 1), (False, 1), (True, 3), (False, 2), reward=15,
                      rewards=rewards)  # fmt: skip
    rows = by_turn(pack([talk])).columns
    batch = TokenBatch.from_columns(rows, 0, torch.float64)
    assert batch.rewards is not None
    assert float(batch.rewards.sum()) == 15
    assert batch.rewards.sum(1).tolist() == [1, 6, 8]


SEGMENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=6)


@settings(max_examples=100)
@given(st.lists(SEGMENTS, min_size=1, max_size=5))
def test_nothing_is_lost_or_told_twice(shapes: list[list[tuple[bool, int]]]) -> None:
    whole = pack([trajectory(i, *shape) for i, shape in enumerate(shapes)])
    turns = by_turn(whole)
    rows = turns.columns
    expected = [
        sum(1 for k, (sampled, _) in enumerate(shape) if sampled and (k == 0 or not shape[k - 1][0])) or 1
        for shape in shapes
    ]
    assert np.bincount(rows["trajectory"], minlength=len(shapes)).tolist() == expected
    told = np.bincount(turns.source[rows["mask"]], minlength=len(whole["mask"]))
    assert told.tolist() == whole["mask"].astype(int).tolist()
    for i in range(len(shapes)):
        of_row = np.repeat(rows["trajectory"], rows["length"]) == i
        of_whole = np.repeat(whole["trajectory"], whole["length"]) == i
        assert rows["rewards"][of_row].sum() == whole["rewards"][of_whole].sum()
    for name in ("tokens", "versions", "logp_behavior", "entropy"):
        assert np.array_equal(rows[name], whole[name][turns.source])
    gathered = turns.gathered(rows["logp_behavior"])
    np.testing.assert_array_equal(gathered[whole["mask"]], whole["logp_behavior"][whole["mask"]])
    assert np.isnan(gathered[~whole["mask"]]).all()


def test_rows_that_come_back_for_a_late_reward_are_split_too() -> None:
    queue = DelayedRewards(9)
    queue.add(PendingReward(TALK, 4, 0.0))
    queue.take([4])
    queue.step_ended([Group.of(0, [TALK], 0, 0)], 1)
    queue.mature(4, 0.75)
    rows = by_turn(with_late(pack([trajectory(9, (False, 1), (True, 2))]), queue.take([9]))).columns
    assert rows["trajectory"].tolist() == [9, 4, 4, 4]
    assert rows["trained_at"].tolist() == [-1, 1, 1, 1]
    np.testing.assert_array_equal(rows["reward_slow"], [np.nan, 0.75, 0.75, 0.75])


def talks(groups: int = 3) -> list[Trajectory]:
    out = []
    for i in range(2 * groups):
        shape = [(False, 2)] + [(True, 2), (False, 1)] * (1 + i % 4) + [(True, 3)]
        out.append(trajectory(i, *shape, group=i // 2, reward=float(i % 2)))
    return out


def learner(model: Path, objective: str, rows: str, of: dict[str, Any] | None = None, **options: Any) -> Learner:
    config = LearnerConfig(**{"dtype": "float64", "warmup_steps": 0, "lr": 1e-2, "rows": rows, "eps": 1.0, **options})
    return Learner(model, config, get(objective, **(of or {})), max_steps=9)


@pytest.mark.parametrize("objective", ["tis", "grpo", "decoupled-ppo", "tic-grpo"])
def test_where_only_tokens_and_trajectories_count_rows_of_turns_change_nothing(model: Path, objective: str) -> None:
    """Token means, and ratios over the trajectory: the same update as from whole trajectories, but for rounding: a
    row's width changes the order of sums, and the model's norms are float32."""
    after = []
    for rows in ("trajectory", "turn"):
        config = LearnerConfig(dtype="float64", warmup_steps=0, lr=1e-2, rows=rows, eps=1.0)  # type: ignore[arg-type]
        one = Learner(model, config, get(objective, aggregation="token-mean"), max_steps=9)
        result = one.step(pack(talks()))
        after.append((result.ratio, {n: w.clone() for n, w in one.weights().items()}))
    np.testing.assert_allclose(after[0][0], after[1][0], rtol=1e-6)
    before = learner(model, "tis", "turn").weights()
    for name, w in after[0][1].items():
        torch.testing.assert_close(after[1][1][name], w, rtol=0, atol=1e-9)
    assert max(float((w - before[name]).abs().max()) for name, w in after[0][1].items()) > 1e-5


def test_the_normalisers_see_the_turns(model: Path) -> None:
    """AsyncWebRL: |tau| is the number of turns, k divides every step alike, advantages are equal per trajectory."""
    trajectories = talks()
    batch = TokenBatch.from_columns(by_turn(pack(trajectories)).columns, 0, torch.float64)
    steps = [2 + i % 4 for i in range(6)]
    assert batch.rows == sum(steps)
    a = get("asyncwebrl").advantages(batch)
    whole = get("asyncwebrl").advantages(TokenBatch.from_columns(pack(trajectories), 0, torch.float64))
    for i in range(6):
        (rows,) = torch.where(batch.trajectory == i)  # type: ignore[call-overload]
        assert len(rows) == steps[i]
        assert set(a[rows][batch.mask[rows]].tolist()) == {float(whole[i].abs().max() * (1 if i % 2 else -1))}
    columns = pack(trajectories)
    for normaliser, expected in (("const", [1 / 10] * 6), ("length", [1 / n for n in steps])):
        one = learner(model, "asyncwebrl", "turn", {"normaliser": normaliser})
        base: Any = type(one.objective).__mro__[1]
        per_step: list[Any] = []
        loss = base.token_loss

        def seen(self: Any, batch: TokenBatch, logp: Any, a: Any, kept: Any = per_step, loss: Any = loss) -> Any:
            kept.append((batch.trajectory, a))
            return loss(self, batch, logp, a)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "token_loss", seen)
            one.step(columns)
        ((ids, a),) = per_step
        for i in range(6):
            got = a[ids == i].abs().amax(1)
            assert got.tolist() == pytest.approx([float(whole[i].abs().max()) * expected[i]] * steps[i])


@pytest.mark.parametrize("objective", ["asyncwebrl", "tic-grpo", "gmc-grpo"])
def test_micro_batches_keep_a_trajectory_whole_and_change_nothing(model: Path, objective: str) -> None:
    results = []
    for budget in (10_000, 30, 1):
        one = learner(model, objective, "turn", micro_batch_tokens=budget, minibatches=2)
        result = one.step(pack(talks()))
        results.append((result.metrics, {n: w.clone() for n, w in one.weights().items()}))
    for metrics, weights in results[1:]:
        assert metrics == pytest.approx(results[0][0], rel=1e-10, abs=1e-12)
        for name, w in results[0][1].items():
            torch.testing.assert_close(weights[name], w, rtol=0, atol=1e-12)


@dataclass
class Half:
    """Keeps half of the tokens."""

    def keep(self, tokens: int, turns: int) -> slice:
        return slice(tokens // 2)


def test_what_a_row_of_one_turn_cannot_tell_is_refused() -> None:
    turn = "learner.rows=turn"
    with pytest.raises(ConfigError, match="would end with each turn"):
        check(configure(turn, "objective.name=ppo", "learner.critic.kind=head"))
    with pytest.raises(ConfigError, match="would end with each turn"):
        check(configure(turn, 'objective={name="tis", baseline="none"}'))
    with pytest.raises(ConfigError, match="complete trajectories only"):
        check(configure(turn, "objective.name=klpo"))
    with pytest.raises(ConfigError, match=r"control\.loss_mask"):
        check(configure(turn, "objective.name=asyncwebrl", f"control.loss_mask.name={__name__}:Half"))
    check(configure(turn, "objective.name=asyncwebrl"))


@dataclass
class Talkative(ToolAgent):
    """The tool environment, with a reward for any answer; a random model calls its tool often enough."""

    async def _score(self, client: Client, task: Task, text: str) -> Score:
        return Score(dense_reward(self.tokenizer.encode(text)))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stretto.envs.arithmetic.Arithmetic.alphabet", ToolAgent.alphabet)
        return runs.build_model(tmp_path_factory.mktemp("agent"))


def test_the_tool_environment_trains_by_turns(agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[list[float]] = []
    make = TokenBatch.from_columns

    def watched(columns: Any, *more: Any) -> TokenBatch:
        batch = make(columns, *more)
        assert batch.trajectory is not None
        steps.append(torch.unique(batch.trajectory, return_counts=True)[1].tolist())
        return batch

    monkeypatch.setattr(TokenBatch, "from_columns", staticmethod(watched))
    _, events = rehearse(
        tmp_path / "run", agent, f"env.name={__name__}:Talkative", "env.digits=1", "objective.name=asyncwebrl",
        "learner.rows=turn", "learner.minibatches=2", "max_steps=5", "lag_bound=2", "group_size=4",
        "sampling.max_new_tokens=6", "engine.max_model_len=48", "logging.rollouts_per_step=2",
    )  # fmt: skip
    assert_clean(events)
    assert max(map(max, steps)) > 2, "some trajectories have several turns"
    done = {e["traj"]: e for e in of(events, "TrajDone")}
    for start, end, counts in zip(of(events, "StepStart"), of(events, "StepEnd"), steps, strict=True):
        assert end["metrics"]["tokens/trained"] == start["tokens"]
        assert counts == [done[id]["turns"] for id in sorted(start["traj"])]
        assert end["metrics"]["trajectory/steps/mean"] == pytest.approx(np.dot(counts, counts) / sum(counts))
    assert list((tmp_path / "run/rollouts").iterdir()), "samples are of whole trajectories"
