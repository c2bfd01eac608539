"""The settings of a table as text, for `sweep`, `show` and `compare`."""

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


def show(table: Table, path: Path) -> int:
    """Print the settings of a table and draw the error against each; return the exit code."""
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
    """Print the errors of each complete setting, mean ± standard deviation over the seeds."""
    for problem in table.problems:
        print(printable(f"left out: {problem}"))
    measured = f"{figures.kinds(table)} error"
    rows = [("setting", "networks", "train error", measured, "best", "non-finite")]
    for setting in table.complete.settings():
        rows.append(
            (
                setting.label or setting.rows[0]["recipe"],
                str(len(setting.rows)),
                percent(setting.error("final", "train")),
                percent(setting.error("final")),
                percent(setting.error("best")),
                str(setting.non_finite),
            )
        )
    for line in aligned(rows, right=range(1, 6)):
        print(printable(line))


def compared(table: Table, path: Path, name_split: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and the cells of each setting of a table; `name_split` adds the split."""
    for setting in table.complete.settings():
        epochs = max(row["epochs"] for row in setting.rows)
        errors = setting.error("final", "train"), setting.error("final"), setting.error("last_ten")
        cells = [percent(error) for error in errors]
        if epochs < 10:
            cells[2] = "-"
        time = "unknown" if setting.seconds is None else f"{setting.seconds:.0f} s"
        name = printable(", ".join(filter(None, (str(path), setting.label))))
        name += f" ({setting.measured})" * name_split
        yield name, f"{epochs:>6}  " + "  ".join(f"{cell:>16}" for cell in cells) + f"  {time}"
    for folder, epochs in {row["folder"]: row["epochs"] for row in table.unfinished.rows}.items():
        yield printable(f"{path}, {folder}"), f"{epochs:>6}  not finished"
