"""Test error of C-VF against the initial angle between forward and backward weights."""

from __future__ import annotations

from collections.abc import Sequence

from eqprop.measured import Measured
from eqprop.papers.continual_ep.comparison import Comparison, compare, explanation
from eqprop.papers.continual_ep.published import FULL_TABLE, NAMES
from eqprop.papers.continual_ep.trained import Trained
from eqprop.report.blocks import Block, Chart, Line, Panel
from eqprop.report.item import Row
from eqprop.report.results import Results

BESIDE = 2.5  # horizontal offset in degrees between the points of two runs
PUBLISHED = tuple(result for result in FULL_TABLE if result.angle is not None)


class ErrorAgainstPsi(Trained):
    def __init__(self) -> None:
        super().__init__(
            "error-against-psi",
            "Test error against the initial angle Ψ(θ_f, θ_b)",
            'Fig. "table:results", right',
            "two runs of 45 networks, 2 min and 27 min on an H200; quick 1 min on two cores",
            [result.recipe for result in PUBLISHED],
        )

    def rows(self, results: Results) -> tuple[Row, ...]:
        return tuple(comparison.row() for comparison in compare(PUBLISHED, results))

    def blocks(self, results: Results) -> tuple[Block, ...]:
        comparisons, panels = compare(PUBLISHED, results), []
        for recipe in self.runs:
            chosen = [it for it in comparisons if it.paper.recipe == recipe]
            ours = ours_by_run(chosen)
            paper = points("paper", [(it.paper.angle or 0.0, it.paper.test) for it in chosen])
            axes = "initial Ψ(θ_f, θ_b) (°)", "test error (%)"
            if ours:
                panels.append(Panel(NAMES[recipe], *axes, (paper, *ours), y_log=True))
        if not panels:
            return ()
        caption = f"{self.title}: the paper, the recipe, each variant, side by side"
        return Chart(self.name, caption, tuple(panels)), *explanation(comparisons)


def ours_by_run(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return error against angle: points for the recipe and for each variant."""
    found: dict[str, list[tuple[float, Measured]]] = {}
    for comparison in comparisons:
        for ours in (comparison.ours, *comparison.variants):
            if ours is not None:
                label = ours.run.label or "eqprop"
                label += ", quick" if ours.outcome.quick else ""
                place = comparison.paper.angle or 0.0, ours.errors.test
                found.setdefault(label, []).append(place)
    return [
        points(label, places, color, BESIDE * (color + 1))
        for color, (label, places) in enumerate(found.items())
    ]


def points(
    label: str, places: Sequence[tuple[float, Measured]], color: int = 7, beside: float = 0.0
) -> Line:
    """Return points with bars of ± one standard deviation; the default colour is the paper's."""
    x, errors = [angle + beside for angle, _ in places], [error for _, error in places]
    return Line.measured(label, x, errors, "points", color)


ITEMS = (ErrorAgainstPsi(),)
