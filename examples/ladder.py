"""Print the tables of docs/ladder.md and draw its figure: rules and settings on CIFAR-10.

It reads all run folders below a folder: results/ladder, or that of your own sweep. There is a table
for each fate of a rung. The errors of a rung that has been stopped are those of its last epoch so
far. The figure is ladder.svg in this folder, or with --update-docs that of the page.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from sweep_page import SweepPage, once

from eqprop.measured import Measured
from eqprop.report import markdown, svg
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.runs.figures import series
from eqprop.runs.recipe import Recipe
from eqprop.sweeps.table import Row, Table

PAGE = SweepPage("ladder")
RULES = {"ep": "EP", "continual-ep": "C-EP", "vf": "VF"}
LOSSES = {"output-layer": "squared error", "cross-entropy": "cross-entropy"}
SETTINGS = ("task", "rung", "rule", "nudging", "loss", "order", "sweeps", "weights", "η")
RANGE = (8.0, 100.0)  # of the errors in every panel
# {title of a panel: rungs with solid lines, and rungs with dashed ones}
COMPARISONS = {
    "Nudging, squared error": (
        ("ep-centred", "ep-random-sign", "ep-one-sided", "ep-negative"),
        ("centred", "random-sign", "one-sided", "random-sign-settled"),
    ),
    "Nudging, cross-entropy": (
        (
            *("ep-centred-softmax", "ep-random-sign-softmax", "ep-one-sided-softmax"),
            *("ep-negative-softmax", "ep-centred-softmax-faster-readout"),
            "ep-random-sign-softmax-faster-readout",
        ),
        (
            *("centred-softmax", "random-sign-softmax", "one-sided-softmax"),
            "centred-softmax-slower",
        ),
    ),
    "EP and C-EP as η_tiny shrinks": (
        ("ep-negative", "c-ep-share-0.0001", "c-ep-share-0.001", "c-ep-share-0.01"),
        (),
    ),
    "EP and C-EP as η shrinks, plain descent": (
        ("ep-eta-0.3", "ep-gain-0.25"),
        ("c-ep-eta-0.3", "c-ep-gain-0.25"),
    ),
    "Symmetric and asymmetric weights": (
        ("vf-centred", "vf-untied-45", "vf-kolen-pollack-45"),
        ("vf-tied", "vf-untied", "vf-kolen-pollack"),
    ),
    "Order of the layers, number of sweeps": (
        ("ep-centred", "at-once"),
        ("centred", "half-sweeps"),
    ),
}


def settings(recipe: Recipe) -> tuple[str, ...]:
    """Return the cells that say what a rung is."""
    network, update, beta = recipe.network, recipe.update, recipe.members()[0].beta
    assert recipe.nudging is not None
    assert beta is not None
    weights = "tied" if network.tied else f"untied, {network.angle:g}°"
    rates = update.settings[0]
    share = recipe.rule.rescale
    relaxed = f", ω = {network.relaxation:g}" * (network.relaxation != 1)
    steps_per_sweep = 2 if recipe.rule.in_turn else 1
    eta = f"{rates[0]:g}" if len(set(rates)) == 1 else f"{rates[0]:g} to {rates[-1]:g}"
    return (
        recipe.name,
        RULES[recipe.rule.name] + ("" if share is None else f", share {share:g}"),
        recipe.nudging.kind + ", β < 0" * (beta < 0),
        LOSSES[network.readout],
        ("in turn" if recipe.rule.in_turn else "at once") + relaxed,
        " + ".join(
            f"{steps // steps_per_sweep}"
            for steps in (recipe.rule.free_steps, recipe.rule.nudged_steps)
        ),
        weights + ", shared update" * network.shared_update,
        eta + f", momentum {update.momentum:g}" * bool(update.momentum),
    )


class Fate(Enum):
    """What has become of a rung, and the title of the table that has it."""

    TRAINED = "Trained to the end"
    FAILED = "Became non-finite"
    STOPPED = "Stopped before the end"
    WAITING = "Not trained yet"


def fate(recipe: Recipe, networks: Sequence[Row]) -> Fate:
    """Return what has become of the networks of a rung."""
    if not networks:
        return Fate.WAITING
    if any(row["non_finite"] for row in networks):
        return Fate.FAILED
    return Fate.TRAINED if _epochs(networks) == recipe.epochs else Fate.STOPPED


def results(recipe: Recipe, networks: Sequence[Row]) -> dict[str, str]:
    """Return the cells that say what a rung came to, by column; none if it has not begun."""
    became, cells = fate(recipe, networks), {}
    if became is Fate.WAITING:
        return cells
    if became is not Fate.FAILED:
        for split in ("test", "train"):
            error = Measured.of(row[f"final_{split}_error"] for row in networks)
            cells[f"{split} error, %"] = str(error)
    epochs = _epochs(networks)
    cells["epochs"] = f"{epochs} of {recipe.epochs}" if became is Fate.STOPPED else f"{epochs}"
    seconds = Measured.of(row["seconds"] / row["epochs"] for row in networks if row["seconds"])
    cells["s per epoch"] = f"{seconds.mean:.1f}" if seconds.n else "–"
    return cells


def _epochs(networks: Sequence[Row]) -> int:
    return min(row["epochs"] for row in networks)


def tables(runs: Table) -> str:
    """Return one row per rung, in a table for each fate, in Markdown."""
    found: dict[Fate, list[tuple[str, ...]]] = {it: [] for it in Fate}
    columns: dict[Fate, tuple[str, ...]] = {}
    for task, recipe in enumerate(PAGE.recipes.values(), start=1):
        networks = once([row for row in runs.rows if row["recipe"] == recipe.name])
        cells, became = results(recipe, networks), fate(recipe, networks)
        found[became].append((str(task), *settings(recipe), *cells.values()))
        columns[became] = (*SETTINGS, *cells)
    return "\n".join(
        f"{it.value}:\n\n{markdown.table(columns[it], rows)}" for it, rows in found.items() if rows
    )


def lines(runs: Table, solid: tuple[str, ...], dashed: tuple[str, ...]) -> Iterator[Line]:
    """Yield the test error over the epochs of each of these rungs that has begun."""
    metrics = {folder.recipe().name: folder.metrics() for folder in runs.folders}
    for names, style in ((solid, "solid"), (dashed, "dashed")):
        for color, name in enumerate(names):
            if name in metrics:
                errors = series(metrics[name], "test_error").tolist()
                yield Line.over_epochs(name, errors, style, color)


def chart(runs: Table) -> Chart | None:
    """Return one panel per comparison; None if no rung has begun."""
    panels = tuple(
        Panel(title, "epoch", "test error (%)", tuple(lines(runs, *names)), False, True, RANGE)
        for title, names in COMPARISONS.items()
    )
    caption = "Test error on CIFAR-10 over the epochs, one network per line"
    return Chart("ladder", caption, panels) if any(panel.lines for panel in panels) else None


def main() -> None:
    options = PAGE.options()
    runs = PAGE.runs(options.folder)
    text, drawn = tables(runs), chart(runs)
    print(text, end="")
    if drawn is not None:
        folder = PAGE.root / "docs" / "figures" if options.update_docs else Path()
        (folder / f"{drawn.name}.svg").write_text(svg.figure(drawn), "utf-8")
        text += f"\n{markdown.block(drawn, 'figures')}"
    if options.update_docs:
        PAGE.update(text)


if __name__ == "__main__":
    main()
