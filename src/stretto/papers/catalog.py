"""The 27 papers."""

from __future__ import annotations

from dataclasses import replace

from stretto.kernel.errors import ConfigError, did_you_mean
from stretto.papers.base import Paper
from stretto.papers.language_contests import CONTESTS

PAPERS: tuple[Paper, ...] = (
    Paper("copc", "COPC: Coupled Off-Policy Correction for Asynchronous LLM Reinforcement Learning", "2610.09597",
          "Actor and critic corrections multiply: the best threshold of one depends on the other's",
          "stretto.objectives.copc", "copc"),
    Paper("klpo", "On KL-Regularized Policy Optimization", "2610.08963",
          "Fitting the KL-regularised optimality condition on the sampler's own data needs no ratio, clip or critic",
          "stretto.objectives.klpo", "klpo"),
    Paper("gmc-grpo", "Asynchronous LLM Post-Training: Group-Mass Capping and Convergence Analysis", "2610.01896",
          "Rescaling a whole group has a bias that vanishes as groups grow; clipping each trajectory keeps its bias",
          "stretto.objectives.gmc_grpo", "gmc_grpo"),
    Paper("brace", "BRACE: Anchored Bellman-Residual Correction for Stale Critics in Asynchronous RL", "2609.09783",
          "Residuals corrected in a window, the realised return beyond it: the reward reaches every position",
          "stretto.objectives.brace", "brace"),
    Paper("entr", "Deconstructing Off-Policy Ratios: Entropy-Scaled Trust Regions for Asynchronous Reinforcement "
          "Learning", "2607.22186",
          "A log-ratio's natural scale grows with the local entropy: normalise by the behaviour entropy",
          "stretto.objectives.entr", "entr"),
    Paper("sat", "Stale but Stable: Staleness-Adaptive Trust Regions for Stabilizing Asynchronous Reinforcement "
          "Learning", "2607.18722",
          "Shrinking the outward clip endpoint for the batch's stale tail keeps lagged training stable",
          "stretto.objectives.sat", "sat"),
    Paper("sao", "Single-Rollout Asynchronous Optimization for Agentic Reinforcement Learning", "2607.07508",
          "One rollout a prompt with a good critic and a two-sided mask beats groups that wait",
          "stretto.objectives.sao", "sao"),
    Paper("rac", "Retroactive Advantage Correction: Closed-Form V-Trace Bias Correction for Delay-Aware RLHF",
          "2606.27580", "Feeding a late reward's residual back once removes its bias (47.9x less)",
          "stretto.objectives.rac", "rac"),
    Paper("asympo", "ASymPO: Asymmetric-Scale Policy Optimization for Asynchronous LLM Post-Training Without Behavior "
          "Information", "2606.03070",
          "Dividing each response's loss by its own NLL balances good and bad responses on stale data",
          "stretto.objectives.asympo", "asympo"),
    Paper("old-logits", "Missing Old Logits in Asynchronous Agentic RL: Semantic Mismatch and Repair Methods for "
          "Off-Policy Correction", "2605.12070",
          "Separating engine mismatch from staleness needs the trainer's logits at each token's own version",
          "stretto.learner.old_policy", "old_logits"),
    Paper("collapse", "Scaling Laws for Collapse in Asynchronous GRPO", "2607.01083",
          "The largest stable step size falls as 1/S; collapse comes after a fixed budget of step sizes",
          "stretto calibrate", "collapse"),
    Paper("asyncwebrl", "AsyncWebRL: Efficient Multi-Step RL for Visual Web Agents", "2606.05597",
          "A constant step normaliser pushes long failures harder than one over the length",
          "stretto.objectives.asyncwebrl", "asyncwebrl"),
    Paper("pace", "Where Does Staleness Accumulate? Pool Aware Effective Staleness Control for Asynchronous RL in LLM "
          "Post-Training", "2609.36830", "Reject by waiting in full, and by generation only where the policy has moved",
          "stretto.control.pace", "pace"),
    Paper("pearl", "PEARL: Adaptive Prefill-Decode Execution with Elasticity for Agentic Reinforcement Learning",
          "2609.35158", "Moving workers between prefill, decode and training follows the load",
          "stretto.control.pearl", "pearl"),
    Paper("tiderl", "TideRL: Boosting Agentic RL Goodput with Readiness-Aware Scheduling", "2608.10402",
          "Scheduling trajectories by readiness raises goodput", "stretto.control"),
    Paper("dora", "DORA: A Scalable Asynchronous Reinforcement Learning System for Language Model Training",
          "2604.26256", "Several weight versions alive at once keep generation busy within a staleness bound",
          "stretto.control"),
    Paper("asyncflow", "AsyncFlow: An Asynchronous Streaming RL Framework for Efficient LLM Post-Training",
          "2507.01663", "Streaming samples through a queue and deferring updates hides the bubbles", "stretto.pool",
          "asyncflow"),
    Paper("marlaas", "MARLaaS: Multi-Tenant Asynchronous Reinforcement Learning as a Service", "2605.08527",
          "Tenants that share engines and adapters use a cluster better", "stretto.control"),
    Paper("ebrl", "EBRL: Asynchronous Embodied RL by Multi-Grained Resource Management", "2609.27547",
          "Moving resources between simulation, inference and training speeds embodied RL", "stretto.control"),
    Paper("smoothrl", "SmoothRL: Online Reinforcement Learning During Asynchronous Execution", "2608.29768",
          "Learning through asynchronously executed action chunks keeps robots smooth", "stretto.robots"),
    Paper("closed-loop-ppo", "A Closed-Loop Non-Asymptotic Convergence Analysis of PPO with Learned Critics and "
          "Clipping", None, "PPO with a learned critic and clipping converges at a stated rate", "stretto.tabular",
          "closed_loop_ppo",
          ("ppo-rate", "ppo-delay", "ppo-horizon", "ppo-coupling")),
    Paper("async-td", "Sharp Statistical Rates for Asynchronous TD Learning with Markovian Data", None,
          "The last iterate of asynchronous TD attains the sharp rate", "stretto.tabular", "async_td",
          ("td-constants", "td-moments", "td-rate", "td-transient")),
    Paper("potential-games", "High-Probability Nash Regret for Decentralized Learning in Markov α-Potential Games: "
          "Episodic and Fully Online Asynchronous Algorithms with Applications to Markov Congestion Games", None,
          "Decentralised natural policy gradient has sublinear Nash regret", "stretto.games", "potential_games",
          ("npg-alpha", "npg-online", "npg-episodic", "npg-jobs")),
    Paper("lq-games", "Learning under Opponent Unawareness in Linear-Quadratic Stochastic Games", None,
          "Learners who are unaware of opponents still reach the Nash equilibrium", "stretto.games", "lq_games",
          ("cournot-nash", "cournot-rate", "cournot-welfare")),
    Paper("br-async-q", "Robust Asynchronous Q-Learning under Reward and State Corruption via Batching", None,
          "Batched robust means keep Q-learning's error linear in the corrupted share", "stretto.tabular", "br_async_q",
          ("brq",)),
    Paper("chmas", "CHMAS: A Coupled Hierarchical Framework for Multi-Agent Reinforcement Learning", None,
          "Coupling strategic and tactical learners divides foraging among agents", "stretto.games", "chmas",
          ("chmas-foraging", "chmas-rate")),
    Paper("async-pricing", "Failure Modes of Deep Multi-Agent RL in Asynchronous Pricing: Reproducible Triggers, Trace "
          "Diagnostics, and a Partial Fix", "2606.09884",
          "Asynchrony and latency change how learning sellers collude, and how critics diverge", "stretto.games",
          "async_pricing",
          ("pricing-tabular", "pricing-ddpg", "pricing-divergence")),
)  # fmt: skip

LANGUAGE: tuple[Paper, ...] = tuple(
    replace(paper, name=f"{paper.name}-language", claim="The method bears lags that break its baseline: training a "
            "language model", module="language", only=f"{paper.name}-language")
    for paper in PAPERS if paper.name in CONTESTS
)  # fmt: skip
"""For each paper with an objective: it trains a language model, beside its baselines."""
EXPERIMENTS: tuple[Paper, ...] = (*(paper for paper in PAPERS if paper.module), *LANGUAGE)
"""Whatever ``stretto reproduce`` can run; of some there are parts."""


def find(name: str) -> Paper:
    """The paper or experiment called ``name``, or the paper of which that is a part, with this part alone;
    ``ConfigError`` names the nearest."""
    for paper in (*PAPERS, *LANGUAGE):
        if paper.name == name:
            return paper
        if name in paper.parts:
            return replace(paper, name=name, only=name)
    known = [n for p in (*PAPERS, *LANGUAGE) for n in (p.name, *p.parts)]
    raise ConfigError(f"unknown paper {name!r}; {did_you_mean(name, known)}")
