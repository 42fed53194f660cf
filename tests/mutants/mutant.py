"""A method broken on purpose: a small change to the source, under which a paper's experiment must say FAIL."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "stretto"


@dataclass(frozen=True)
class Mutant:
    """``file`` (below ``src/stretto``) with ``old`` replaced by ``new``: what was broken, in words, is ``name``.

    ``part``: the experiment to run, a paper or one of its parts.
    """

    name: str
    part: str
    file: str
    old: str
    new: str

    def apply(self, package: Path) -> None:
        """Change the copy of the package in ``package``. Raises ``ValueError`` unless ``old`` is there exactly once."""
        path = package / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutant {self.part}: {self.name}: {text.count(self.old)} places in {self.file} read as "
                             "it was written for, not one: adapt it")  # fmt: skip
        path.write_text(text.replace(self.old, self.new))


def all_mutants() -> list[Mutant]:
    """Those of all files ``of_*.py`` beside this one, in the order of their names."""
    found: list[Mutant] = []
    for path in sorted(HERE.glob("of_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found += module.MUTANTS
    return found
