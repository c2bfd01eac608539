"""Print the table of docs/fashion.md: the paper's recipes on MNIST and on Fashion-MNIST.

It reads the runs of MNIST from results/paper, and those of Fashion-MNIST from all run folders below
a folder: results/fashion, or that of your own sweep. A row whose networks are not complete has a
dash.
"""

from collections.abc import Sequence
from pathlib import Path

from sweep_page import SweepPage, once

from eqprop.measured import Measured
from eqprop.papers.continual_ep.comparison import compare
from eqprop.papers.continual_ep.published import FULL_TABLE, RESCALED
from eqprop.report import markdown
from eqprop.report.results import Results
from eqprop.runs.recipe import Recipe
from eqprop.sweeps.table import Row

PAGE = SweepPage("fashion", parts=("network.angle", "seed", "seeds"))
GUESSING = 90.0  # error in % of a network that became non-finite and has no output


def cells(recipe: Recipe, networks: Sequence[Row]) -> tuple[str, str]:
    """Return the errors after the last epoch, and the test error of the last ten epochs."""
    if len(once(networks)) < recipe.seeds:
        return "–", "–"

    def error(column: str) -> Measured:
        return Measured.of(GUESSING if it["non_finite"] else it[column] for it in networks)

    test, train = error("final_test_error"), error("final_train_error")
    gone = sum(network["non_finite"] for network in networks)
    note = f", {gone} non-finite" if gone else ""
    return f"{test} ({train.mean:.2f}){note}", str(error("last_ten_test_error"))


def table(folder: Path) -> str:
    """Return the table of the runs below a folder, in Markdown."""
    complete = PAGE.runs(folder).complete
    rows = []
    for line in compare((*FULL_TABLE, *RESCALED), Results(PAGE.root / "results")):
        name, angle = line.paper.recipe, line.paper.angle or 0.0
        networks = [
            row for row in complete.rows if (row["recipe"], row["network.angle"]) == (name, angle)
        ]
        mnist = str(line.ours.errors) if line.ours else "–"
        rows.append((line.paper.name, mnist, *cells(PAGE.recipes[name], networks)))
    return markdown.table(("", "MNIST", "Fashion-MNIST", "last ten epochs"), rows)


def main() -> None:
    options = PAGE.options()
    text = table(options.folder)
    print(text, end="")
    if options.update_docs:
        PAGE.update(text)


if __name__ == "__main__":
    main()
