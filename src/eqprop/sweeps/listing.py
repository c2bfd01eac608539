"""The settings of a table as text: what `sweep`, `show` and `compare` print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eqprop.exits import OK
from eqprop.runs import figures as run_figures
from eqprop.runs.progress import printable
from eqprop.runs.recipe import UserError
from eqprop.runs.summary import percent
from eqprop.sweeps import figures
from eqprop.sweeps.board import table as aligned
from eqprop.sweeps.table import Table

ERRORS = ("final_train_error", "final_test_error", "last_ten_test_error")


def show(table: Table, path: Path) -> int:
    """Print the settings of a table, and draw the error against each of them."""
    for folder in dict.fromkeys(row["folder"] for row in table.unfinished.rows):
        print(printable(f"not finished, left out: {folder}"))
    if not table.complete.rows:
        raise UserError(f"{path}: no run is complete yet")
    show_settings(table)
    folder = path if path.is_dir() else path.parent
    try:
        print(figures.errors(table.complete, folder / "errors.png"))
    except run_figures.NoMatplotlib as error:
        print(f"no picture: {error}")
    return OK


def show_settings(table: Table) -> None:
    """Print errors, mean ± standard deviation over the seeds, of each setting that is complete."""
    for problem in table.problems:
        print(printable(f"left out: {problem}"))
    rows = [("setting", "networks", "train error", "test error", "best", "non-finite")]
    for setting in table.complete.settings():
        rows.append(
            (
                setting.label or setting.rows[0]["recipe"],
                str(len(setting.rows)),
                percent(setting.error("final_train_error")),
                percent(setting.error("final_test_error")),
                percent(setting.error("best_test_error")),
                str(setting.non_finite),
            )
        )
    for line in aligned(rows, right=range(1, 6)):
        print(printable(line))


def compared(table: Table, path: Path) -> Iterator[tuple[str, str]]:
    """The name of each setting of a table, and its cells among those of other runs."""
    for setting in table.complete.settings():
        epochs = max(row["epochs"] for row in setting.rows)
        cells = [percent(setting.error(column)) for column in ERRORS]
        if epochs < 10:
            cells[2] = "-"
        time = "unknown" if setting.seconds is None else f"{setting.seconds:.0f} s"
        name = printable(", ".join(filter(None, (str(path), setting.label))))
        yield name, f"{epochs:>6}  " + "  ".join(f"{cell:>16}" for cell in cells) + f"  {time}"
    for folder, epochs in {row["folder"]: row["epochs"] for row in table.unfinished.rows}.items():
        yield printable(f"{path}, {folder}"), f"{epochs:>6}  not finished"
