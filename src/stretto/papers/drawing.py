"""What the papers' figures share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BELOW = 34
"""Points from an axis down to its legend: tick labels and the axis' own label lie between."""


def legend_below(axis: Axes, columns: int = 2, points: float = _BELOW) -> None:
    """The names of the curves of ``axis``, in ``columns``, ``points`` below it: over no data."""
    from matplotlib.transforms import ScaledTranslation  # slow to import: not for those who draw nothing

    lower = axis.transAxes + ScaledTranslation(0, -points / 72, axis.figure.figure.dpi_scale_trans)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=lower, ncols=columns, fontsize=7)
