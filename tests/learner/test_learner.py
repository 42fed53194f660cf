"""The learner: versions, invariance to micro-batches, skipped steps, critic, checkpoints."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stretto.config.learner import Critic, LearnerConfig, Lora
from stretto.data.batch import TokenBatch
from stretto.data.schema import Columns
from stretto.kernel.errors import CheckpointError, ConfigError, WeightsError
from stretto.learner import scores
from stretto.learner.learner import Learner
from stretto.learner.minibatches import minibatch_rows
from stretto.learner.schedule import learning_rate, rate_change
from stretto.learner.whole_batch import train_batch
from stretto.models.prefix import PolicyStates
from stretto.objectives import get

Make = Callable[..., Columns]


def learner(model_dir: Path, objective: str = "tis", *, seed: int = 0, **options: Any) -> Learner:
    config = LearnerConfig(**{"dtype": "float64", "warmup_steps": 0, "lr": 1e-2, **options})
    return Learner(model_dir, config, get(objective), seed=seed, max_steps=10)


def weights(of: Learner) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in of.weights().items()}


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("reinforce", {}),
    ("grpo", {"epochs": 2, "minibatches": 2}),
    ("decoupled-ppo", {}),
    ("decoupled-ppo", {"epochs": 2}),
    ("tis", {"lora": Lora(rank=2)}),
    ("mis", {}),
    ("ppo", {"critic": Critic(kind="head")}),
    ("ppo", {"critic": Critic(kind="network"), "minibatches": 2}),
]


@pytest.mark.parametrize(("objective", "options"), KINDS)
def test_the_split_into_micro_batches_changes_nothing(
    model_dir: Path, make_columns: Make, objective: str, options: dict[str, Any]
) -> None:
    """F4: loss, gradient norm and weights, in float64 to 1e-12 (gradients; AdamW is run with a large eps)."""
    results = []
    for budget in (10_000, 40, 1):
        one = learner(model_dir, objective, micro_batch_tokens=budget, eps=1.0, **options)
        result = one.step(make_columns(truncated=True))
        results.append((result.metrics, weights(one)))
    for metrics, after in results[1:]:
        assert metrics == pytest.approx(results[0][0], rel=1e-11, abs=1e-12)
        assert distance(after, results[0][1]) < 1e-12


@pytest.mark.parametrize(("objective", "options"), KINDS)
def test_float64_steps_are_bit_reproducible(
    model_dir: Path, make_columns: Make, objective: str, options: dict[str, Any]
) -> None:
    runs = []
    for _ in range(2):
        one = learner(model_dir, objective, micro_batch_tokens=60, **options)
        metrics = [one.step(make_columns(seed=s, version=s)).metrics for s in range(2)]
        runs.append((metrics, weights(one)))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(runs[0][1][n], runs[1][1][n]) for n in runs[0][1])


def test_the_log_probabilities_are_the_models(model_dir: Path, make_columns: Make) -> None:
    """Against a plain forward pass of Transformers, row by row, tempered."""
    one = Learner(model_dir, LearnerConfig(dtype="float64"), get("tis"), temperature=0.7)
    batch = TokenBatch.from_columns(make_columns(), 0, torch.float64)
    with torch.no_grad():
        scores = one.scorer.scores(batch, values=False)
        entropies = []
        assert batch.tokens is not None
        assert batch.length is not None
        for row in range(batch.rows):
            n = int(batch.length[row])
            logq = torch.log_softmax(one.scorer.model(batch.tokens[row : row + 1, :n]).logits[0] / 0.7, -1)
            for t in range(n):
                if batch.mask[row, t]:
                    assert float(scores.logp[row, t]) == pytest.approx(
                        float(logq[t - 1, batch.tokens[row, t]]), abs=1e-12
                    )
                    entropies.append(float(-(logq[t - 1].exp() * logq[t - 1]).sum()))
    assert scores.entropy.tolist() == pytest.approx(entropies, abs=1e-12)
    assert bool((scores.logp[~batch.mask] == 0).all())


def test_a_step_follows_the_gradient_of_a_hand_written_loop(model_dir: Path, make_columns: Make) -> None:
    """REINFORCE against plain Transformers, autograd and AdamW; weights to 1e-12."""
    one = learner(model_dir, "reinforce", max_grad_norm=0.5, weight_decay=0.1, eps=1e-2)
    columns = make_columns()
    plain = copy.deepcopy(one.scorer.model)
    matrices = [p for p in plain.parameters() if p.ndim > 1]
    vectors = [p for p in plain.parameters() if p.ndim == 1]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-2,
    )  # fmt: skip
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    assert batch.tokens is not None
    assert batch.length is not None
    rewards = torch.from_numpy(columns["reward"])
    a = rewards - rewards.view(4, 4).mean(1).repeat_interleave(4)
    loss = torch.zeros((), dtype=torch.float64)
    for row in range(batch.rows):
        n = int(batch.length[row])
        logq = torch.log_softmax(plain(batch.tokens[row : row + 1, :n]).logits[0, :-1], -1)
        picked = logq.gather(1, batch.tokens[row, 1:n, None])[:, 0]
        loss = loss - a[row] * picked[batch.mask[row, 1:n]].sum() / batch.mask.sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
    adam.step()
    result = one.step(columns)
    assert result.metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-12)
    assert result.metrics["grad_norm"] == pytest.approx(float(norm), abs=1e-10)
    assert result.metrics["grad_norm"] > 0.5  # clipping took part
    assert distance(one.weights(), {n: p.detach() for n, p in plain.named_parameters()}) < 1e-12


def test_on_policy_tokens_have_ratio_one(model_dir: Path, make_columns: Make) -> None:
    one = learner(model_dir, "grpo")
    columns = make_columns()
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    with torch.no_grad():
        logp = one.scorer.scores(batch, values=False).logp
    columns["logp_behavior"] = np.concatenate([logp[i, :n].numpy() for i, n in enumerate(columns["length"])])
    metrics = one.step(columns).metrics
    assert metrics["ratio/mean"] == metrics["ratio/max"] == metrics["ess"] == 1.0
    assert metrics["ratio/std"] == metrics["off_policy/kl"] == metrics["ppo/clip_fraction"] == 0.0
    assert metrics["off_policy/distance"] == metrics["off_policy/inner_steps"] == 0.0


def test_recomputed_proximal_is_the_same_with_one_inner_step_or_a_forward_of_its_own(
    model_dir: Path, make_columns: Make
) -> None:
    one = learner(model_dir, "decoupled-ppo")
    batch = TokenBatch.from_columns(make_columns(), 0, torch.float64)
    other = learner(model_dir, "decoupled-ppo")
    train_batch(one, batch)
    train_batch(other, batch.replace(logp_proximal=other._preparation.logp(batch)))
    assert distance(one.weights(), other.weights()) == 0.0


def poisoned(make_columns: Make) -> Columns:
    """Finite where intake looks, but the rewards of trajectories 5 and 6 overflow the gradient."""
    columns = make_columns()
    columns["rewards"] = columns["rewards"].copy()
    last = int(columns["length"][:6].sum()) - 1
    columns["rewards"][last] = 1e308
    columns["rewards"][last + int(columns["length"][6])] = -1e308
    return columns


@pytest.mark.parametrize("options", [{}, {"minibatches": 2}, {"epochs": 2, "minibatches": 2}])
def test_a_non_finite_gradient_leaves_everything_as_it_was(
    model_dir: Path, make_columns: Make, options: dict[str, Any]
) -> None:
    """E2. Mini-batches before the bad one are undone too."""
    one, twin = learner(model_dir, "reinforce", **options), learner(model_dir, "reinforce", **options)
    for each in (one, twin):
        each.step(make_columns(seed=3))
    before = weights(one)
    result = one.step(poisoned(make_columns))
    assert result.skipped
    assert result.version == one.version == 1
    assert result.reason is not None
    assert "weight" in result.reason
    assert "the largest advantage is" in result.reason
    assert result.reason.endswith(("trajectory 5", "trajectory 6"))
    assert distance(one.weights(), before) == 0.0
    after = [each.step(make_columns(seed=4)) for each in (one, twin)]
    assert after[0].metrics == after[1].metrics
    assert distance(one.weights(), twin.weights()) == 0.0


def test_too_many_skipped_steps_end_the_run(model_dir: Path, make_columns: Make) -> None:
    bad = poisoned(make_columns)
    patient = learner(model_dir, "reinforce", max_skipped=2)
    assert patient.step(bad).skipped
    with pytest.raises(WeightsError, match="2 step"):
        patient.step(bad)
    with pytest.raises(WeightsError, match="non-finite gradient"):
        learner(model_dir, "reinforce", on_nonfinite="stop").step(bad)


def test_a_non_finite_behaviour_log_probability_takes_only_its_token_out(model_dir: Path, make_columns: Make) -> None:
    """E7: the same as if that token were masked, and counted."""
    columns, masked = make_columns(), make_columns()
    at = int(np.flatnonzero(columns["mask"])[7])
    columns["logp_behavior"][at] = math.nan
    masked["mask"][at] = False
    masked["rewards"], columns["rewards"] = masked["rewards"].copy(), columns["rewards"].copy()
    one, other = learner(model_dir), learner(model_dir)
    result = one.step(columns)
    other.step(masked)
    assert not result.skipped
    assert result.metrics["intake/nonfinite_tokens"] == 1
    assert distance(one.weights(), other.weights()) == 0.0


def test_one_masked_token_with_a_huge_ratio_does_not_matter(model_dir: Path, make_columns: Make) -> None:
    """E1."""
    columns, dirty = make_columns(), make_columns()
    dirty["logp_behavior"] = np.where(dirty["mask"], dirty["logp_behavior"], -99.0)
    dirty["entropy"] = np.where(dirty["mask"], dirty["entropy"], math.nan)
    one, other = learner(model_dir), learner(model_dir)
    assert one.step(columns).metrics == other.step(dirty).metrics
    assert distance(one.weights(), other.weights()) == 0.0


def test_minibatches_hold_whole_groups_in_an_order_of_seed_and_version(make_columns: Make) -> None:
    batch = TokenBatch.from_columns(make_columns(groups=7, size=3), 0)
    assert batch.group is not None
    parts = minibatch_rows(batch, 3, seed=1, version=2, index=0)
    assert sorted(torch.cat(parts).tolist()) == list(range(21))
    for rows in parts:
        for group in batch.group[rows].unique():
            assert int((batch.group[rows] == group).sum()) == 3
    again = minibatch_rows(batch, 3, seed=1, version=2, index=0)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    others = [minibatch_rows(batch, 3, seed=1, version=v, index=0)[0].tolist() for v in range(8)]
    assert len({tuple(rows) for rows in others}) > 1


@pytest.mark.parametrize("kind", ["head", "network"])
def test_the_critic_learns_and_its_warm_up_leaves_the_policy_alone(
    model_dir: Path, make_columns: Make, kind: str
) -> None:
    critic = Critic(kind=kind, lr=3e-2, warmup_steps=25)  # type: ignore[arg-type]
    one = learner(model_dir, "ppo", critic=critic)
    before = weights(one)
    columns = make_columns()
    results = [one.step(columns) for _ in range(25)]
    assert distance(one.weights(), before) == 0.0
    assert results[0].metrics["critic/explained_variance"] == pytest.approx(0, abs=1e-9)  # values start at 0
    assert results[-1].metrics["critic/explained_variance"] > 0.3
    assert results[-1].version == 25
    one.step(columns)
    assert distance(one.weights(), before) > 0


def test_a_truncated_row_bootstraps_from_the_state_after_its_last_token(model_dir: Path, make_columns: Make) -> None:
    """F13 through the learner: the recorded bootstrap is the critic's value of the whole row."""
    one = learner(model_dir, "ppo", critic=Critic(kind="head"))
    assert one.scorer.critic is not None
    torch.nn.init.normal_(one.scorer.critic.linear.weight, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr]
    batch = one._preparation._recorded(TokenBatch.from_columns(make_columns(truncated=True), 0, torch.float64))
    assert batch.bootstrap is not None
    assert batch.tokens is not None
    assert batch.length is not None
    assert batch.values is not None
    for row in range(batch.rows):
        n = int(batch.length[row])
        with torch.no_grad():
            hidden = one.scorer.model.model(batch.tokens[row : row + 1, :n]).last_hidden_state[0]
            values = one.scorer.critic(hidden)
        assert float(batch.bootstrap[row]) == pytest.approx(float(values[-1]), abs=1e-12)
        for t in batch.mask[row].nonzero()[:, 0].tolist():
            assert float(batch.values[row, t]) == pytest.approx(float(values[t - 1]), abs=1e-12)
    assert one._preparation._recorded(TokenBatch.from_columns(make_columns(), 0, torch.float64)).bootstrap is None


