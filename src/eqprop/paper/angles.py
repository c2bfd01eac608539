"""Fig. "ep-to-cvf" (a): test error against the angle between Δ(tot) and −∇(tot) before training.

The paper sums t = 0 … K−1; its released code leaves t = 0 and the biases out. Both are computed,
and what lies between them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch

from eqprop import data as datasets
from eqprop.analysis import angle
from eqprop.costs import SquaredError
from eqprop.paper import training
from eqprop.paper.blocks import Block, Chart, Line, Panel, Table
from eqprop.paper.comparison import MARKS, Comparison, Reading, compare
from eqprop.paper.item import Item, Order, Results, Row, State
from eqprop.paper.psi import points
from eqprop.paper.published import DEEP_ANGLE, FULL_TABLE, LEFTMOST_ANGLE, NAMES, RIGHTMOST_ANGLE
from eqprop.paper.training import RUNS, TrainingRun, measured
from eqprop.paper.verdict import Measured
from eqprop.runs.files import write_whole
from eqprop.runs.machine import describe
from eqprop.runs.recipe import Member, Recipe
from eqprop.runs.training import fitting, update_and_gradient
from eqprop.seeds import generator

PUBLISHED = tuple(result for result in FULL_TABLE if result.recipe != "c-ep-1h-fixed-beta")
MINIBATCHES = 3
ROUNDED = 5.0  # "∼20°" is read as a number rounded to tens
TOTALS = {
    "text": "t = 0 … K−1, all parameters",
    "weights": "t = 0 … K−1, weights only",
    "code": "t = 1 … K−1, weights only, as released",
}
STATES: dict[State, bool] = {"quick": True, "full": False}

Angles = dict[str, dict[str, dict[str, list[float]]]]  # run -> initial Ψ -> total -> degrees


def before_training(
    recipe: Recipe, members: list[Member], data: datasets.Dataset, minibatches: int
) -> dict[str, list[float]]:
    """The angle of every network on its own random minibatches, for either meaning of the total."""
    net = recipe.network(members, torch.float64)
    found: dict[str, list[float]] = {total: [] for total in TOTALS}
    orders = torch.stack(
        [
            torch.randperm(len(data.train), generator=generator(m.seed, "angles before training"))
            for m in members
        ]
    )
    for m in range(minibatches):
        index = orders[:, m * recipe.batch : (m + 1) * recipe.batch]
        x, y = data.train.batch(index, torch.float64)
        pair = update_and_gradient(net, recipe, members, x, y, SquaredError())
        first = replace(recipe, nudged_steps=1)
        at_0 = update_and_gradient(net, first, members, x, y, SquaredError())
        names = [name for name in pair[0] if name.endswith("weight")]
        weights = [{name: total[name] for name in names} for total in pair]
        later = [
            {name: total[name] - start[name] for name in names}
            for total, start in zip(pair, at_0, strict=True)
        ]
        for key, (ours, exact) in zip(TOTALS, (pair, weights, later), strict=True):
            found[key] += [round(a, 3) for a in angle(ours, exact, net.ensemble).tolist()]
    return found


@dataclass(frozen=True)
class Found:
    state: State
    angles: dict[str, dict[str, Measured]]  # by initial Ψ, and by the meaning of the total


@dataclass(frozen=True)
class Point:
    comparison: Comparison
    reading: Reading
    angles: dict[str, Measured]  # by the meaning of the total

    @property
    def label(self) -> str:
        run = self.reading.run
        quick = ", quick" if self.reading.outcome.quick else ""
        return NAMES[run.recipe] + (f", {run.label}" if run.label else "") + quick


class EpToCvf(Item):
    name = "ep-to-cvf-a"
    title = "Test error against the angle between Δ(tot) and −∇(tot) before training"
    place = 'Fig. "ep-to-cvf" (a)'
    needs = "the runs of results-table, and 5 min on one core; quick 2 min"
    runs = tuple(dict.fromkeys(result.recipe for result in PUBLISHED))

    def run(self, order: Order) -> None:
        """Angles come first: they need no training, and may be all that there is time for."""
        self.measure(order)
        for name in self.runs:
            training.train(RUNS[name], order)

    def measure(self, order: Order) -> None:
        angles: Angles = (order.results.read(self.name, order.quick) or {}).get("angles", {})
        for run in self._measured(order.results):
            if run.name not in angles:
                order.say(f"{self.name}: angles of {run.name} before training")
                angles[run.name] = self._angles(run, order)
                self._store(angles, order)

    def _measured(self, results: Results) -> Iterator[TrainingRun]:
        """Every recipe, and the deviations that were trained."""
        for name in self.runs:
            yield RUNS[name]
            yield from (run for run in training.deviations(name) if training.best(run, results))

    def _angles(self, run: TrainingRun, order: Order) -> dict[str, dict[str, list[float]]]:
        recipe = run.resolved(order.quick)
        data = fitting(datasets.load(recipe.data, order.data), recipe)
        by_angle: dict[str, list[Member]] = {}
        for member in recipe.members():
            by_angle.setdefault(f"{member.angle:g}", []).append(member)
        minibatches = 1 if order.quick else MINIBATCHES
        return {a: before_training(recipe, m, data, minibatches) for a, m in by_angle.items()}

    def _store(self, angles: Angles, order: Order) -> None:
        where = {**describe("cpu"), "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        folder = order.results.folder(order.quick)
        folder.mkdir(parents=True, exist_ok=True)
        found = {"machine": where, "quick": order.quick, "angles": angles}
        text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        write_whole(folder / f"{self.name}.json", f"{text}\n".encode())

    def state(self, results: Results) -> State:
        states = {training.state(self.runs, results)}
        found = self._found(results)
        states |= {found[name].state if name in found else "missing" for name in self.runs}
        return next(weakest for weakest in ("missing", "quick", "full") if weakest in states)

    def rows(self, results: Results) -> tuple[Row, ...]:
        found = self._found(results)

        def row(name: str, paper: float, end: Callable[..., float], *runs: str) -> Row:
            """The paper's text is judged; what its released code gives is noted."""
            chosen = [found[run] for run in runs if run in found]
            if len(chosen) < len(runs):
                return Row(name, f"∼{paper:g}°", None, None)
            means = [total for it in chosen for total in it.angles.values()]
            ours = {total: end(mean[total].mean for mean in means) for total in TOTALS}
            quick = any(it.state == "quick" for it in chosen)
            passed = {t: None if quick else abs(a - paper) <= ROUNDED for t, a in ours.items()}
            note = f"{TOTALS['code']}: {ours['code']:.1f}°{MARKS[passed['code']]}"
            return Row(name, f"∼{paper:g}°", f"{ours['text']:.1f}°", passed["text"], note)

        return (
            row("EP, the leftmost point", LEFTMOST_ANGLE, min, "ep-1h", "ep-2h"),
            row("C-EP-2h", DEEP_ANGLE, max, "c-ep-2h"),
            row("C-VF, the rightmost point", RIGHTMOST_ANGLE, max, "c-vf-1h", "c-vf-2h"),
        )

    def _found(self, results: Results) -> dict[str, Found]:
        """What was measured of each run, full before quick."""
        found: dict[str, Found] = {}
        for state, quick in STATES.items():
            stored: Angles = (results.read(self.name, quick) or {}).get("angles", {})
            found |= {run: Found(state, _means(by_psi)) for run, by_psi in stored.items()}
        return found

    def blocks(self, results: Results) -> tuple[Block, ...]:
        points = self._points(results)
        if not points:
            return ()
        return self._chart("text", points), self._chart("code", points), _table(points)

    def _points(self, results: Results) -> list[Point]:
        """What was both measured and trained."""
        runs, found = self._found(results), []
        for comparison in compare(PUBLISHED, results):
            for reading in (comparison.ours, *comparison.deviations):
                psi = f"{comparison.paper.angle or 0.0:g}"
                if reading and reading.run.name in runs:
                    angles = runs[reading.run.name].angles.get(psi)
                    found += [Point(comparison, reading, angles)] if angles else []
        return found

    def _chart(self, total: str, points: list[Point]) -> Chart:
        inset = [p for p in points if (p.comparison.paper.angle or 0.0) <= 90]
        axes = "angle between Δ(tot) and −∇(tot) (°)", "test error (%)"
        caption = f"{self.title}; the total is {TOTALS[total]}. The paper's errors at our angles"
        panels = (
            Panel("all", *axes, _lines(total, points), y_log=True),
            Panel("initial Ψ(θ_f, θ_b) ≤ 90°", *axes, _lines(total, inset)),
        )
        return Chart(self.name + ("" if total == "text" else f"-{total}"), caption, panels)


