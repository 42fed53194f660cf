"""Asynchronous TD broken: its update, its steps, the laws that it is compared with."""

from mutant import Mutant

KERNEL, LAWS, STEPS = "tabular/td/kernel.py", "tabular/td/laws.py", "tabular/td/steps.py"
TARGET = "(rewards[s, min(after, last)] + gamma[s] * v[j, after] - v[j, s])"
ETA = "eta = min(top, h / (t + t0))"

MUTANTS = [
    Mutant(
        "the law for late times forgets that steps fall", "td-constants", LAWS,
        "shifted = h * a - 0.5 * np.eye(process.states)", "shifted = h * a",
    ),
    Mutant(
        "states count alike, however rarely they are visited", "td-constants", LAWS,
        "return np.asarray(mu[:, None] * (np.eye", "return np.asarray(mu.max() * (np.eye",
    ),
    Mutant("the next value isn't discounted", "td-moments", KERNEL, TARGET, TARGET.replace("gamma[s] * ", "")),
    Mutant("the state that is entered learns", "td-moments", KERNEL, "v[j, s] = new", "v[j, after] = new"),
    Mutant("steps fall as the root of t", "td-rate", KERNEL, ETA, "eta = min(top, h / (t + t0) ** 0.5)"),
    Mutant("steps are too small for the rate", "td-rate", KERNEL, ETA, "eta = min(top, 0.2 * h / (t + t0))"),
    Mutant(
        "the tuned step doesn't fall with the horizon's square", "td-transient", STEPS,
        'eps**2 / horizon**2)', 'eps**2 / horizon)',
    ),
    Mutant("half the step", "td-transient", KERNEL, ETA, "eta = 0.5 * min(top, h / (t + t0))"),
]  # fmt: skip
