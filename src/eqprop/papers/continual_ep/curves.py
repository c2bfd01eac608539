"""The training curves: train and test error over the epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eqprop.papers.continual_ep import training
from eqprop.papers.continual_ep.comparison import compare, described
from eqprop.papers.continual_ep.published import FULL_TABLE, Result
from eqprop.papers.continual_ep.trained import Trained
from eqprop.papers.continual_ep.training import Outcome, TrainingRun
from eqprop.report.blocks import Block, Chart, Line, Panel
from eqprop.report.item import Row
from eqprop.report.results import Results


class TrainingCurves(Trained):
    """Training curves. The rows are their last points, which are the lines of the full table."""

    def __init__(self, name: str, title: str, figure: str, needs: str, runs: Sequence[str]) -> None:
        super().__init__(name, title, f'appendix F.3, Fig. "{figure}"', needs, runs)
        self.published = tuple(result for result in FULL_TABLE if result.recipe in runs)

    def rows(self, results: Results) -> tuple[Row, ...]:
        return tuple(comparison.row() for comparison in compare(self.published, results))

    def blocks(self, results: Results) -> tuple[Block, ...]:
        """Return a chart of the recipes, and one per variant that was run."""
        groups = [tuple(training.RUNS[name] for name in self.runs)]
        groups += [(run,) for name in self.runs for run in training.variants(name)]
        charts = (self._chart(group, results) for group in groups)
        return tuple(chart for chart in charts if chart.panels)

    def _chart(self, runs: Sequence[TrainingRun], results: Results) -> Chart:
        panels = tuple(panel for run in runs for panel in self._panels(run, results))
        run, caption = runs[0], self.title
        if run.label:
            caption += f". {run.label[0].upper()}{run.label[1:]}: {described(run)}"
        name = self.name + run.name.removeprefix(run.recipe) * bool(run.label)
        return Chart(
            name, f"{caption}. Mean ± standard deviation; • the paper's test error", panels
        )

    def _panels(self, run: TrainingRun, results: Results) -> Iterator[Panel]:
        outcome = training.best(run, results)
        for paper in self.published:
            if outcome and paper.recipe == run.recipe and outcome.errors(paper.angle):
                yield _panel(outcome, paper)


def _panel(outcome: Outcome, paper: Result) -> Panel:
    test, train = (
        outcome.curves(f"{key}_error", paper.angle).tolist() for key in ("test", "train")
    )
    last = float(paper.epochs or outcome.recipe.epochs)
    end = Line.measured("paper, test", [last], [paper.test], "points", 7)
    lines = Line.over_epochs("test", test), Line.over_epochs("train", train, color=1)
    title = paper.name + (", quick" if outcome.quick else "")
    return Panel(title, "epoch", "error (%)", lines if outcome.quick else (*lines, end), y_log=True)


ITEMS = (
    TrainingCurves(
        "curves-c-ep",
        "Train and test error with C-EP",
        "error_curves:cep",
        "two runs of a minute on an H200, and one of some minutes; quick 30 s on two cores",
        ("c-ep-1h-fixed-beta", "c-ep-1h", "c-ep-2h"),
    ),
    TrainingCurves(
        "curves-c-vf-1h",
        "Train and test error with C-VF, one hidden layer",
        "error_curves:C-VF-1hidden",
        "one run of 45 networks, 2 min on an H200; quick 15 s on two cores",
        ("c-vf-1h",),
    ),
    TrainingCurves(
        "curves-c-vf-2h",
        "Train and test error with C-VF, two hidden layers",
        "error_curves:C-VF-2hidden",
        "one run of 45 networks, 27 min on an H200; quick 40 s on two cores",
        ("c-vf-2h",),
    ),
)
