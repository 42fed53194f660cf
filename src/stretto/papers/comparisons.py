"""Who competes with whom in the learning comparisons: each paper's method and the baselines that the paper names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.papers.base import Settings
from stretto.papers.learning import Arm, Learning, learn
from stretto.tabular.delay import Delays
from stretto.tabular.lagged.learning import PlanChanges
from stretto.tabular.lagged.world import WorldChanges


@dataclass(frozen=True)
class Contest:
    """``arms`` by label, the paper's own method first; ``claims``: (better, worse). ``lags``, ``world`` and ``plan``
    where they differ from those of ``stretto.papers.learning``."""

    arms: Mapping[str, Arm]
    claims: Sequence[tuple[str, str]]
    lags: Sequence[int] | None = None
    world: WorldChanges = field(default_factory=WorldChanges)
    plan: PlanChanges = field(default_factory=PlanChanges)


GRPO = Arm("grpo")
REINFORCE = Arm("reinforce", {"std": True})
"""GRPO's advantage without any ratio: uncorrected."""
CRITIC: PlanChanges = {"critic": "learned", "critic_lr": 0.2}
SINGLE: PlanChanges = {"prompts": 64, "group": 1}
ENGINE_NOISE, TAU = 0.005, 4.0
"""Probability noise of the engine; ENTR's unpublished threshold, set so that it masks 0.1 to 1 % of the
tokens (0.4 % at lag 8, 0.15 % at lag 32) [both inferred]."""
GSPO_CLIP: dict[str, object] = {"clip_low": 0.1, "clip_high": 0.1}
"""GSPO's 3e-4 is for means over thousands of tokens; sequences here have four [inferred]."""
LATE = 16
"""Steps after which the late part of a reward arrives."""

COMPARISONS: dict[str, Contest] = {
    "copc": Contest(
        {
            "COPC trace": Arm("copc", {"residual_mode": "trace"}, CRITIC),
            "COPC residual": Arm("copc", {"residual_mode": "residual"}, CRITIC),
            "PPO": Arm("ppo", {"gae_lambda": 1.0}, CRITIC),
            "decoupled PPO": Arm("decoupled-ppo", {"baseline": "gae", "std": False}, CRITIC),
        },
        [("COPC trace", "PPO"), ("COPC trace", "decoupled PPO"), ("COPC residual", "PPO"),
         ("COPC residual", "decoupled PPO")],
    ),
    "klpo": Contest(
        {
            "KLPO full": Arm("klpo", {"estimator": "full"}),
            "KLPO binary": Arm("klpo", {"estimator": "binary"}),
            "uncorrected": REINFORCE,
            "TIS": Arm("tis"),
            "decoupled PPO": Arm("decoupled-ppo"),
        },
        [("KLPO full", "uncorrected"), ("KLPO full", "TIS"), ("KLPO full", "decoupled PPO")],
    ),
    "gmc-grpo": Contest(
        {
            "GMC-GRPO": Arm("gmc-grpo"),
            "TIC truncate": Arm("tic-grpo", {"variant": "tic_truncate"}),
            "TIC zero": Arm("tic-grpo", {"variant": "tic_zero"}),
            "GRPO": GRPO,
            "uncorrected": REINFORCE,
        },
        [("GMC-GRPO", "TIC truncate"), ("GMC-GRPO", "TIC zero"), ("GMC-GRPO", "GRPO"), ("GMC-GRPO", "uncorrected")],
    ),
    "entr": Contest(
        {
            "ENTR": Arm("entr", {"tau": TAU}),
            "GRPO": Arm("grpo", {"clip_high": 0.28}),
            "IcePop": Arm("icepop"),
            "KPop": Arm("icepop", {"region": "bernoulli-kl"}),
        },
        [("ENTR", "GRPO"), ("ENTR", "IcePop"), ("ENTR", "KPop")],
        lags=(0, 8, 32),
        world={"engine_noise": ENGINE_NOISE},
    ),
    "sat": Contest(
        {
            "SAT": Arm("sat"),
            "SAT-GSPO": Arm("sat-gspo", GSPO_CLIP),
            "GRPO": GRPO,
            "GSPO": Arm("gspo", {"reference": "behavior", **GSPO_CLIP}),
            "DPPO": Arm("dppo"),
        },
        [("SAT", "GRPO"), ("SAT-GSPO", "GSPO"), ("SAT-GSPO", "GRPO"), ("SAT-GSPO", "DPPO")],
        lags=(0, 8, 32),
    ),
    "sao": Contest(
        {
            "SAO": Arm("sao", {}, {**SINGLE, **CRITIC}),
            "running mean": Arm("sao", {"alpha": None}, {**SINGLE, "critic": "running-mean"}),
            "groups, same mask": Arm("sao", {"baseline": "group", "std": True}),
            "PPO": Arm("ppo", {"gae_lambda": 1.0}, {**SINGLE, **CRITIC}),
        },
        [("SAO", "groups, same mask"), ("SAO", "running mean"), ("SAO", "PPO")],
    ),
    "rac": Contest(
        {
            "RAC": Arm("rac", {"std": False}, {"delays": Delays("constant", LATE)}),
            "drop the late part": Arm("rac", {"std": False}, {"reward": "fast"}),
            "wait for it": Arm("rac", {"std": False}, more_lag=LATE),
        },
        [("RAC", "drop the late part"), ("RAC", "wait for it")],
        lags=(1, 16),
        world={"success": None, "late": 0.5},
        plan={"refresh": "constant", "lr": 0.1},
    ),
}  # fmt: skip


def compare(paper: str, settings: Settings) -> Learning:
    """The comparison of ``paper``, run: at most a minute on one core, ten seconds under ``quick``."""
    contest = COMPARISONS[paper]
    return learn(contest.arms, contest.claims, settings, lags=contest.lags, world=contest.world, plan=contest.plan)
