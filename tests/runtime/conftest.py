"""A random model directory for real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .runs import build_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("tiny"))
