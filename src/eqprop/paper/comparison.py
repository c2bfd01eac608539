"""A published training result beside ours: as released, and with each deviation that was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqprop.paper.blocks import Table, Text
from eqprop.paper.item import Results, Row
from eqprop.paper.published import Result
from eqprop.paper.training import RUNS, Errors, Outcome, TrainingRun, best, progress, variants
from eqprop.paper.verdict import passes

MARKS = {True: " ✓", False: " ✗", None: " (quick)"}


@dataclass(frozen=True)
class Reading:
    """What one way to run a recipe gave."""

    run: TrainingRun
    errors: Errors
    outcome: Outcome
    passed: bool | None  # None: a quick run claims nothing

    def __str__(self) -> str:
        failed = f", {self.errors.frozen} non-finite" if self.errors.frozen else ""
        return f"{self.errors}{failed}{MARKS[self.passed]}"


@dataclass(frozen=True)
class Comparison:
    paper: Result
    ours: Reading | None
    variants: tuple[Reading, ...]
    progress: str  # of a run that is not complete

    def row(self) -> Row:
        tried = [f"{reading.run.label}: {reading}" for reading in self.variants]
        if self.ours is None:
            return Row(self.paper.name, str(self.paper), None, None, _joined(self.progress, *tried))
        shown = [] if self.ours.passed else tried
        note = _joined(*self._notes(self.ours), *shown)
        return Row(self.paper.name, str(self.paper), str(self.ours.errors), self.ours.passed, note)

    def _notes(self, ours: Reading) -> list[str]:
        recipe, errors, notes = ours.outcome.recipe, ours.errors, []
        if ours.outcome.quick:
            notes += [
                f"quick: {errors.test.n} networks, {recipe.epochs} epochs of "
                f"{recipe.train_samples} samples",
                self.progress,
            ]
        if errors.frozen:
            notes.append(f"{errors.frozen} of {errors.test.n} networks became non-finite")
        if ours.passed is False and passes(self.paper.test, errors.last_ten):
            notes.append(f"the mean of the last ten epochs passes: {errors.last_ten}")
        return notes


def _under_way(run: TrainingRun, paper: Result, results: Results) -> str:
    """How far the run is, or the part of it that has this line's angle."""
    parts = (piece for piece in run.pieces if paper.angle in piece.overrides["angle"])
    done, of = progress(next(parts, run), results)
    return f"at epoch {done} of {of}" if 0 < done < of else ""


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def compare(published: Sequence[Result], results: Results) -> tuple[Comparison, ...]:
    names = dict.fromkeys(result.recipe for result in published)
    runs = [RUNS[name] for name in names] + [run for name in names for run in variants(name)]
    outcomes = {run.name: best(run, results) for run in runs}

    def reading(run: TrainingRun, paper: Result) -> Reading | None:
        outcome = outcomes[run.name]
        errors = outcome.errors(paper.angle) if outcome else None
        if outcome is None or errors is None:
            return None
        passed = None if outcome.quick else passes(paper.test, errors.test)
        return Reading(run, errors, outcome, passed)

    def comparison(paper: Result) -> Comparison:
        run = RUNS[paper.recipe]
        tried = (reading(deviation, paper) for deviation in variants(paper.recipe))
        found = tuple(each for each in tried if each is not None)
        ours = reading(run, paper)
        full = ours is not None and not ours.outcome.quick
        return Comparison(paper, ours, found, "" if full else _under_way(run, paper, results))

    return tuple(comparison(paper) for paper in published)


def table(caption: str, comparisons: Sequence[Comparison]) -> Table | None:
    """One line a published result, one column a reading; None where nothing was run."""
    lines = [it for it in comparisons if it.ours or it.variants]
    if not lines:
        return None
    labels = list(dict.fromkeys(d.run.label for it in lines for d in it.variants))

    def cells(it: Comparison) -> tuple[str, ...]:
        by_label = {d.run.label: str(d) for d in it.variants}
        ours = (str(it.ours), str(it.ours.errors.last_ten)) if it.ours else ("–", "–")
        return (it.paper.name, str(it.paper), *ours, *(by_label.get(label, "") for label in labels))

    header = ("", "paper", "as released", "last ten epochs", *labels)
    caption += (
        ": test error after the last epoch in %, mean ± standard deviation over the networks "
        "(train error), and the test error averaged over the last ten epochs"
    )
    return Table(caption, header, tuple(cells(it) for it in lines))


def explanation(comparisons: Sequence[Comparison]) -> tuple[Text, ...]:
    """What deviates, and how a network that failed counts; nothing if there is neither."""
    runs = {d.run.label: d.run.reading for it in comparisons for d in it.variants}
    words = [f"`{label}`: {note}." for label, note in runs.items()]
    readings = [r for it in comparisons for r in (it.ours, *it.variants) if r is not None]
    if any(r.errors.frozen for r in readings):
        words.append("A network that became non-finite answers nothing and counts as guessing.")
    return (Text(" ".join(words)),) if words else ()
