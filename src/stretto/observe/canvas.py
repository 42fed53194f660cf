"""What figures are drawn on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

Canvas: TypeAlias = "Figure | SubFigure"
"""A Matplotlib figure, or a part of one. Loads nothing: Matplotlib is imported where something is drawn."""
