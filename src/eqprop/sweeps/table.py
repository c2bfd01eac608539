"""The table of results: one row per network, derived from run folders.

Settings are columns with the path of their field ("rule.free_steps"): β, angle and learning rates
always, others if the recipes differ. `measured` is the split on which a run was measured, "test" or
"validation", as in the names of the errors. Errors are in %, and empty if a network became
non-finite or was pruned. `seconds` is the time of the whole ensemble of a network.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eqprop.measured import Measured
from eqprop.runs import recipe as recipes
from eqprop.runs.files import write_whole
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import UserError
from eqprop.sweeps import extras
from eqprop.sweeps.sweep import SweepFolder

FILE = "table.parquet"
NEVER = ("name", "description", "epochs", "seeds", "seed")  # no settings, or separate columns
# The columns besides the settings, and their types.
RESULTS = {
    "seed": "int64",
    "measured": "string",
    "final_train_error": "float64",
    "best_train_error": "float64",
    "best_epoch": "int64",
    "non_finite": "bool",
    "pruned": "bool",
    "epochs": "int64",
    "complete": "bool",
    "seconds": "float64",
    "machine": "string",
    "device": "string",
    "engine": "string",
    "commit": "string",
    "task": "string",
    "folder": "string",
}
MEASURED = {
    split: tuple(f"{which}_{split}_error" for which in ("final", "last_ten", "best"))
    for split in ("test", "validation")
}
TYPES = RESULTS | {column: "float64" for columns in MEASURED.values() for column in columns}
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Networks that differ only in their seed."""

    label: str
    rows: list[Row]

    @property
    def measured(self) -> str:
        """The split on which its runs were measured."""
        return str(self.rows[0]["measured"])

    def error(self, which: str, split: str | None = None) -> Measured:
        """Return the "final", "last_ten" or "best" error, by default of the measured split."""
        return Measured.of(row[f"{which}_{split or self.measured}_error"] for row in self.rows)

    @property
    def non_finite(self) -> int:
        return sum(row["non_finite"] for row in self.rows)

    @property
    def seconds(self) -> float | None:
        """Time of the ensembles that trained its networks; None if unknown."""
        known = {row["folder"]: row["seconds"] for row in self.rows}.values()
        return None if None in known else sum(known)


@dataclass(frozen=True)
class Table:
    """Networks and their results.

    Args:
        rows: one per network.
        root: the folder that contains the run folders of the rows.
        problems: one line per run folder that cannot be read and is left out.
    """

    rows: list[Row]
    root: Path
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, folders: Sequence[RunFolder], root: Path) -> Table:
        """Return the networks of these run folders, which lie below `root`."""
        recipe_values = [folder.recipe().values() for folder in folders]
        chosen = [
            path
            for path in recipes.FIELDS
            if path not in NEVER
            and (
                path in recipes.OF_MEMBERS
                or len({_key(values.get(path)) for values in recipe_values}) > 1
            )
        ]
        measured = {folder.recipe().data.measured for folder in folders}
        columns = [it for split in sorted(measured) for it in MEASURED[split]]
        rows = [row for folder in folders for row in _rows(folder, root, chosen, columns)]
        return cls(rows, root)

    @classmethod
    def read(cls, file: Path) -> Table:
        pyarrow = extras.pyarrow()
        try:
            rows = pyarrow.parquet.read_table(file).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{file}: not a Parquet file: {str(error).splitlines()[0]}") from None
        if missing := [column for column in RESULTS if rows and column not in rows[0]]:
            raise UserError(
                f"{file}: has no column {missing[0]}: make it with `eqprop sweep --table DIR`"
            )
        return cls(rows, file.parent)

    def write(self, file: Path) -> Path:
        """Write the table as Parquet, atomically; return the file."""
        pyarrow = extras.pyarrow()
        content = io.BytesIO()
        columns = {name: self._column(pyarrow, name) for name in self.rows[0]}
        pyarrow.parquet.write_table(pyarrow.table(columns), content)
        write_whole(file, content.getvalue())
        return file

    def _column(self, pyarrow: Any, name: str) -> Any:
        values = [row[name] for row in self.rows]
        if name in TYPES:
            return pyarrow.array(values, pyarrow.type_for_alias(TYPES[name]))
        try:
            return pyarrow.array(values)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):  # mixed types, such as layers
            return pyarrow.array([json.dumps(value) for value in values])

    @property
    def folders(self) -> list[RunFolder]:
        """The run folders that exist."""
        paths = dict.fromkeys(self.root / row["folder"] for row in self.rows)
        return [folder for folder in map(RunFolder, paths) if folder.begun]

    @property
    def varied(self) -> list[str]:
        """The settings in which the networks differ, and the recipe if there are several."""
        settings = [column for column in self.rows[0] if column not in TYPES]
        return [c for c in settings if len({_key(row[c]) for row in self.rows}) > 1]

    @property
    def measured(self) -> set[str]:
        """The splits on which its runs were measured: "test", "validation"."""
        return {row["measured"] for row in self.rows}

    @property
    def complete(self) -> Table:
        """The networks whose run is complete."""
        return Table([row for row in self.rows if row["complete"]], self.root)

    @property
    def unfinished(self) -> Table:
        """The networks whose run is not complete."""
        return Table([row for row in self.rows if not row["complete"]], self.root)

    def settings(self) -> list[Setting]:
        """Return the networks by setting, in the order of the rows."""
        varied = self.varied if self.rows else []
        groups: dict[str, list[Row]] = {}
        for row in self.rows:
            label = ", ".join(f"{short(column)} {text(row[column])}" for column in varied)
            groups.setdefault(label, []).append(row)
        return [Setting(label, rows) for label, rows in groups.items()]