def test_objective_and_critic_must_fit(model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="needs a critic"):
        learner(model_dir, "ppo")
    with pytest.raises(ConfigError, match="uses no values"):
        learner(model_dir, "tis", critic=Critic(kind="head"))


def test_a_schedule_that_a_resume_stretches_is_noticed_and_the_same_one_is_not() -> None:
    linear = LearnerConfig(lr=1e-3, warmup_steps=0, schedule="linear")
    last, then = rate_change(linear, 100, linear, 200, 100) or (0, 0)
    assert (last, then) == pytest.approx((1e-5, 5e-4))
    assert rate_change(linear, 100, linear, 100, 50) is None
    assert rate_change(linear, 100, linear, 200, 0) is None
    constant = linear.model_copy(update={"schedule": "constant"})
    assert rate_change(constant, 100, constant, 200, 100) is None
    assert rate_change(constant, 100, constant.model_copy(update={"lr": 5e-4}), 100, 50) == (1e-3, 5e-4)
    assert rate_change(linear, 100, constant, 200, 100) == pytest.approx((1e-5, 1e-3))


def test_learning_rate_schedules() -> None:
    config = LearnerConfig(lr=1.0, warmup_steps=4, schedule="linear", final_lr_share=0.2)
    rates = [learning_rate(config, v, 14) for v in (0, 3, 4, 9, 14, 99)]
    assert rates == pytest.approx([0.25, 1.0, 1.0, 0.6, 0.2, 0.2])
    cosine = config.model_copy(update={"schedule": "cosine"})
    assert learning_rate(cosine, 9, 14) == pytest.approx(0.6)
    assert learning_rate(cosine, 5, 14) > learning_rate(config, 5, 14)
    assert learning_rate(config.model_copy(update={"schedule": "constant"}), 99, 14) == 1.0


