"""KLPO broken: REINFORCE in its place, the sign of beta, no control, a column's own residual, omega upside down."""

from __future__ import annotations

from mutant import Mutant

METHOD = "objectives/klpo.py"

MUTANTS = [
    Mutant("REINFORCE in its place", "klpo", METHOD, "-(flat.a - self.beta * flat.ell) * score", "-flat.a * flat.logp"),
    Mutant("the sign of beta", "klpo", METHOD, "flat.a - self.beta * flat.ell", "flat.a + self.beta * flat.ell"),
    Mutant("the token route's control left out", "klpo", METHOD, "return flat.logp - control, flat.ell + k, None",
           "return flat.logp, flat.ell + k, None"),
    Mutant("a sample's own residual meets its score", "klpo", METHOD, "(d.sum(1, keepdim=True) - d) / (d.shape[1] - 1)",
           "d"),
    Mutant("omega upside down", "klpo", "objectives/klpo_estimators.py", "return log1mexp(q) - log1mexp(p)",
           "return log1mexp(p) - log1mexp(q)"),
]  # fmt: skip
