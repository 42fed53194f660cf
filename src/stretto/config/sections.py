"""Sections of the configuration, one per part of the loop."""

from __future__ import annotations

import math
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from stretto.data.modes import InFlight


class Section(BaseModel):
    """Base: unknown keys are errors, values are checked on assignment, nothing is coerced from another unit."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, frozen=False, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        field = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {field, *get_args(field)}:
            raise ValueError(f"{str(value).lower()} is not a number")
        return value


class Component(BaseModel):
    """A named component; every other key is one of its options (checked against the component itself)."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="Built-in name or `module:Class`.")

    @model_validator(mode="after")
    def _numbers(self) -> Self:
        for key, value in self.options.items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{key} = nan is not a number")
        return self

    @property
    def options(self) -> dict[str, object]:
        """All keys but ``name``."""
        return dict(self.model_extra or {})


class Workers(Section):
    """Where engine and learner run."""

    kind: Literal["process", "inline"] = Field(
        "process", description="`process`: each in a process of its own (spawn). `inline`: in this process, in turn."
    )
    threads: int = Field(1, ge=1, description="Torch threads of each worker.")
    own_cores: bool = Field(
        False,
        description="The learner keeps `threads` cores to itself, the last ones it may use, so that nothing cools its "
        "caches. For one run per machine: two such runs would share the same core.",
    )
    on_engine_crash: Literal["stop", "restart"] = Field(
        "stop", description="A dead engine ends the run, or is restarted and its requests go on."
    )
    max_restarts: int = Field(3, ge=0, description="Restarts before a crash ends the run after all.")
    replace_failed: int = Field(
        2, ge=0, description="A failed trajectory is replaced inside its group, at most this often per member."
    )
    scoring_processes: int = Field(1, ge=1, le=256, description="Processes for reward functions and tools (killable).")


class Sampling(Section):
    """How the policy is sampled; the recorded log-probability is of the distribution after all of these, and the
    learner scores the same one. Under `top_p` or `top_k` each token carries which tokens were kept: vocabulary / 8
    bytes."""

    temperature: float = Field(1.0, ge=0, description="Softmax temperature; 0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; 1 is off.")
    top_k: int = Field(0, ge=0, description="Keep the k likeliest tokens; 0 is off.")
    max_new_tokens: int = Field(64, ge=1, description="Policy tokens per turn.")
    stop: list[str] = Field(default_factory=list, description="Extra stop tokens (as text of one token each).")

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: list[str]) -> list[str]:
        if "" in stop:
            raise ValueError("an empty string stops nothing; each is the text of one token")
        return stop


