"""What the papers' figures share."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from stretto.papers.drawing import legend_below


def test_a_legend_lies_below_its_axis_and_over_no_other() -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    (top,), (bottom,) = figure.subfigures(2, 1, squeeze=False)
    axes = [part.subplots() for part in (top, bottom)]
    for axis in axes:
        axis.plot([0, 1], label="a curve")
        axis.set_xlabel("x")
        legend_below(axis)
    figure.canvas.draw()
    for axis in axes:
        legend = axis.get_legend()
        assert legend is not None
        box = legend.get_window_extent()
        assert box.y1 < axis.xaxis.label.get_window_extent().y0
        assert not any(box.overlaps(other.get_window_extent()) for other in axes)
