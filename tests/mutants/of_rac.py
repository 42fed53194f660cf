"""RAC broken: the late reward dropped, no age weight, the fast reward twice, ratios without a bound, the sign."""

from __future__ import annotations

from mutant import Mutant

METHOD, LATE = "objectives/rac.py", "objectives/retroactive.py"

MUTANTS = [
    Mutant("the late reward dropped", "rac", METHOD, "torch.where(returned, 0.0, rho * advantages) + slow",
           "torch.where(returned, 0.0, rho * advantages)"),
    Mutant("no age weight", "rac", LATE, "return (-delay / tau).exp()", "return (-0 * delay / tau).exp()"),
    Mutant("the fast reward used twice", "rac", METHOD, "torch.where(returned, 0.0, rho * advantages) + slow",
           "rho * advantages + slow"),
    Mutant("no bound on the ratio", "rac", METHOD, ".clamp(max=math.log1p(self.is_clip))", ".clamp(max=math.inf)"),
    Mutant("the sign of the correction", "rac", METHOD, "slow - expected, 0.0)", "expected - slow, 0.0)"),
]  # fmt: skip
