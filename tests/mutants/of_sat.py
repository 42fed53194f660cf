"""SAT broken: PPO in its place, the other end contracts, another kernel, every token gated, the sign."""

from __future__ import annotations

from mutant import Mutant

METHOD, REGIONS = "objectives/sat.py", "objectives/regions.py"

MUTANTS = [
    Mutant("PPO in its place", "sat", METHOD, "c = contraction(size, q, self.kernel, self.n)",
           "c = torch.ones_like(size)"),
    Mutant("the lower end contracts on the wrong side", "sat", METHOD, "torch.where(d.detach() < 0, c, 1.0)",
           "torch.where(d.detach() > 0, c, 1.0)"),
    Mutant("a steeper kernel", "sat", REGIONS, "excess, 0.0).pow(n)", "excess, 0.0).pow(2 * n)"),
    Mutant("every token gated", "sat", REGIONS, "(size > quantile) & (quantile > 0)", "(size > 0) & (quantile > 0)"),
    Mutant("the sign of the loss", "sat", METHOD, "return -surrogate, metrics", "return surrogate, metrics"),
]  # fmt: skip
