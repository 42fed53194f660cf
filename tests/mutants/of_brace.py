"""BRACE broken: Monte Carlo or V-trace in its place, no traces, no tail, ratios upside down, no whitening."""

from __future__ import annotations

from mutant import Mutant

TIME, CORRECTED = "objectives/temporal.py", "objectives/corrected_values.py"
SCAN = "anchored_scan(steps.delta, w, steps.rows, k, rho_bar, c_bar, gamma, gae_lambda)"

MUTANTS = [
    Mutant("Monte Carlo in its place", "brace", TIME, SCAN, SCAN.replace(" k,", " 0,")),
    Mutant("a window without an end", "brace", TIME, SCAN, SCAN.replace(" k,", " 10**6 if k else 0,")),
    Mutant("residuals without a ratio", "brace", TIME, SCAN, SCAN.replace("steps.delta, w,", "steps.delta, w / w,")),
    Mutant("a larger bound on the traces", "brace", TIME, SCAN, SCAN.replace("c_bar", "2 * c_bar")),
    Mutant("ratios upside down", "brace", CORRECTED, "ratio(log_ratio(target.detach(), behavior, batch.mask))",
           "ratio(log_ratio(behavior, target.detach(), batch.mask))"),
    Mutant("no whitening", "brace", "objectives/brace.py",
           "return whitened(advantages, mask) if self.std else advantages", "return advantages"),
]  # fmt: skip
