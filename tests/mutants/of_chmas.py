"""CHMAS, broken on purpose."""

from __future__ import annotations

from mutant import Mutant

LOOP, SMALL = "games/foraging/loop.py", "games/foraging/mini_loop.py"
MUTANTS = [
    Mutant("the strategist minimises its reward", "chmas-foraging", LOOP,
           "theta[z, m] += rules.scale", "theta[z, m] -= rules.scale"),
    Mutant("the tactical layer never learns", "chmas-foraging", LOOP,
           "values[i, seen[i], action[i]] += rules.step * error", "values[i, seen[i], action[i]] += 0.0 * error"),
    Mutant("the coupling is left out", "chmas-foraging", LOOP,
           "1.0 - both + rules.coupling * meal / span", "1.0 - both"),
    Mutant("the strategist never moves", "chmas-foraging", LOOP,
           "theta[z, m] += rules.scale / math.sqrt(1 + block) * grad[z, m] / count", "theta[z, m] += 0.0"),
    Mutant("the strategist minimises J", "chmas-rate", SMALL,
           "theta[z, m] += step / math.sqrt(k)", "theta[z, m] -= step / math.sqrt(k)"),
    Mutant("the tactical layer never learns", "chmas-rate", SMALL,
           "skill[z, m] += rate * (gain[z, m] - skill[z, m])", "skill[z, m] += 0.0"),
    Mutant("the coupling is left out", "chmas-rate", SMALL,
           "reward = base[z, m] + coupling * skill[z, m] + noise", "reward = base[z, m] + noise"),
]  # fmt: skip
