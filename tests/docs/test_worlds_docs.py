"""The pages on exact worlds: their code runs as typed, in an empty folder, and each shows its figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from blocks import DOCS, blocks

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "worlds").glob("*.md"))


def test_there_is_a_page_for_each_world() -> None:
    assert len(PAGES) == 8  # seven worlds and the list


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_typed_and_shows_a_figure(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page, "python")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in found:
        block.run(namespace)
    assert found
    if not page.endswith("README.md"):
        text = (DOCS / page).read_text()
        assert re.search(r"!\[[^]]+\]\(\.\./papers/[\w-]+\.png\)", text), "the page shows no figure"
        assert "stretto reproduce" in text
