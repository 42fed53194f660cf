"""AsyncWebRL broken: the baseline's normaliser in its place, the normaliser's sign, its constant applied twice."""

from mutant import Mutant

FILE = "objectives/asyncwebrl.py"
STEP = 'per_step = advantages / (self.k if self.normaliser == "const" else steps[:, None])'

MUTANTS = [
    Mutant("1/|tau| in the constant's place", "asyncwebrl", FILE, STEP, "per_step = advantages / steps[:, None]"),
    Mutant("k is applied twice", "asyncwebrl", FILE, STEP, STEP.replace("self.k if", "self.k**2 if")),
    Mutant(
        "the agent minimises its reward", "asyncwebrl", "tabular/asyncwebrl/verbosity.py",
        "z -= rate * slope", "z += rate * slope",
    ),
]  # fmt: skip
