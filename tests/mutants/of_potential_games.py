"""Natural policy gradient in Markov potential games, broken on purpose."""

from __future__ import annotations

from mutant import Mutant

ONLINE, EPISODIC, EXACT = "games/potential/online.py", "games/potential/episodic.py", "games/potential/npg.py"
ALPHA = "games/potential/potential.py"
MUTANTS = [
    Mutant("the bound leaves out the discount", "npg-alpha", ALPHA,
           "return game.gamma * transition_sensitivity(game) * span", "return transition_sensitivity(game) * span"),
    Mutant("a transition's change counts twice", "npg-alpha", ALPHA, ".sum(-1).max()) / 2)", ".sum(-1).max()))"),
    Mutant("critics without foresight", "npg-online", ONLINE, "(cost + gamma * ahead - q[i, s, a])",
           "(cost - q[i, s, a])"),
    Mutant("no floor in the KL projection", "npg-online", ONLINE, "    project_row(pi, i, s, count, floor)",
           "    project_row(pi, i, s, count, 0.0)"),
    Mutant("players maximise their costs", "npg-online", ONLINE, "*= math.exp(-e * (", "*= math.exp(e * ("),
    Mutant("rollouts of one slot", "npg-episodic", EPISODIC, "\n            if uniform(stop, slot - 1) >= game.gamma:",
           "\n            if uniform(stop, slot - 1) >= 0.0:"),
    Mutant("an action's estimate isn't divided by its chance", "npg-episodic", EPISODIC,
           "g = total[i] / pi[i, begin, acts[i]]", "g = total[i]"),
    Mutant("players maximise their costs", "npg-episodic", EPISODIC, "*= math.exp(-eta * (", "*= math.exp(eta * ("),
    Mutant("values without foresight", "npg-jobs", EXACT, "game.costs + game.gamma * np.einsum",
           "game.costs + 0.0 * np.einsum"),
    Mutant("players maximise their costs", "npg-jobs", EXACT, "np.exp(-eta * (", "np.exp(eta * ("),
]  # fmt: skip
