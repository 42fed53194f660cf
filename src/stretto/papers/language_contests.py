"""Who competes with whom when the papers' methods train a language model, and in which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Run:
    """One setting of all arms: the ``lag`` in versions and the learning ``rate``."""

    lag: int
    rate: float = 2e-3

    @property
    def label(self) -> str:
        """As rows and panels name it."""
        return f"lag {self.lag}, lr {self.rate:g}"


@dataclass(frozen=True)
class LanguageContest:
    """``arms``: label -> objective with options, as ``stretto compare --objectives`` takes it, the paper's method
    first. ``claims``: (better, worse). ``breaks``: the arm that should collapse at ``runs[0]``, None: nothing is asked.
    ``recipe`` with ``settings`` for all arms, ``own`` for one; ``more_lag``: steps beyond the run's lag, by arm;
    ``exact``: does every batch have exactly the lag (rows that come back late are older)?"""

    arms: Mapping[str, str]
    claims: Sequence[tuple[str, str]]
    runs: Sequence[Run] = (Run(8), Run(32), Run(32, 5e-4))
    breaks: str | None = "uncorrected"
    recipe: str = "stale"
    settings: Sequence[str] = ()
    own: Mapping[str, Sequence[str]] = field(default_factory=dict)
    more_lag: Mapping[str, int] = field(default_factory=dict)
    exact: bool = True


UNCORRECTED = "grpo[reference=proximal]"
"""What a trainer does that recomputes the old log-probabilities as its step starts: every ratio is 1."""
GATED = "decoupled-ppo[reference=old,correction=mask,floor=0.9,cap=1.1]"
"""The gate of the bandit's experiment, on the mismatch of engine and trainer."""
SINGLE = ("prompts_per_step=64", "group_size=1")
GSPO_CLIP = "clip_low=0.1,clip_high=0.1"
"""GSPO's 3e-4 is for means over thousands of tokens; responses here have five [inferred]."""
AGENT = ("learner.rows=turn", "prompts_per_step=8", "env.digits=1", "env.wait_median_s=0.01", "env.wait_max_s=0.1",
         "sft.hidden=48", "sft.heads=2", "sft.kv_heads=2", "sft.intermediate=96", "eval.tasks=50")  # fmt: skip
"""An agent as small as the model of ``stale``, whose tool answers within a step, so that the lag is exact."""
LATE, STEP_S = 32, 0.52
"""Optimizer steps that a late reward comes after, and the virtual seconds of one."""

TAU = 4.0
"""ENTR's unpublished threshold, as on the tree [inferred]. At these lags it masks 1 to 20 % of the tokens, far more
than the paper's 0.1 to 1 %."""

CONTESTS: dict[str, LanguageContest] = {
    "copc": LanguageContest(
        {"COPC": "copc[residual_mode=trace]", "PPO": "ppo[gae_lambda=1.0]", "uncorrected": UNCORRECTED},
        [("COPC", "PPO"), ("COPC", "uncorrected")],
    ),
    "klpo": LanguageContest(
        {"KLPO": "klpo[estimator=full]", "TIS": "tis", "uncorrected": UNCORRECTED},
        [("KLPO", "TIS"), ("KLPO", "uncorrected")],
    ),
    "gmc-grpo": LanguageContest(
        {"GMC-GRPO": "gmc-grpo", "TIC truncate": "tic-grpo[variant=tic_truncate]", "uncorrected": UNCORRECTED},
        [("GMC-GRPO", "TIC truncate"), ("GMC-GRPO", "uncorrected")],
    ),
    "brace": LanguageContest(
        {"BRACE": "brace", "PPO": "ppo", "V-trace": "vtrace", "uncorrected": UNCORRECTED},
        [("BRACE", "PPO"), ("BRACE", "V-trace"), ("BRACE", "uncorrected")],
    ),
    "entr": LanguageContest(
        {"ENTR": f"entr[tau={TAU}]", "GRPO": "grpo[clip_high=0.28]", "IcePop": "icepop", "uncorrected": UNCORRECTED},
        [("ENTR", "GRPO"), ("ENTR", "IcePop"), ("ENTR", "uncorrected")],
    ),
    "sat": LanguageContest(
        {"SAT": "sat", "SAT-GSPO": f"sat-gspo[{GSPO_CLIP}]", "GRPO": "grpo",
         "GSPO": f"gspo[reference=behavior,{GSPO_CLIP}]", "uncorrected": UNCORRECTED},
        [("SAT", "GRPO"), ("SAT-GSPO", "GSPO"), ("SAT", "uncorrected")],
    ),
    "sao": LanguageContest(
        {"SAO": "sao", "groups, same mask": "sao[baseline=group,std=true]", "uncorrected": UNCORRECTED},
        [("SAO", "groups, same mask"), ("SAO", "uncorrected")],
        own={"SAO": (*SINGLE, "learner.critic.updates=2")},
    ),
    "rac": LanguageContest(
        {"RAC": "rac", "drop the late part": "rac[alpha=0.0]", "wait for it": "rac[alpha=0.0]"},
        [("RAC", "drop the late part"), ("RAC", "wait for it")],
        runs=(Run(1), Run(1, 5e-4)),
        breaks=None,
        own={"RAC": ("env.slow_share=0.5", f"env.slow_delay_s={LATE * STEP_S}"),
             "drop the late part": ("env.slow_share=0.5", f"env.slow_delay_s={LATE * STEP_S}")},
        more_lag={"wait for it": LATE},
        exact=False,
    ),
    "asympo": LanguageContest(
        {"ASymPO": "asympo", "SPO": "spo", "uncorrected": UNCORRECTED},
        [("ASymPO", "SPO"), ("ASymPO", "uncorrected")],
    ),
    "old-logits": LanguageContest(
        {"old log-probabilities": GATED, "average": GATED, "recomputed": GATED, "uncorrected": UNCORRECTED},
        [("old log-probabilities", "recomputed"), ("average", "recomputed"), ("old log-probabilities", "uncorrected")],
        settings=("engine.dtype=bfloat16",),
        own={"old log-probabilities": ("learner.old_policy.route=snapshots",),
             "average": ("learner.old_policy.route=ewma",), "recomputed": ("learner.old_policy.route=recompute",)},
    ),
    "asyncwebrl": LanguageContest(
        {"constant": "asyncwebrl[normaliser=const]", "length": "asyncwebrl[normaliser=length]",
         "uncorrected": UNCORRECTED},
        [("constant", "length"), ("constant", "uncorrected")],
        runs=(Run(32, 5e-4), Run(8, 5e-4), Run(32, 1e-3)),
        recipe="tool-agent",
        settings=AGENT,
    ),
}  # fmt: skip
