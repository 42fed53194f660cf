"""BR-Async-Q broken: other estimators in the place of its trimmed mean, other targets."""

from mutant import Mutant

ROBUST = "tabular/q/robust.py"
DROP = "drop = min(math.ceil(trim * n * (1 - 1e-12)), (n - 1) // 2)"

MUTANTS = [
    Mutant("the median for the trimmed mean", "brq", ROBUST, DROP, "drop = (n - 1) // 2 if trim > 0 else 0"),
    Mutant("the mean for the trimmed mean", "brq", ROBUST, DROP, "drop = 0"),
    Mutant(
        "only the lowest targets are trimmed", "brq", ROBUST, "return _mean(y, drop, n - drop)",
        "return _mean(y, drop, n)",
    ),
    Mutant(
        "the worst action's value in the target", "brq", "tabular/q/kernel.py", "best = max(best, q[s, a])",
        "best = min(best, q[s, a])",
    ),
]  # fmt: skip