@pytest.mark.parametrize(
    ("objective", "options"),
    [*KINDS, ("tis", {"lora": Lora(rank=2, dropout=0.3, noisy_ratio=True)}), ("tis", {"dtype": "float32"})],
)
def test_a_resumed_learner_goes_on_bit_for_bit(
    model_dir: Path, make_columns: Make, tmp_path: Path, objective: str, options: dict[str, Any]
) -> None:
    one = learner(model_dir, objective, **options)
    one.step(make_columns(seed=1))
    one.save(tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} == {".safetensors", ".json"}  # nothing that runs code
    other = learner(model_dir, objective, **options)
    other.load(tmp_path)
    assert other.version == 1
    assert one.step(make_columns(seed=2)) == other.step(make_columns(seed=2))
    assert distance(one.weights(), other.weights()) == 0.0


def test_a_damaged_or_foreign_checkpoint_is_refused(
    model_dir: Path, make_columns: Make, build_model: Callable[..., Path], tmp_path: Path
) -> None:
    one = learner(model_dir)
    one.step(make_columns())
    one.save(tmp_path / "state")
    with pytest.raises(CheckpointError, match="seed 0, this run has 1"):
        learner(model_dir, seed=1).load(tmp_path / "state")
    with pytest.raises(CheckpointError, match="another model"):
        learner(build_model(tmp_path / "wide", hidden=48)).load(tmp_path / "state")
    data = bytearray((tmp_path / "state" / "learner.safetensors").read_bytes())
    data[-5] ^= 1
    (tmp_path / "state" / "learner.safetensors").write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="corrupt"):
        learner(model_dir).load(tmp_path / "state")
    with pytest.raises(CheckpointError, match="can't be read"):
        learner(model_dir).load(tmp_path / "nowhere")


