"""Old logits broken: recomputed in the exact route's place, no gate, a ratio to the engine, a wrong version."""

from __future__ import annotations

from mutant import Mutant

METHOD = "objectives/decoupled_ppo.py"
BANDIT, ROUTES = "tabular/old_logits/mismatched_bandit.py", "tabular/old_logits/scoring_routes.py"

MUTANTS = [
    Mutant("the exact route recomputes", "old-logits", BANDIT, "old = exact", "old = logp.detach()"),
    Mutant("the EWMA isn't kept up", "old-logits", BANDIT, "        ewma.update([weights])\n", "\n"),
    Mutant("no gate on the first factor", "old-logits", METHOD,
           "return torch.where(kept, x, 0.0), kept", "return x, torch.ones_like(kept)"),
    Mutant("the clip on the ratio to the engine", "old-logits", METHOD, "ratio(log_ratio(logp, reference, batch.mask))",
           "ratio(log_ratio(logp, behavior, batch.mask))"),
    Mutant("the replica scores with its version's successor", "old-logits", ROUTES,
           "work += _score_segment(rollout, start, weights)",
           "work += _score_segment(rollout, start, _weights(seed, version + 1))"),
]  # fmt: skip
