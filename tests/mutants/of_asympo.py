"""ASymPO broken: the naive loss in its place, one scale for the batch, a floor that binds, the sign."""

from __future__ import annotations

from mutant import Mutant

METHOD, SCALE = "objectives/asympo.py", "objectives/aggregate.py"
LOSS = "scale_normalised(-advantages * torch.where(batch.mask, logp, 0.0), scale, self.floor)"

MUTANTS = [
    Mutant("the naive loss in its place", "asympo", METHOD, LOSS, "-advantages * torch.where(batch.mask, logp, 0.0)"),
    Mutant("one scale for all rows", "asympo", METHOD, LOSS, LOSS.replace("scale,", "0 * scale + scale.mean(),")),
    Mutant("a floor that binds", "asympo", SCALE, "scale.detach().clamp(min=floor)", "scale.detach().clamp(min=1.0)"),
    Mutant("the sign of the loss", "asympo", METHOD, LOSS, LOSS.replace("-advantages", "advantages")),
]