@pytest.mark.parametrize("rank", [0, 2])
def test_the_saved_model_loads_in_plain_transformers(
    model_dir: Path, make_columns: Make, tmp_path: Path, rank: int
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    one = learner(model_dir, lora=Lora(rank=rank))
    one.step(make_columns())
    one.save_model(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        ours = one.scorer.model(input_ids=ids).logits
        assert torch.allclose(plain(ids).logits, ours, atol=1e-10)
        original = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
        assert not torch.allclose(original(ids).logits, ours, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path)("12+3")["input_ids"] == [2, 3, 11, 4]
    for name, published in one.weights().items():
        assert torch.allclose(dict(plain.named_parameters())[name], published, atol=1e-12)
    if rank:
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(original, tmp_path / "adapter")
        with torch.no_grad():
            assert torch.allclose(adapted(input_ids=ids).logits, ours, atol=1e-10)


def test_lora_publishes_only_what_changed(model_dir: Path, make_columns: Make) -> None:
    """D14: the payload is the merged matrices, not the frozen base."""
    one = learner(model_dir, lora=Lora(rank=2, targets=["q_proj", "v_proj"]))
    first = weights(one)
    assert sorted(first) == [f"model.layers.{i}.self_attn.{m}_proj.weight" for i in range(2) for m in "qv"]
    one.step(make_columns())
    one.step(make_columns(seed=1))
    assert all(not torch.equal(first[name], t) for name, t in one.weights().items())
    with pytest.raises(ConfigError, match="targets"):
        learner(model_dir, lora=Lora(rank=2, targets=["nothing"]))


@pytest.mark.parametrize("rank", [0, 2])
def test_gradient_checkpointing_changes_nothing(model_dir: Path, make_columns: Make, rank: int) -> None:
    one = learner(model_dir, lora=Lora(rank=rank))
    other = learner(model_dir, lora=Lora(rank=rank), gradient_checkpointing=True)
    for each in (one, other):
        each.step(make_columns())
    assert distance(one.weights(), other.weights()) < 1e-12


def test_bf16_trains_close_to_float32(model_dir: Path, make_columns: Make) -> None:
    results = [learner(model_dir, dtype="float32", bf16=bf16).step(make_columns()).metrics for bf16 in (False, True)]
    assert results[0]["grad_norm"] != results[1]["grad_norm"]
    assert results[1]["grad_norm"] == pytest.approx(results[0]["grad_norm"], rel=0.1)
    assert results[1]["entropy"] == pytest.approx(results[0]["entropy"], rel=0.02)


def test_training_raises_the_reward_of_what_it_reinforces(model_dir: Path, make_columns: Make) -> None:
    """End to end: the log-probability of rewarded trajectories rises against that of the others."""
    one = learner(model_dir, "reinforce", lr=3e-3)
    columns = make_columns()
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    a = one.objective.advantages(batch)

    def score() -> float:
        with torch.no_grad():
            return float((a * one.scorer.scores(batch, values=False).logp).sum())

    before = score()
    for _ in range(5):
        assert not one.step(columns).skipped
    assert score() > before + 1


@pytest.mark.parametrize("critic", ["none", "head", "network"])
def test_sharing_prompts_changes_a_float32_step_by_rounding_only(
    monkeypatch: pytest.MonkeyPatch, model_dir: Path, make_columns: Make, critic: str
) -> None:
    options: dict[str, Any] = {"dtype": "float32", "critic": Critic(kind=critic), "eps": 1.0}  # type: ignore[arg-type]
    objective = "tis" if critic == "none" else "ppo"
    one = learner(model_dir, objective, **options)
    monkeypatch.setattr(scores, "PolicyStates", lambda trunk, **_: PolicyStates(trunk, llama_like=False, share=False))
    other = learner(model_dir, objective, **options)
    assert (one.scorer.way, other.scorer.way) == ("packed", "plain")
    results = [each.step(make_columns(size=8)).metrics for each in (one, other)]
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-5)
    assert distance(one.weights(), other.weights()) < 1e-6


def test_a_final_token_that_equals_the_padding_trains(model_dir: Path, make_columns: Make) -> None:
    """G1: masks come from lengths and roles, never from token values."""
    one = learner(model_dir)
    columns = make_columns()
    ends = np.cumsum(columns["length"]) - 1
    columns["tokens"] = columns["tokens"].copy()
    columns["tokens"][ends] = 0  # the id that rows are padded with
    batch = TokenBatch.from_columns(columns, 0, torch.float64)
    assert batch.length is not None
    with torch.no_grad():
        logp = one.scorer.scores(batch, values=False).logp
    rows = torch.arange(batch.rows)
    assert bool(batch.mask[rows, batch.length - 1].all())
    assert bool((logp[rows, batch.length - 1] < 0).all())
    assert int((logp != 0).sum()) == int(columns["mask"].sum())