def _means(by_psi: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, Measured]]:
    return {
        psi: {total: measured(torch.tensor(each)) for total, each in by_total.items()}
        for psi, by_total in by_psi.items()
    }


def _lines(total: str, chosen: list[Point]) -> tuple[Line, ...]:
    """The paper's errors in grey, then a colour for each way to train."""
    paper = {id(p.comparison): (p.angles[total].mean, p.comparison.paper.test) for p in chosen}
    ours: dict[str, list[tuple[float, Measured]]] = {}
    for point in chosen:
        place = point.angles[total].mean, point.reading.errors.test
        ours.setdefault(point.label, []).append(place)
    lines = (points(label, places, color) for color, (label, places) in enumerate(ours.items()))
    return points("paper", list(paper.values())), *lines


def _table(chosen: list[Point]) -> Table:
    rows = []
    for point in chosen:
        psi = point.comparison.paper.angle
        name = point.label + ("" if psi is None else f", Ψ = {psi:g}°")
        angles = (f"{point.angles[t].mean:.1f} ± {point.angles[t].std or 0:.1f}" for t in TOTALS)
        rows.append((name, *angles, str(point.reading.errors.test)))
    header = ("", *(f"{words} (°)" for words in TOTALS.values()), "test error (%)")
    return Table("Angles before training, and the test error after it", header, tuple(rows))


ITEMS = (EpToCvf(),)
