"""Fig. "ep-to-cvf" (a): test error against the angle between Δ(tot) and −∇(tot) before training.

The paper sums t = 0 … K−1. Its released code omits t = 0 and the biases, and computes the gradient
after the second phase, at the weights that this phase has moved. This module computes both, and a
variant in between.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop import data as datasets
from eqprop.analysis import angle, total_update
from eqprop.engines.descent import resolve_rates
from eqprop.measured import Measured
from eqprop.network import Network
from eqprop.papers.continual_ep import training
from eqprop.papers.continual_ep.comparison import Comparison, Reproduction, compare
from eqprop.papers.continual_ep.psi import points
from eqprop.papers.continual_ep.published import (
    FIGURE_ANGLES,
    FULL_TABLE,
    NAMES,
    SAID_OF_ANGLES,
    named,
)
from eqprop.papers.continual_ep.sources import ANGLE_CODE
from eqprop.papers.continual_ep.training import RUNS, TrainingRun
from eqprop.report.blocks import Block, Chart, Line, Panel, Table, Text
from eqprop.report.item import Item, Order, Row
from eqprop.report.results import Completeness, Results, weakest
from eqprop.report.verdict import passes
from eqprop.runs import recipe as recipes
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import fitting, update_and_gradient
from eqprop.seeds import generator
from eqprop.types import Gradients
from eqprop.updates import Descent

PUBLISHED = tuple(result for result in FULL_TABLE if result.recipe != "c-ep-1h-fixed-beta")
NETWORKS = 10  # one minibatch each; the paper has five
TOTALS = {
    "text": "t = 0 … K−1, all parameters",
    "later": "t = 1 … K−1, weights only",
    "code": "t = 1 … K−1, weights only, ∇ after the second phase",
}
JUDGED = "code"  # the reading behind the published figure

Place = tuple[str, float | None]  # recipe, and initial Ψ if the weights are untied
Angles = dict[str, dict[str, dict[str, list[float]]]]  # {run: {initial Ψ: {total: degrees}}}


def before_training(
    recipe: Recipe, members: list[Member], data: datasets.Dataset
) -> dict[str, list[float]]:
    """Return {total: angles}, one angle per network, each on its own random minibatch."""
    net = recipe.network.build(members, torch.float64)
    orders = [
        torch.randperm(len(data.train), generator=generator(m.seed, "angles before training"))
        for m in members
    ]
    x, y = data.train.batch(torch.stack(orders)[:, : recipe.batch], torch.float64)
    return {
        total: [round(a, 3) for a in angle(ours, exact, net.ensemble).tolist()]
        for total, (ours, exact) in _totals(net, recipe, members, x, y).items()
    }


def _totals(
    net: Network, recipe: Recipe, members: list[Member], x: Tensor, y: Tensor
) -> dict[str, tuple[Gradients, Gradients]]:
    """Return {total: (total update, total gradient of BPTT)}, both uphill."""
    first = recipes.changed(recipe, {"nudged_steps": 1})
    ours, exact = update_and_gradient(net, recipe, members, x, y)
    ours_at_0, exact_at_0 = update_and_gradient(net, first, members, x, y)
    later = _weights(ours, ours_at_0)
    after = _weights(exact, exact_at_0)
    if recipe.learning_rule(members).continual:
        moved = copy.deepcopy(net)
        rates = resolve_rates(net, recipe.rates(members), recipe.update.frozen)
        Descent(moved, rates).move(ours)
        bptts = (recipe.rule.gradient(), first.rule.gradient())
        after = _weights(*(total_update(moved, bptt, x, y) for bptt in bptts))
    return {
        "text": (ours, exact),
        "later": (later, _weights(exact, exact_at_0)),
        "code": (later, after),
    }


def _weights(total: Gradients, at_0: Gradients) -> Gradients:
    """Return a total without biases and without t = 0."""
    return {name: total[name] - at_0[name] for name in total if name.endswith("weight")}


@dataclass(frozen=True)
class Found:
    completeness: Completeness
    angles: dict[str, dict[str, Measured]]  # {initial Ψ: {total: angle}}


@dataclass(frozen=True)
class Point:
    comparison: Comparison
    ours: Reproduction
    angles: dict[str, Measured]  # {total: angle}

    @property
    def place(self) -> Place:
        return self.comparison.paper.recipe, self.comparison.paper.angle

    @property
    def label(self) -> str:
        run = self.ours.run
        quick = ", quick" if self.ours.outcome.quick else ""
        return NAMES[run.recipe] + (f", {run.label}" if run.label else "") + quick


class EpToCvf(Item):
    name = "ep-to-cvf-a"
    title = "Test error against the angle between Δ(tot) and −∇(tot) before training"
    place = 'Fig. "ep-to-cvf" (a)'
    needs = "the runs of results-table, and 10 min on one core; quick 2 min"
    runs = tuple(dict.fromkeys(result.recipe for result in PUBLISHED))

    def run(self, order: Order) -> None:
        """Compute the angles first: they need no training."""
        self.measure(order)
        for name in self.runs:
            RUNS[name].run(order)

    def measure(self, order: Order) -> None:
        angles = self._stored(order.results, order.quick)
        for run in self._measured(order.results):
            if run.name not in angles:
                order.say(f"{self.name}: angles of {run.name} before training")
                angles[run.name] = self._angles(run, order)
                order.results.store(self.name, order.quick, {"angles": angles})

    def _measured(self, results: Results) -> Iterator[TrainingRun]:
        """Yield every recipe, and the trained variants with a source."""
        for name in self.runs:
            yield RUNS[name]
            yield from (
                run for run in training.variants(name) if run.source and training.best(run, results)
            )

    def _angles(self, run: TrainingRun, order: Order) -> dict[str, dict[str, list[float]]]:
        recipe = run.resolved(order.quick)
        if not order.quick:
            recipe = recipes.changed(recipe, {"seeds": NETWORKS})
        data = fitting(datasets.load(recipe.data.name, order.data), recipe)
        by_angle: dict[str, list[Member]] = {}
        for member in recipe.members():
            by_angle.setdefault(f"{member.angle:g}", []).append(member)
        return {psi: before_training(recipe, m, data) for psi, m in by_angle.items()}

    def completeness(self, results: Results) -> Completeness:
        found = self._found(results)
        if any(name not in found for name in self.runs):
            return "missing"
        measured = (found[name].completeness for name in self.runs)
        return weakest([training.completeness(self.runs, results), *measured])

    def rows(self, results: Results) -> tuple[Row, ...]:
        """Return the points that the text names."""
        found = self._found(results)
        return tuple(_row(place, said, found) for place, said in SAID_OF_ANGLES.items())

    def _found(self, results: Results) -> dict[str, Found]:
        """Return the measurements of each run, full before quick."""
        found: dict[str, Found] = {}
        for quick in (True, False):
            of: Completeness = "quick" if quick else "full"
            stored = self._stored(results, quick)
            found |= {run: Found(of, _means(by_psi)) for run, by_psi in stored.items()}
        return found

    def _stored(self, results: Results, quick: bool) -> Angles:
        found: Angles = (results.read(self.name, quick) or {}).get("angles", {})
        return found

    def blocks(self, results: Results) -> tuple[Block, ...]:
        points = self._points(results)
        if not points:
            return ()
        return self._chart(points), _agreement(points), _table(points)

    def _points(self, results: Results) -> list[Point]:
        """Return the points with both a measured angle and a training run."""
        runs, found = self._found(results), []
        for comparison in compare(PUBLISHED, results):
            for ours in (comparison.ours, *comparison.variants):
                psi = f"{comparison.paper.angle or 0.0:g}"
                if ours and ours.run.name in runs:
                    angles = runs[ours.run.name].angles.get(psi)
                    found += [Point(comparison, ours, angles)] if angles else []
        return found

    def _chart(self, points: list[Point]) -> Chart:
        inset = [p for p in points if (p.comparison.paper.angle or 0.0) <= 90]
        axes = "angle between Δ(tot) and −∇(tot) (°)", "test error (%)"
        panels = (
            Panel("all", *axes, _lines(points), y_log=True),
            Panel("initial Ψ(θ_f, θ_b) ≤ 90°", *axes, _lines(inset)),
        )
        return Chart(self.name, f"{self.title}; the total is {TOTALS[JUDGED]}", panels)


def _row(place: Place, said: str, found: Mapping[str, Found]) -> Row:
    recipe, psi = place
    paper, notes = FIGURE_ANGLES[place], [f"the text: {said}"]
    ours, passed = None, None
    if recipe in found:
        angles = found[recipe].angles[f"{psi or 0.0:g}"]
        ours = _degrees(angles[JUDGED])
        passed = passes(paper, angles[JUDGED]) if found[recipe].completeness == "full" else None
        notes += [f"{TOTALS[t]}: {_degrees(angles[t])}" for t in TOTALS if t != JUDGED]
    return Row(
        named(recipe, psi),
        _degrees(paper),
        ours,
        passed,
        note="; ".join(notes),
        reading=f"{TOTALS[JUDGED]}; {RUNS[recipe].reading}",
        source=ANGLE_CODE,
    )


def _degrees(angle: Measured) -> str:
    return f"{angle:.1f}°"


def _means(by_psi: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, Measured]]:
    return {
        psi: {total: Measured.of(each) for total, each in by_total.items()}
        for psi, by_total in by_psi.items()
    }


def _lines(chosen: list[Point]) -> tuple[Line, ...]:
    """Return the paper in grey, then one colour per training run."""
    paper = {p.place: (FIGURE_ANGLES[p.place].mean, p.comparison.paper.test) for p in chosen}
    ours: dict[str, list[tuple[float, Measured]]] = {}
    for point in chosen:
        place = point.angles[JUDGED].mean, point.ours.errors.test
        ours.setdefault(point.label, []).append(place)
    lines = (points(label, places, color) for color, (label, places) in enumerate(ours.items()))
    return points("paper", list(paper.values())), *lines


def _agreement(chosen: list[Point]) -> Text:
    """Count the points per run that agree with the figure."""
    found: dict[str, list[bool]] = {}
    for point in chosen:
        run, paper = point.ours.run, FIGURE_ANGLES[point.place]
        near = passes(paper, point.angles[JUDGED])
        found.setdefault(run.label or "the recipes", []).append(near)
    counts = (f"{label} {sum(near)} of {len(near)}" for label, near in found.items())
    return Text(f"Points at the angle of the paper's figure, by its rule: {', '.join(counts)}.")


def _table(chosen: list[Point]) -> Table:
    rows = []
    for point in chosen:
        psi = point.comparison.paper.angle
        name = point.label + ("" if psi is None else f", Ψ = {psi:g}°")
        angles = (_degrees(point.angles[total]) for total in TOTALS)
        test = str(point.ours.errors.test)
        rows.append((name, _degrees(FIGURE_ANGLES[point.place]), *angles, test))
    header = ("", "the paper's figure", *TOTALS.values(), "test error (%)")
    return Table("Angles before training, and the test error after it", header, tuple(rows))


ITEMS = (EpToCvf(),)
