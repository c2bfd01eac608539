"""The folder of a search.

journal.log      every trial, and the plan of the search (Optuna's JournalStorage)
runs/trials-N/   the run folder of the ensemble whose first trial is N
best.toml        the recipe of the best trial, for the whole training set
final-N/         the run folder of that recipe; N is the number of the best trial
*.png            drawn by `eqprop show`
.locks/          lock files of the processes
"""

from __future__ import annotations

from pathlib import Path

from eqprop.runs import UserError
from eqprop.runs.folder import RunFolder
from eqprop.search.locks import FileLock

LOCKS = ".locks"


class SearchFolder:
    """The paths and locks of a search."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.journal = self.path / "journal.log"
        self.best = self.path / "best.toml"

    @property
    def begun(self) -> bool:
        return self.journal.is_file()

    def check(self) -> None:
        """Raise if the folder holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file: choose another --out")
        there = {file.name for file in self.path.iterdir()} if self.path.is_dir() else set()
        if there - {LOCKS} and not self.begun:
            raise UserError(f"{self.path}: is not empty and not a search: choose another --out")

    def run(self, group: str) -> RunFolder:
        return RunFolder(self.path / "runs" / group)

    def final(self, trial: int) -> RunFolder:
        return RunFolder(self.path / f"final-{trial}")

    def lock(self, name: str) -> FileLock:
        folder = self.path / LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / name)
