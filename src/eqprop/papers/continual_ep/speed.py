"""Training times of the paper and ours."""

from __future__ import annotations

from eqprop.papers.continual_ep import training
from eqprop.papers.continual_ep.published import NAMES, TITAN_SECONDS
from eqprop.papers.continual_ep.trained import Trained
from eqprop.papers.continual_ep.training import Outcome
from eqprop.report.blocks import Block, Table
from eqprop.report.item import Row
from eqprop.report.results import Results

CAPTION = (
    "Time to train, a Titan RTX in the paper; ours without starting and compiling, beside whatever "
    "else ran on the machine"
)


class Speed(Trained):
    def __init__(self) -> None:
        super().__init__(
            "speed",
            "Time to train",
            'section "Discussion"',
            "the runs of results-table with C-EP and C-VF; quick 2 min on two cores",
            ("c-ep-1h", "c-vf-1h", "c-ep-2h", "c-vf-2h"),
        )

    def rows(self, results: Results) -> tuple[Row, ...]:
        """Return the times. They have no verdict, since the machines differ."""
        return tuple(self._row(name, results) for name in self.runs)

    def _row(self, name: str, results: Results) -> Row:
        outcome = training.best(training.RUNS[name], results)
        paper = f"{clock(_paper(name))} a network"
        if outcome is None:
            return Row(NAMES[name], paper, None, None)
        note = (
            f"networks: {_networks(outcome)}, in {clock(outcome.summary['wall_seconds'])}, "
            f"{_machine(outcome)}"
        )
        if outcome.quick:
            recipe = outcome.recipe
            note = f"quick: {recipe.epochs} epochs of {recipe.data.train_samples} samples; {note}"
        return Row(NAMES[name], paper, f"{clock(_each(outcome))} a network", None, note)

    def blocks(self, results: Results) -> tuple[Block, ...]:
        found = [training.best(training.RUNS[name], results) for name in self.runs]
        rows = tuple(
            (
                NAMES[outcome.run.recipe],
                _networks(outcome),
                clock(outcome.summary["wall_seconds"]),
                clock(_each(outcome)),
                f"{_paper(outcome.run.recipe) / _each(outcome):.0f}×",
                _machine(outcome),
            )
            for outcome in found
            if outcome and not outcome.quick
        )
        header = ("", "networks", "wall time", "a network", "the paper's time / ours", "on")
        return (Table(CAPTION, header, rows),) if rows else ()


def _paper(recipe: str) -> float:
    return TITAN_SECONDS[len(training.RUNS[recipe].resolved(quick=False).network.layers) - 2]


def _each(outcome: Outcome) -> float:
    seconds: float = outcome.summary["wall_seconds"]
    return seconds / len(outcome.recipe.members())


def _networks(outcome: Outcome) -> str:
    all_ = len(outcome.recipe.members())
    parts = 0 if outcome.quick else len(outcome.run.parts)
    return f"{all_}, {all_ // parts} at a time" if parts else str(all_)


def _machine(outcome: Outcome) -> str:
    machine = outcome.summary["machine"]
    return str(machine.get("gpu") or f"{machine['cores']} cores, {machine['processor']}")


def clock(seconds: float) -> str:
    """Format a time: 2 h 39 min, 7 min 4 s, 40 s, 0.25 s."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


ITEMS = (Speed(),)
