"""COPC broken: no correction of the advantages, one of the wrong token, no actor's ratio, no mask, the sign."""

from __future__ import annotations

from mutant import Mutant

METHOD, TIME = "objectives/copc.py", "objectives/temporal.py"
TRACE = "reverse_scan(following(omega, rows).mul_(gamma * gae_lambda), delta, rows)"

MUTANTS = [
    Mutant("the advantages not corrected", "copc", TIME, TRACE, "reverse_scan(gamma * gae_lambda, delta, rows)"),
    Mutant("the own token's ratio in the trace", "copc", TIME, TRACE,
           "reverse_scan(omega * (gamma * gae_lambda), delta, rows)"),
    Mutant("the actor's ratio left out", "copc", METHOD, "torch.where(kept, ratio(now), 0.0)", "kept.to(now.dtype)"),
    Mutant("the actor's mask left out", "copc", METHOD, "kept = inside(now, *self.keep)",
           "kept = inside(now, 0.0, math.inf)"),
    Mutant("the sign of the loss", "copc", METHOD, "return -(weight * advantages", "return (weight * advantages"),
]  # fmt: skip
