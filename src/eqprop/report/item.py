"""Tasks of `eqprop paper run`: an item of the paper (a table or figure), or a shared run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from eqprop.report.blocks import Block
from eqprop.report.results import Completeness, Results
from eqprop.report.source import Source

MARKS = {True: "✓", False: "✗", None: "–"}  # passed, failed, no verdict


@dataclass(frozen=True)
class Row:
    """A number of the paper, ours, and the reading of the paper that ours uses.

    A verdict needs a source for the reading.
    """

    name: str
    paper: str
    ours: str | None  # None: not computed yet
    passed: bool | None  # None: no verdict, or not computed yet
    note: str = ""
    reading: str = ""
    source: Source | None = None  # None: the row has no verdict

    def __post_init__(self) -> None:
        if self.passed is not None and self.source is None:
            raise ValueError(f"row {self.name!r}: a verdict needs a source")


@dataclass(frozen=True)
class Order:
    """The options of `eqprop paper run`."""

    results: Results
    quick: bool = False
    device: str = "cpu"
    data: str | None = None  # folder of the idx files
    threads: int | None = None  # None: one per core
    say: Callable[[str], None] = print


class Task(ABC):
    name: str  # as in `eqprop paper run NAME`

    @abstractmethod
    def run(self, order: Order) -> None:
        """Compute and store what is missing; keep what exists."""

    @abstractmethod
    def completeness(self, results: Results) -> Completeness:
        """Return the completeness of the weakest part: "full" if nothing is missing, "quick" if
        quick results replace what is missing, else "missing".
        """

    def standing(self, results: Results) -> str:
        """Return the state of the task in a word or two."""
        return self.completeness(results)


class SharedRun(Task):
    """A training run that items share."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A short description."""

    @abstractmethod
    def progress(self, results: Results) -> tuple[int, int]:
        """Return the epochs done and the total epochs of the full run."""


class Item(Task):
    title: str
    place: str  # its place in the paper: 'Fig. "toy-model"', 'appendix F.1'
    needs: str  # time and device, full and quick: "5 min on an H200; quick 1 min on two cores"

    @abstractmethod
    def rows(self, results: Results) -> tuple[Row, ...]:
        """Return the numbers to compare with the paper, even if nothing has run yet."""

    @abstractmethod
    def blocks(self, results: Results) -> tuple[Block, ...]:
        """Return the blocks of the report: per part the full result, else the quick one, marked as
        quick; nothing for a missing part.
        """

    def passed(self, results: Results) -> bool | None:
        """Return whether every row with a source passes; None if one is missing or none exists."""
        verdicts = [row.passed for row in self.rows(results) if row.source is not None]
        if not verdicts or None in verdicts:
            return False if False in verdicts else None
        return all(verdicts)

    def standing(self, results: Results) -> str:
        return f"{self.completeness(results)} {MARKS[self.passed(results)]}"
