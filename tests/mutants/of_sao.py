"""SAO broken: its mask on one side only, a clip in its place, the sign; a law of variance that forgets the groups."""

from __future__ import annotations

from mutant import Mutant

SAO = "objectives/sao.py"
RULE = "torch.where((r > 1 - low) & (r < 1 + high), r, 0.0)"

MUTANTS = [
    Mutant("no lower side of the mask", "sao", SAO, RULE, "torch.where(r < 1 + high, r, 0.0)"),
    Mutant("no upper side of the mask", "sao", SAO, RULE, "torch.where(r > 1 - low, r, 0.0)"),
    Mutant("ratios cut at the interval's ends instead of dropped", "sao", SAO, RULE, "r.clamp(1 - low, 1 + high)"),
    Mutant("the sign of the loss", "sao", SAO, "return -(weight * advantages", "return (weight * advantages"),
    Mutant("single rollouts counted as groups in the law", "sao", "tabular/sao/context_bandit.py",
           "group * mean.var(0)", "8 * mean.var(0)"),
]  # fmt: skip
