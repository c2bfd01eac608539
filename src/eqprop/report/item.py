"""What one command regenerates: an item of the paper, a table or figure, or a run of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from eqprop.report.blocks import Block
from eqprop.report.results import Completeness, Results
from eqprop.report.source import Source

MARKS = {True: "✓", False: "✗", None: "–"}  # of what passes, does not, or has no verdict


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
    threads: int | None = None  # None: one per core
    say: Callable[[str], None] = print


class Task(ABC):
    name: str  # as in `eqprop paper run NAME`

    @abstractmethod
    def run(self, order: Order) -> None:
        """Compute what is missing and store it; what is there already is kept."""

    @abstractmethod
    def completeness(self, results: Results) -> Completeness:
        """That of its weakest part: full if nothing is missing, quick if the quick results fill in
        for what is.
        """

    def standing(self, results: Results) -> str:
        """In a word, after it has run."""
        return self.completeness(results)


class SharedRun(Task):
    """A run that items share."""

    @property
    @abstractmethod
    def note(self) -> str:
        """What it is."""

    @abstractmethod
    def progress(self, results: Results) -> tuple[int, int]:
        """Epochs done and to do of the full run, also if it is not complete."""


class Item(Task):
    title: str
    place: str  # in the paper: 'Fig. "toy-model"', 'appendix F.1'
    needs: str  # time and device, full and quick: "5 min on an H200; quick 1 min on two cores"

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

    def standing(self, results: Results) -> str:
        return f"{self.completeness(results)} {MARKS[self.passed(results)]}"