def find(path: Path) -> Table | None:
    """Return the table of a sweep folder or a Parquet file; None if the path is neither."""
    sweep = SweepFolder(path)
    if sweep.is_one:
        return collect(path)
    return Table.read(path) if path.suffix == ".parquet" else None


def collect(below: Path) -> Table:
    """Return the networks of every run folder below a folder."""
    if not below.is_dir():
        raise UserError(f"{below}: no such folder: give one that holds run folders")
    files = sorted(below.rglob("recipe.toml"))
    visible = [f for f in files if not any(p.startswith(".") for p in f.relative_to(below).parts)]
    readable, problems = [], []
    for folder in (RunFolder(file.parent) for file in visible):
        try:
            if folder.summary()["epochs"]:
                readable.append(folder)
        except UserError as error:
            problems.append(str(error))
    if not readable:
        why = f" ({problems[0]})" if problems else ""
        raise UserError(f"{below}: no run folder below it has a complete epoch yet{why}")
    return replace(Table.of(readable, below), problems=tuple(problems))


def short(column: str) -> str:
    """Return the name of a setting without its table, as on the command line."""
    return recipes.SHORT.get(column, column)


def text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"({', '.join(map(text, value))})"
    return "none" if value is None else str(value)


def _rows(
    folder: RunFolder, root: Path, chosen: Iterable[str], columns: Sequence[str]
) -> Iterator[Row]:
    recipe, metrics, summary = folder.recipe(), folder.metrics(), folder.summary()
    values, machine = recipe.values(), summary.get("machine", {})
    for i, member in enumerate(summary["members"]):
        own = {
            "nudging.beta": member["beta"],
            "network.angle": member["angle"],
            "update.learning_rates": member["learning_rates"],
        }
        trained = [it["train_error"][i] for it in metrics if it["train_error"][i] is not None]
        yield {
            "recipe": recipe.name,
            **{path: _plain(own.get(path, values.get(path))) for path in chosen},
            "seed": member["seed"],
            "measured": recipe.data.measured,
            "final_train_error": member["final_train_error"],
            "best_train_error": min(trained, default=None),
            **{column: member.get(column) for column in columns},
            "best_epoch": member["best_epoch"],
            "non_finite": member["frozen"],
            "pruned": member.get("pruned", False),
            "epochs": summary["epochs"],
            "complete": summary["complete"],
            "seconds": summary.get("wall_seconds"),
            "machine": machine.get("gpu") or machine.get("processor"),
            "device": machine.get("device"),
            "engine": summary.get("engine"),
            "commit": summary.get("commit"),
            "task": folder.path.name,
            "folder": str(folder.path.relative_to(root)),
        }


def _plain(value: Any) -> Any:
    """Replace tuples by lists, as a file returns them."""
    return [_plain(it) for it in value] if isinstance(value, (list, tuple)) else value


def _key(value: Any) -> str:
    return json.dumps(value)
