"""Comparison of the updates of C-VF: test error against Ψ with each, and C-EP as the baseline.

The paper has only one update, so there is no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping

from eqprop.papers.continual_ep import training
from eqprop.papers.continual_ep.psi import BESIDE, points
from eqprop.papers.continual_ep.published import ANGLES, NAMES
from eqprop.papers.continual_ep.trained import Trained
from eqprop.papers.continual_ep.training import RUNS, Errors, Outcome
from eqprop.report.blocks import Block, Chart, Line, Panel, Table
from eqprop.report.item import Row
from eqprop.report.results import Results

DEPTHS = ("1h", "2h")
UPDATES = {"none, in turn": "-in-turn", "own": "", "full": "-full"}  # {update: suffix of its run}


class UpdateSlopes(Trained):
    def __init__(self) -> None:
        runs = [f"c-vf-{depth}{end}" for depth in DEPTHS for end in UPDATES.values()]
        super().__init__(
            "update-slopes",
            "Which update: test error of C-VF with each, and of C-EP",
            "beyond the paper: which update to use",
            "six runs of 45 networks, 2 min each with one hidden layer and 30 min with two, on an "
            "H200; quick 3 min on two cores",
            [*runs, *(f"c-ep-{depth}" for depth in DEPTHS)],
        )

    def rows(self, results: Results) -> tuple[Row, ...]:
        """Return the best and the worst Ψ of each update, without verdict."""
        return tuple(
            _row(f"{NAMES[f'c-vf-{depth}']}, {update}", found.get(update), found.get("C-EP"))
            for depth in DEPTHS
            for found in [_outcomes(depth, results)]
            for update in UPDATES
        )

    def blocks(self, results: Results) -> tuple[Block, ...]:
        by_depth = {depth: _outcomes(depth, results) for depth in DEPTHS}
        found = {depth: it for depth, it in by_depth.items() if it.keys() & UPDATES.keys()}
        tables = [_table(depth, outcomes) for depth, outcomes in found.items()]
        panels = tuple(_panel(depth, outcomes) for depth, outcomes in found.items())
        caption = (
            "Test error of C-VF against the initial Ψ with each update, mean ± standard deviation "
            "of five networks; the line is C-EP, whose weights are tied"
        )
        return (*tables, Chart(self.name, caption, panels)) if panels else ()


def _outcomes(depth: str, results: Results) -> dict[str, Outcome]:
    """Return the existing outcomes, by update, and that of C-EP."""
    runs = {update: f"c-vf-{depth}{end}" for update, end in UPDATES.items()}
    runs["C-EP"] = f"c-ep-{depth}"
    found = {name: training.best(RUNS[run], results) for name, run in runs.items()}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _by_angle(outcome: Outcome) -> dict[float, Errors]:
    found = {angle: outcome.errors(angle) for angle in ANGLES}
    return {angle: errors for angle, errors in found.items() if errors is not None}


def _row(name: str, outcome: Outcome | None, tied: Outcome | None) -> Row:
    row = f"{name}: test error (%), best to worst Ψ"
    line = tied.errors() if tied else None
    beside = "–" if line is None else f"C-EP: {line.test}"
    if outcome is None:
        return Row(row, "–", None, None, beside)
    errors = _by_angle(outcome)
    ranked = sorted(errors, key=lambda angle: errors[angle].test.mean)
    ours = f"{errors[ranked[0]].test.mean:.2f} to {errors[ranked[-1]].test.mean:.2f}"
    notes = [f"quick: {len(errors)} angles"] if outcome.quick else []
    notes += [f"worst at Ψ = {ranked[-1]:g}°", beside]
    return Row(row, "–", ours, None, "; ".join(notes))


def _table(depth: str, found: Mapping[str, Outcome]) -> Table:
    errors = {name: _by_angle(found[name]) for name in UPDATES if name in found}
    quick = {name: " (quick)" if found[name].quick else "" for name in found}

    def cell(name: str, angle: float) -> str:
        return f"{errors[name][angle]}{quick[name]}" if angle in errors.get(name, {}) else "–"

    caption = f"{NAMES[f'c-vf-{depth}']}: test error in %, mean ± standard deviation (train error)"
    if "C-EP" in found:
        caption += f"; {NAMES[f'c-ep-{depth}']}: {found['C-EP'].errors()}{quick['C-EP']}"
    rows = tuple((f"{angle:g}°", *(cell(name, angle) for name in UPDATES)) for angle in ANGLES)
    return Table(caption, ("Ψ", *UPDATES), rows)


def _panel(depth: str, found: Mapping[str, Outcome]) -> Panel:
    lines = [
        points(
            name + (", quick" if found[name].quick else ""),
            [(angle, errors.test) for angle, errors in _by_angle(found[name]).items()],
            color,
            BESIDE * color,
        )
        for color, name in enumerate(UPDATES)
        if name in found
    ]
    if "C-EP" in found:
        lines.append(_level(found["C-EP"]))
    axes = "initial Ψ(θ_f, θ_b) (°)", "test error (%)"
    return Panel(NAMES[f"c-vf-{depth}"], *axes, tuple(lines), y_log=True)


def _level(outcome: Outcome) -> Line:
    """Return a line with the same error at every Ψ."""
    errors = outcome.errors()
    assert errors is not None
    label = "C-EP, tied" + (", quick" if outcome.quick else "")
    ends = ANGLES[0], ANGLES[-1]
    return Line.measured(label, ends, (errors.test, errors.test), "dashed", len(UPDATES))


ITEMS = (UpdateSlopes(),)
