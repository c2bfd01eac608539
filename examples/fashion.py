"""Print the table of docs/fashion.md: the paper's recipes on MNIST and on Fashion-MNIST.

It reads the runs of MNIST from results/paper, and those of Fashion-MNIST from all run folders below
a folder: results/fashion, or that of your own sweep. A row whose networks are not complete has a
dash.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from eqprop.measured import Measured
from eqprop.papers.continual_ep.comparison import compare
from eqprop.papers.continual_ep.published import FULL_TABLE, RESCALED
from eqprop.report import markdown
from eqprop.report.results import Results
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import Recipe
from eqprop.sweeps import file
from eqprop.sweeps.table import Row, collect

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "fashion.md"
MARKED = re.compile(r"(<!-- python examples/fashion.py -->\n).*?(<!-- end -->)", re.DOTALL)
SWEEP = {recipe.name: recipe for recipe in file.read(ROOT / "examples" / "fashion.toml")}
PARTS = ("network.angle", "seed", "seeds")  # a run may hold some of a recipe's networks
GUESSING = 90.0  # error in % of a network that became non-finite and has no output


def check(folder: RunFolder) -> None:
    """Raise if a run has the name of a recipe of the sweep, but other settings."""
    found = folder.recipe()
    if (wanted := SWEEP.get(found.name)) is None:
        return
    differing = [path for path in found.differences(wanted) if path not in PARTS]
    differing += ["epochs"] * (found.epochs != wanted.epochs)
    if differing:
        raise SystemExit(
            f"{folder.path}: its {', '.join(differing)} differ from examples/fashion.toml: "
            "move it away"
        )


def cells(recipe: Recipe, networks: Sequence[Row]) -> tuple[str, str]:
    """Return the errors after the last epoch, and the test error of the last ten epochs."""
    seeds = [network["seed"] for network in networks]
    if len(set(seeds)) < len(seeds):
        folders = " and ".join(sorted({network["folder"] for network in networks}))
        raise SystemExit(f"{folders} hold the same networks: move one of them away")
    if len(seeds) < recipe.seeds:
        return "–", "–"

    def error(column: str) -> Measured:
        return Measured.of(GUESSING if it["non_finite"] else it[column] for it in networks)

    test, train = error("final_test_error"), error("final_train_error")
    gone = sum(network["non_finite"] for network in networks)
    note = f", {gone} non-finite" if gone else ""
    return f"{test} ({train.mean:.2f}){note}", str(error("last_ten_test_error"))


def table(folder: Path) -> str:
    """Return the table of the runs below a folder, in Markdown."""
    complete = collect(folder).complete
    for run in complete.folders:
        check(run)
    rows = []
    for line in compare((*FULL_TABLE, *RESCALED), Results(ROOT / "results")):
        name, angle = line.paper.recipe, line.paper.angle or 0.0
        networks = [
            row for row in complete.rows if (row["recipe"], row["network.angle"]) == (name, angle)
        ]
        mnist = str(line.ours.errors) if line.ours else "–"
        rows.append((line.paper.name, mnist, *cells(SWEEP[name], networks)))
    return markdown.table(("", "MNIST", "Fashion-MNIST", "last ten epochs"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the table of docs/fashion.md.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "results" / "fashion")
    parser.add_argument("--update-docs", action="store_true", help="also write it into the page")
    options = parser.parse_args()
    text = table(options.folder)
    print(text, end="")
    if options.update_docs:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(MARKED.sub(rf"\1\n{text}\n\2", page), "utf-8")


if __name__ == "__main__":
    main()
