"""GMC-GRPO broken: no cap, TIC-GRPO's in its place, another cap, no groups, the sign."""

from __future__ import annotations

from mutant import Mutant

METHOD, REGIONS = "objectives/gmc_grpo.py", "objectives/regions.py"

MUTANTS = [
    Mutant("no cap", "gmc-grpo", REGIONS, "return scale.clamp(max=0.0)[group]",
           "return scale.clamp(min=0.0, max=0.0)[group]"),
    Mutant("TIC-GRPO's cap in its place", "gmc-grpo", METHOD, 'if self.variant == "gmc":\n            scale',
           'if self.variant == "none":\n            scale'),
    Mutant("a cap of G, not G (1 + eps)", "gmc-grpo", REGIONS, "(size * (1 + eps)).log()", "size.log()"),
    Mutant("the mass of all groups together", "gmc-grpo", METHOD, "group_mass_scale(total, group, self.eps)",
           "group_mass_scale(total, 0 * group, self.eps)"),
    Mutant("the sign of the loss", "gmc-grpo", METHOD, "return -(weight * advantages", "return (weight * advantages"),
]  # fmt: skip
