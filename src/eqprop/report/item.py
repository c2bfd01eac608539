"""An item of the paper: a table or figure that one command regenerates."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eqprop.papers.continual_ep.sources import Source
from eqprop.report.blocks import Block
from eqprop.runs.folder import RunFolder
from eqprop.runs.recipe import UserError

State = Literal["missing", "quick", "full"]


@dataclass(frozen=True)
class Results:
    """Where results lie: full ones in `root`/paper, quick ones in `root`/paper/quick.

    runs/NAME/      a training run, as `eqprop train` leaves it
    NAME.json       what an item without training computed
    """

    root: Path

    def folder(self, quick: bool) -> Path:
        return self.root / "paper" / "quick" if quick else self.root / "paper"

    def run_folder(self, name: str, quick: bool) -> RunFolder:
        return RunFolder(self.folder(quick) / "runs" / name)

    def read(self, name: str, quick: bool) -> dict[str, Any] | None:
        """What an item computed, or None. Includes `machine`: where, when, at which commit."""
        file = self.folder(quick) / f"{name}.json"
        if not file.is_file():
            return None
        try:
            found = json.loads(file.read_bytes())
        except ValueError:
            found = None
        if not isinstance(found, dict) or "machine" not in found:
            raise UserError(f"{file}: damaged: restore it, or delete it and compute it again")
        return found

    def best(self, name: str) -> tuple[State, dict[str, Any]]:
        """The full result if it is there, else the quick one."""
        for state, quick in (("full", False), ("quick", True)):
            found = self.read(name, quick)
            if found is not None:
                return state, found  # type: ignore[return-value]
        return "missing", {}


@dataclass(frozen=True)
class Row:
    """One number of the paper beside ours, and how the paper is read there.

    A reading needs a source: without one there is no verdict, whatever the numbers are.
    """

    name: str
    paper: str
    ours: str | None  # None: not there yet
    passed: bool | None  # None: nothing is claimed, or not there yet
    note: str = ""
    reading: str = ""
    source: Source | None = None  # None: nothing of the paper is judged here

    def __post_init__(self) -> None:
        if self.passed is not None and self.source is None:
            raise ValueError(f"row {self.name!r}: a verdict needs a source")


@dataclass(frozen=True)
class Order:
    """What `eqprop paper run` was asked for."""

    results: Results
    quick: bool = False
    device: str = "cpu"
    data: str | None = None  # folder of the idx files
    threads: int | None = None  # None: one a core
    say: Callable[[str], None] = print


class Item(ABC):
    name: str  # as in `eqprop paper run NAME`
    title: str
    place: str  # in the paper: 'Fig. "toy-model"', 'appendix F.1'
    needs: str  # time and device, full and quick: "5 min on an H200; quick 1 min on two cores"

    @abstractmethod
    def run(self, order: Order) -> None:
        """Compute what is missing and store it; what is there already is kept."""

    @abstractmethod
    def state(self, results: Results) -> State:
        """That of its weakest part: full if nothing is missing, quick if the quick results fill in
        for what is.
        """

    @abstractmethod
    def rows(self, results: Results) -> tuple[Row, ...]:
        """The numbers that can be held against the paper; also where nothing has run yet."""

    @abstractmethod
    def blocks(self, results: Results) -> tuple[Block, ...]:
        """What the report shows: of each part the full result, else the quick one, marked as such;
        nothing of a part that is missing.
        """

    def passed(self, results: Results) -> bool | None:
        """Whether every row with a source passes; None while one is missing, or without any."""
        verdicts = [row.passed for row in self.rows(results) if row.source is not None]
        if not verdicts or None in verdicts:
            return False if False in verdicts else None
        return all(verdicts)
