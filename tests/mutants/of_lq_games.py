"""Unaware learners in linear-quadratic games, broken on purpose."""

from __future__ import annotations

from mutant import Mutant

EXACT, LEARNING = "games/lq/riccati.py", "games/lq/cournot_learning.py"
NEVER = "K[i, 0], K[i, 1] = K0, K1", "K[i, 0], K[i, 1] = K[i, 0], K[i, 1]"
MUTANTS = [
    Mutant("firms don't look ahead", "cournot-nash", EXACT,
           "cross = problem.S.T + problem.gamma * problem.B.T @ P @ problem.A", "cross = problem.S.T"),
    Mutant("the Riccati equation without its cross term", "cournot-nash", EXACT, "s=problem.S)", "s=None)"),
    Mutant("firms never update", "cournot-rate", LEARNING, *NEVER),
    Mutant("no exploration after the first steps", "cournot-rate", LEARNING,
           "learns[i] and uniform(explore, t * n + i) < rates[t]", "learns[i] and t < 30"),
    Mutant("firms take the total output for their own", "cournot-rate", LEARNING,
           "v = total if published else q[i]", "v = total"),
    Mutant("firms don't look ahead", "cournot-rate", LEARNING, "c[i], k[i], beta, timing)", "c[i], k[i], 0.0, timing)"),
    Mutant("firms never update", "cournot-welfare", LEARNING, *NEVER),
    Mutant("published output isn't used", "cournot-welfare", LEARNING, "v = total if published else q[i]", "v = q[i]"),
    Mutant("firms don't look ahead", "cournot-welfare", LEARNING, "c[i], k[i], beta, timing)",
           "c[i], k[i], 0.0, timing)"),
]  # fmt: skip
