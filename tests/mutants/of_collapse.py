"""The scaling laws of collapse broken: no staleness, another loss, the gradient's sign."""

from mutant import Mutant

FILE = "tabular/collapse/collapse_bandit.py"

MUTANTS = [
    Mutant("samples are fresh at every step", "collapse", FILE, "if step % sync_interval == 0:", "if step >= 0:"),
    Mutant(
        "importance weights in the place of no ratio", "collapse", FILE, "if rule == 0:\n        return 1.0",
        "if rule == 0:\n        return ratio",
    ),
    Mutant("the update descends", "collapse", FILE, "weights[i, a] += rate * g", "weights[i, a] -= rate * g"),
]  # fmt: skip
