"""ENTR broken: a fixed threshold in its place, no mask, the mask on the wrong side, |log r| unsquared."""

from __future__ import annotations

from mutant import Mutant

REGIONS = "objectives/regions.py"
RULE = "d.detach().square() / (entropy.detach().clamp(min=0.0) + eps) <= tau"

MUTANTS = [
    Mutant("a fixed threshold in its place", "entr", REGIONS, RULE, "d.detach().square() / (1.0 + eps) <= tau"),
    Mutant("the mask left out", "entr", "objectives/entr.py", "torch.where(kept, loss, 0.0)", "loss"),
    Mutant("the mask on the wrong side", "entr", REGIONS, RULE, RULE.replace("<=", ">=")),
    Mutant("the log-ratio not squared", "entr", REGIONS, RULE, RULE.replace("square", "abs")),
]
