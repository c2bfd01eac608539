"""The tables of training results: main text, appendix F.1, appendix F.2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from eqprop.papers.continual_ep.comparison import Comparison, compare, explanation, table
from eqprop.papers.continual_ep.published import FULL_TABLE, RESCALED, RESULTS_TABLE, Result
from eqprop.papers.continual_ep.trained import Trained
from eqprop.report.blocks import Block
from eqprop.report.item import Row
from eqprop.report.results import Completeness, Results


class TrainingTable(Trained):
    def __init__(
        self, name: str, title: str, place: str, needs: str, published: Sequence[Result]
    ) -> None:
        super().__init__(name, title, place, needs, [result.recipe for result in published])
        self.published = tuple(published)

    def completeness(self, results: Results) -> Completeness:
        """Return "full" if every line is there, even if a run lacks angles outside the table."""
        found = [comparison.ours for comparison in compare(self.published, results)]
        if all(ours is not None and not ours.outcome.quick for ours in found):
            return "full"
        return super().completeness(results)

    def rows(self, results: Results) -> tuple[Row, ...]:
        return tuple(comparison.row() for comparison in compare(self.published, results))

    def blocks(self, results: Results) -> tuple[Block, ...]:
        comparisons = compare(self.published, results)
        groups = groupby(comparisons, self._caption)
        tables = (table(caption, tuple(group)) for caption, group in groups)
        return (*(it for it in tables if it is not None), *explanation(comparisons))

    def _caption(self, comparison: Comparison) -> str:
        """Return the caption; a recipe with one line per angle has a separate table."""
        result = comparison.paper
        angles = [it.angle for it in self.published if it.recipe == result.recipe]
        if len(angles) == 1:
            return self.title
        return f"{result.name.partition(',')[0]} by the initial angle Ψ(θ_f, θ_b)"


ITEMS = (
    TrainingTable(
        "results-table",
        "Training results on MNIST",
        'Fig. "table:results", left',
        "six runs, 2 min with one hidden layer, half an hour with two, on an H200; quick 2 min",
        RESULTS_TABLE,
    ),
    TrainingTable(
        "full-table",
        "Training results with every initial angle",
        "appendix F.1, full table of results",
        "the runs of results-table and c-ep-1h-fixed-beta; quick 2 min on two cores",
        FULL_TABLE,
    ),
    TrainingTable(
        "rescaled",
        "C-EP with a tiny learning rate, rescaled",
        "appendix F.2",
        "two runs, half a minute and some minutes on an H200; quick 20 s on two cores",
        RESCALED,
    ),
)
