"""``python -m stretto.cli``."""

from __future__ import annotations

from stretto.cli import main

main()