class EngineConfig(Section):
    """The engine: continuous batching over a causal LM."""

    kind: str = Field(
        "torch",
        description="`torch`: Stretto's own engine, or `module:Class`: a kind of your own (docs/engines.md).",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Options of a kind of your own, by name.")
    count: int = Field(1, ge=1, description="Engines.")
    max_num_seqs: int = Field(64, ge=1, description="Rows that decode together.")
    max_model_len: int = Field(512, ge=2, description="Tokens of one row, prompt included.")
    kept_tokens: int | None = Field(
        None,
        ge=0,
        description="Tokens whose cache stays between two turns of a trajectory, so that the next one prefills only "
        "what is new. None: as many as the rows hold; 0: none.",
    )
    dtype: Literal["float32", "float64", "bfloat16"] = Field("float32", description="Arithmetic of the engine.")
    decode_steps: int = Field(8, ge=1, description="Decode steps between two looks at the inbox.")
    forward: Literal["auto", "fast", "transformers"] = Field(
        "auto", description="`fast`: own kernels for Llama-like models; `transformers`: the model's own forward."
    )
    top_logprobs: int = Field(
        0,
        ge=0,
        description="Record the K likeliest ids and log-probabilities per position; 0: what the objective needs.",
    )
    sampled_logprobs: int = Field(
        0, ge=0, description="Record M independent samples per position; 0: what the objective needs."
    )


class Weights(Section):
    """How weights get from the learner to the engines."""

    transport: str = Field(
        "shared-memory",
        min_length=1,
        description="`shared-memory`: for engines on the learner's machine; `files`: for engines that share a file "
        "system with it, on which the run directory lies; or `module:Class`, a subclass of "
        "`stretto.weights.transport.Transport`.",
    )
    parts: Literal["merged", "adapter", "both"] = Field(
        "merged",
        description="What a learner with adapters (`learner.lora.rank` above 0) publishes: the matrices with the "
        "update merged in, the adapter by itself (A and B, in PEFT's format), or both. Each kind of engine says which "
        "it takes; the built-in one takes `merged`.",
    )
    staged_versions: int = Field(
        2,
        ge=2,
        le=1024,
        description="Versions that may be staged at once: the learner waits before it stages version v until no engine "
        "loads version v - staged_versions or an older one. More let it run ahead of an engine that loads slowly "
        "(`drain`), at the cost of the memory or the disk that they take.",
    )


class Control(Section):
    """The loop's decision points; each takes a built-in name or `module:Class`, with options beside `name`."""

    admission: Component = Field(default_factory=lambda: Component(name="demand"), description="May a group start?")
    version_pinning: Component = Field(
        default_factory=lambda: Component(name="latest"), description="Which version serves?"
    )
    router: Component = Field(default_factory=lambda: Component(name="least-loaded"), description="Which engine?")
    preemption: Component = Field(default_factory=lambda: Component(name="stay"), description="Who pauses, or moves?")
    pool: Component = Field(default_factory=lambda: Component(name="keep"), description="Reject ready groups?")
    filter: Component = Field(default_factory=lambda: Component(name="none"), description="Drop finished groups?")
    batch: Component = Field(default_factory=lambda: Component(name="demand"), description="Which groups train?")
    publish: Component = Field(default_factory=lambda: Component(name="every-step"), description="Load when?")
    in_flight: InFlight = Field(
        InFlight.KEEP,
        description="Running requests at a weight swap: keep their KV, recompute it, finish first, abort and "
        "go on later, or stay on their version.",
    )
    streaming: Component = Field(
        default_factory=lambda: Component(name="whole"), description="Stream or whole? Only `whole` works yet."
    )
    elastic: Component = Field(default_factory=lambda: Component(name="fixed"), description="Change roles?")
    quota: Component = Field(default_factory=lambda: Component(name="fixed"), description="Concurrency limits.")
    loss_mask: Component = Field(default_factory=lambda: Component(name="all"), description="Which tokens count?")


class Eval(Section):
    """Evaluation; each carries the one version it ran on."""

    every: int = Field(0, ge=0, description="Steps between evaluations; 0: only first and last.")
    tasks: int = Field(200, ge=0, description="Held-out tasks; 0 turns evaluation off.")
    temperature: float = Field(0.0, ge=0, description="0: greedy.")
    at_start: bool = Field(True, description="Evaluate version 0.")
    success_threshold: float = Field(1.0, allow_inf_nan=False, description="Accuracy is the share of held-out tasks "
        "whose reward reaches this; 1: the whole reward of the built-in verifiers. Set it where rewards are partial, "
        "or weighted and their best isn't 1; the mean reward (eval/mean) doesn't depend on it.")  # fmt: skip
    weight_drift: bool = Field(
        False,
        description="Each evaluation also asks every engine how far its weights are from its first ones "
        "(metric weights/distance_to_initial, the least of the engines); costs a copy of the weights in each engine.",
    )


class SFT(Section):
    """The tiny model and its supervised start on worked answers; cached by all of these and the environment."""

    hidden: int = Field(128, ge=8, description="Hidden size.")
    layers: int = Field(2, ge=1, description="Layers.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    kv_heads: int = Field(4, ge=1, description="Key-value heads.")
    intermediate: int = Field(512, ge=8, description="Width of the feed-forward part.")
    accuracy: float = Field(0.35, ge=0, le=1, description="Stop at this sampled accuracy; 0: random weights.")
    max_steps: int = Field(4000, ge=1, description="Give up after so many supervised steps (an error).")
    batch: int = Field(256, ge=1, description="Examples per supervised step.")
    lr: float = Field(2e-3, gt=0, description="Learning rate.")


class Logging(Section):
    """Files and trackers. ``metrics.jsonl``, the event log and TensorBoard are always written."""

    console: Literal["auto", "rich", "plain", "off"] = Field("auto", description="`auto`: Rich on a terminal.")
    wandb: bool = Field(False, description="Also log to Weights & Biases (must be installed).")
    wandb_project: str = Field("stretto", description="Its project.")
    rollouts_per_step: int = Field(4, ge=0, description="Trajectories written in full to rollouts/ per step.")
    events: Literal["gzip", "plain"] = Field(
        "gzip",
        description="The event log: `gzip` writes events.jsonl.gz, a seventh to a thirteenth of the size "
        "(`stretto log RUN` and zcat print it), `plain` writes events.jsonl.",
    )
    report: bool = Field(True, description="Write report.html at the end.")
