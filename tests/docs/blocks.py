"""Fenced blocks of a page, and how to run its Python as a reader would: one after the other, in one namespace."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """``line`` of the page on which ``text`` begins; ``tag``: what follows the language."""

    language: str
    tag: str
    text: str
    page: Path
    line: int

    def run(self, namespace: dict[str, Any]) -> None:
        """Execute it; a traceback names the page and its line. What it prints must be what its comments say."""
        heard = io.StringIO()
        with contextlib.redirect_stdout(heard):
            exec(compile("\n" * (self.line - 1) + self.text, str(self.page), "exec"), namespace)
        expected = SAID.findall(self.text)
        if expected:
            heard_lines = heard.getvalue().splitlines()
            assert heard_lines == expected, f"{self.page.name}:{self.line} prints {heard_lines}"


def blocks(page: str, language: str, tag: str = "") -> list[Block]:
    """The page's blocks of a language, with exactly this tag."""
    path = DOCS / page
    text = path.read_text()
    found = [Block(m[1], m[2].strip(), m[3], path, text[: m.start(3)].count("\n") + 1) for m in FENCE.finditer(text)]
    return [block for block in found if (block.language, block.tag) == (language, tag)]
