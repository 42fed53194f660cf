"""The sections of the learner: adapters, critic, old log-probabilities, optimizer."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from stretto.config.sections import Section


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Lora(Section):
    """Low-rank adapters in PEFT format."""

    rank: int = Field(0, ge=0, description="0: full fine-tuning.")
    alpha: float = Field(32.0, gt=0, description="Scale; the update is alpha / rank * B A.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on the adapter's input; needs `noisy_ratio`.")
    noisy_ratio: bool = Field(
        False, description="Train with dropout although no ratio is then 1, at staleness 0 neither: engines have none."
    )
    targets: Annotated[list[str], BeforeValidator(_listed)] = Field(
        default_factory=lambda: ["all-linear"],
        description="Names of the modules that get an adapter (their last parts are enough), or `all-linear`: every "
        "linear layer but the head. Of a model with tied embeddings, one on embedding or head acts in both places.",
    )

    @field_validator("targets")
    @classmethod
    def _alone(cls, targets: list[str]) -> list[str]:
        if "all-linear" in targets and len(targets) > 1:
            raise ValueError("'all-linear' stands alone: it means every linear layer but the head")
        return targets

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if self.rank and self.dropout and not self.noisy_ratio:
            raise ValueError(
                f"dropout = {self.dropout:g}: the learner would score another policy than the one that engines sample "
                "from, so that every ratio is off, at lag_bound = 0, too. Leave it out, or say that it is meant: "
                "learner.lora.noisy_ratio = true"
            )
        return self


class Critic(Section):
    """The value function, for objectives that need one."""

    kind: Literal["none", "head", "network"] = Field(
        "none", description="`head`: a linear head on the policy's hidden state; `network`: a model of its own."
    )
    lr: float = Field(1e-3, gt=0, description="Learning rate of the critic's own AdamW.")
    coefficient: float = Field(1.0, gt=0, description="Weight of the critic loss on shared parameters.")
    warmup_steps: int = Field(
        0,
        ge=0,
        description="Value pre-training: first steps that train the critic alone. The policy's own warm-up and "
        "schedule start after them.",
    )
    updates: int = Field(
        1, ge=1, description="K: critic updates per actor update, each with a gradient of its own on the same targets."
    )
    frozen: Literal["none", "attention"] = Field(
        "none", description="`attention`: the attention weights of a `network` critic keep their initial values."
    )


class OldPolicy(Section):
    """Who fills in the trainer's log-probabilities at the version that sampled, for objectives that use them."""

    route: Literal["recompute", "snapshots", "old_model", "interrupt", "ewma", "proxy"] | None = Field(
        None,
        description="Exact: `snapshots` (weights of the last `lag_bound` versions), `old_model` (a replica scores each "
        "version when it ends), `interrupt` (rollouts stop at each update and are scored first). Not: `recompute` (the "
        "policy at the start of the step), `ewma` (average of policies), `proxy` (between behaviour and current). "
        "None: `snapshots`; for `ppo-ewma` `ewma`.",
    )
    ewma_beta: float | None = Field(
        None, ge=0, le=1, description="Decay of `ewma`; None: its lag is the mean token staleness of the latest batch."
    )
    proxy_alpha: float | None = Field(
        None, ge=0, le=1, description="Share of the current policy in `proxy`; None: by staleness, as A-3PO."
    )


def _two(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) != 2:
        raise ValueError("expected two numbers, for instance [0.9, 0.95]")
    return value


Beta = Annotated[float, Field(ge=0, lt=1)]


class LearnerConfig(Section):
    """The learner: AdamW, one optimizer step per mini-batch."""

    lr: float = Field(2e-4, gt=0, description="Peak learning rate.")
    betas: Annotated[tuple[Beta, Beta], BeforeValidator(_two)] = Field((0.9, 0.95), description="AdamW moments.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay (matrices only).")
    warmup_steps: int = Field(10, ge=0, description="Linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="After the warm-up.")
    final_lr_share: float = Field(0.0, ge=0, le=1, description="lr at max_steps as a share of the peak.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient clipping by global norm.")
    rows: Literal["trajectory", "turn"] = Field(
        "trajectory",
        description="A row of a batch: a whole trajectory, or one turn (an unbroken run of policy tokens) with all "
        "before it as context. Rows of one trajectory stay together in mini- and micro-batches.",
    )
    epochs: int = Field(1, ge=1, description="Passes over each batch.")
    minibatches: int = Field(1, ge=1, description="Optimizer steps per pass; whole groups each.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Padded tokens per forward pass; no effect on results.")
    dtype: Literal["float32", "float64"] = Field("float32", description="Parameters and optimizer.")
    bf16: bool = Field(False, description="Forward and backward in bfloat16, parameters in float32.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass.")
    lora: Lora = Field(default_factory=Lora, description="Adapters instead of full fine-tuning.")
    critic: Critic = Field(default_factory=Critic, description="Value function.")
    old_policy: OldPolicy = Field(default_factory=OldPolicy, description="Old log-probabilities.")
    on_nonfinite: Literal["skip", "stop"] = Field(
        "skip", description="A non-finite gradient leaves the weights alone: count and go on, or end the run."
    )
    max_skipped: int = Field(5, ge=1, description="Consecutive skipped steps that end the run.")
