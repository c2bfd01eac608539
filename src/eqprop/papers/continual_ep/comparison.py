"""Comparison of a published training result with our run, and with its variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqprop.papers.continual_ep.published import NAMES, Result
from eqprop.papers.continual_ep.training import (
    RUNS,
    Errors,
    Outcome,
    TrainingRun,
    best,
    variants,
)
from eqprop.report.blocks import Table, Text
from eqprop.report.item import Row
from eqprop.report.results import Results
from eqprop.report.verdict import miss, passes

MARKS = {True: " ✓", False: " ✗", None: " (quick)"}  # for the run with the verdict
WORDS = {True: ", agrees", False: ", differs", None: " (quick)"}  # for a variant, without verdict


@dataclass(frozen=True)
class Reproduction:
    """The result of one run for a published result."""

    run: TrainingRun
    errors: Errors
    outcome: Outcome
    within: bool | None  # whether it is within the tolerance; None for a quick run

    def __str__(self) -> str:
        gone = f", {self.errors.non_finite} non-finite" if self.errors.non_finite else ""
        return f"{self.errors}{gone}{(WORDS if self.run.label else MARKS)[self.within]}"


@dataclass(frozen=True)
class Comparison:
    paper: Result
    ours: Reproduction | None  # the recipe itself, which gets the verdict
    variants: tuple[Reproduction, ...]
    progress: str  # progress of an incomplete run

    def row(self) -> Row:
        run = RUNS[self.paper.recipe]
        ours, within = (str(self.ours.errors), self.ours.within) if self.ours else (None, None)
        notes = self._notes(self.ours) if self.ours else [self.progress]
        if not within:
            notes += [f"{variant.run.label}: {variant}" for variant in self.variants]
        note = "; ".join(note for note in notes if note)
        return Row(self.paper.name, str(self.paper), ours, within, note, run.reading, run.source)

    def _notes(self, ours: Reproduction) -> list[str]:
        recipe, errors, notes = ours.outcome.recipe, ours.errors, []
        if ours.outcome.quick:
            notes += [
                f"quick: {errors.test.n} networks, {recipe.epochs} epochs of "
                f"{recipe.data.train_samples} samples",
                self.progress,
            ]
        if errors.non_finite:
            notes.append(f"{errors.non_finite} of {errors.test.n} networks became non-finite")
        if ours.within is False:
            notes.append(miss(self.paper.test, errors.test))
            if passes(self.paper.test, errors.last_ten):
                notes.append(f"the mean of the last ten epochs passes: {errors.last_ten}")
        return notes


def _under_way(run: TrainingRun, paper: Result, results: Results) -> str:
    """Describe the progress of the run, or of its part with this angle."""
    parts = (piece for piece in run.pieces if paper.angle in piece.overrides["angle"])
    done, of = next(parts, run).progress(results)
    return f"at epoch {done} of {of}" if 0 < done < of else ""


def compare(published: Sequence[Result], results: Results) -> tuple[Comparison, ...]:
    names = dict.fromkeys(result.recipe for result in published)
    runs = [RUNS[name] for name in names] + [run for name in names for run in variants(name)]
    outcomes = {run.name: best(run, results) for run in runs}

    def reproduction(run: TrainingRun, paper: Result) -> Reproduction | None:
        outcome = outcomes[run.name]
        errors = outcome.errors(paper.angle) if outcome else None
        if outcome is None or errors is None:
            return None
        within = None if outcome.quick else passes(paper.test, errors.test)
        return Reproduction(run, errors, outcome, within)

    def comparison(paper: Result) -> Comparison:
        run = RUNS[paper.recipe]
        tried = (reproduction(variant, paper) for variant in variants(paper.recipe))
        found = tuple(each for each in tried if each is not None)
        ours = reproduction(run, paper)
        full = ours is not None and not ours.outcome.quick
        return Comparison(paper, ours, found, "" if full else _under_way(run, paper, results))

    return tuple(comparison(paper) for paper in published)


def table(caption: str, comparisons: Sequence[Comparison]) -> Table | None:
    """Return a table, one line per published result, one column per run; None without runs."""
    lines = [it for it in comparisons if it.ours or it.variants]
    if not lines:
        return None
    labels = list(dict.fromkeys(v.run.label for it in lines for v in it.variants))

    def cells(it: Comparison) -> tuple[str, ...]:
        by_label = {v.run.label: str(v) for v in it.variants}
        ours = (str(it.ours), str(it.ours.errors.last_ten)) if it.ours else ("–", "–")
        return (it.paper.name, str(it.paper), *ours, *(by_label.get(label, "") for label in labels))

    header = ("", "paper", "eqprop", "last ten epochs", *labels)
    caption += (
        ": test error after the last epoch in %, mean ± standard deviation over the networks "
        "(train error), and the test error averaged over the last ten epochs"
    )
    return Table(caption, header, tuple(cells(it) for it in lines))


def explanation(comparisons: Sequence[Comparison]) -> tuple[Text, ...]:
    """Explain every reading with its source, and how failed networks count."""
    found = [r for it in comparisons for r in (it.ours, *it.variants) if r is not None]
    runs = dict.fromkeys(r.run for r in found)
    words = list(dict.fromkeys(f"{_heading(run)}: {described(run)}." for run in runs))
    if any(r.errors.non_finite for r in found):
        words.append("A network that became non-finite answers nothing and counts as guessing.")
    return (Text(" ".join(words)),) if words else ()


def _heading(run: TrainingRun) -> str:
    return f"`{run.label}`" if run.label else NAMES[run.recipe]


def described(run: TrainingRun) -> str:
    """Describe a reading and its source."""
    return f"{run.reading} ({run.source or 'found by trial, no source'})"
