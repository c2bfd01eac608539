"""Why the released C-VF with one hidden layer fails: what diverges, when and how, and the cure.

Without nudging, hidden and output layers see only each other's previous state. So a synchronous
free phase is two independent sequences: h_0 → o_1 → h_2 → … and o_0 → h_1 → o_2 → … Updating the
layers in turn leaves only the second. These are our own results, without a verdict: the paper does
not discuss them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eqprop import data as datasets
from eqprop import runs
from eqprop.dynamics import relax
from eqprop.network import Network
from eqprop.papers.continual_ep import training
from eqprop.papers.continual_ep.comparison import compare
from eqprop.papers.continual_ep.psi import ours_by_run, points
from eqprop.papers.continual_ep.published import FULL_TABLE
from eqprop.papers.continual_ep.training import RUNS, Outcome, TrainingRun
from eqprop.report.blocks import Block, Chart, Line, Panel, Table, Text
from eqprop.report.computed import Computed
from eqprop.report.item import Order, Row
from eqprop.report.results import Completeness, Results, weakest
from eqprop.runs import UserError, figures
from eqprop.runs.evaluation import UNSETTLED
from eqprop.runs.training import fitting
from eqprop.seeds import generator
from eqprop.types import State

RECIPE = "c-vf-1h"
COMPARED = tuple(f"{RECIPE}-{label}" for label in ("as-released", "in-turn", "no-bias"))
PUBLISHED = tuple(result for result in FULL_TABLE if result.recipe == RECIPE)
HEALTHY, FAILED = 10.0, 20.0  # test error in %: first below HEALTHY, then above FAILED = diverged
SHUFFLES = 10000
LONG = 1000  # steps after which every sequence that settles has settled
STILL = 1e-5  # change within the rounding error of float32
SHOWN = 60  # steps of the trajectory

# The last epoch before the first of the 45 networks diverges is 57.
_BEFORE = {"angle": 0.0, "seeds": 2, "epochs": 55}
SNAPSHOTS = tuple(
    replace(run, name=f"{run.name}-snapshot", overrides={**run.overrides, **_BEFORE})
    for run in (RUNS[COMPARED[0]], RUNS[COMPARED[2]])
)


def divergence(test: Tensor) -> Tensor:
    """Return the epoch at which each network diverged, NaN if it did not; `test` has the errors,
    [epochs, networks].
    """
    learned = (test < HEALTHY).cumsum(0) > 0
    failed = (test > FAILED) & learned
    first = failed.int().argmax(0) + 1.0
    return torch.where(failed.any(0), first, torch.nan)


def chance(values: Tensor) -> float:
    """Return how often shuffled angles have means as far apart as the true angles.

    `values` is [angles, seeds]; the shuffles are within each seed.
    """
    shape = SHUFFLES, *values.shape
    order = torch.rand(shape, generator=generator(0, "shuffled angles")).argsort(1)
    shuffled = values.expand(shape).gather(1, order)
    return float((_range(shuffled) >= _range(values) - 1e-9).double().mean())


def _range(values: Tensor) -> Tensor:
    means = values.mean(-1)
    return means.amax(-1) - means.amin(-1)


def alternation(net: Network, x: Tensor, T: int) -> dict[str, Any]:
    """Follow the images that a network has not settled after T synchronous steps."""
    moving = (relax(net, x, T).sample_residual > UNSETTLED).nonzero().flatten()
    found: dict[str, Any] = {"images": len(x), "unsettled": len(moving), "in_turn": 0}
    found |= {"alternating": [], "both_settle": 0, "answers_differ": 0, "distance": []}
    if len(moving):
        in_turn = relax(net, x[moving], LONG, in_turn=True)
        found["in_turn"] = int((in_turn.sample_residual <= STILL).sum())
        free = relax(net, x[moving], LONG, keep=2)
        before, last = free.history
        alternate = _apart(last, free.state) > UNSETTLED
        settled = _apart(before, free.state) <= STILL
        one, other = net.output(last)[alternate], net.output(free.state)[alternate]
        found["alternating"] = moving[alternate].tolist()
        found["both_settle"] = int((alternate & settled).sum())
        found["answers_differ"] = int((one.argmax(-1) != other.argmax(-1)).sum())
        found["distance"] = [round(d, 4) for d in (one - other).abs().amax(-1).tolist()]
    return found


def _apart(a: State, b: State) -> Tensor:
    """Return the largest difference of any neuron, [batch]."""
    return torch.stack([(p - q).abs().amax(-1) for p, q in zip(a, b, strict=True)]).amax(0)


def trajectory(net: Network, x: Tensor) -> dict[str, Any]:
    """Return, step by step, the two outputs in which the sequences of one image differ most."""
    free = relax(net, x[None], LONG, keep=1)
    apart = (net.output(free.state) - net.output(free.history[0])).abs()[0]
    neurons = apart.topk(2).indices.tolist()
    start = relax(net, x[None], SHOWN, keep=SHOWN)
    outputs = torch.stack([net.output(s)[0, neurons] for s in (*start.history, start.state)])
    return {"neurons": neurons, "outputs": [[round(v, 5) for v in o] for o in outputs.tolist()]}


class Story(Computed):
    name = stored = "c-vf-story"
    title = "Why the released C-VF with one hidden layer fails, and what cures it"
    place = "beyond the paper: why the released C-VF fails"
    needs = "three runs of 45 networks, 2 min each on an H200, and 10 min on a core; quick 2 min"

    def run(self, order: Order) -> None:
        for name in COMPARED:
            RUNS[name].run(order)
        super().run(order)

    def compute(self, order: Order) -> dict[str, Any]:
        """Train until just before the networks diverge; analyse these networks."""
        networks: list[dict[str, Any]] = []
        shown: dict[str, Any] | None = None
        for run in SNAPSHOTS:
            run.run(order)
            folder = order.results.run_folder(run.name, order.quick)
            snapshot = runs.load(folder.path)
            recipe, ensemble = snapshot.recipe, snapshot.net
            if ensemble is None:
                raise UserError(f"{folder.path}: its weights were not kept: move it away")
            test = fitting(datasets.load(recipe.data.name, order.data), recipe).test
            x, _ = test.batch(torch.arange(len(test)), ensemble.dtype)
            for i, member in enumerate(snapshot.living):
                net = ensemble.member(i)
                found = alternation(net, x, recipe.rule.free_steps)
                seed = recipe.members()[member].seed
                networks.append({"run": run.name, "reading": _reading(run), "seed": seed, **found})
                if found["distance"] and shown is None:
                    image = max(zip(found["distance"], found["alternating"], strict=True))[1]
                    shown = {"image": image, "label": int(test.labels[image]), "seed": seed}
                    shown |= trajectory(net, x[image])
        epochs = SNAPSHOTS[0].resolved(order.quick).epochs
        return {"epochs": epochs, "long": LONG, "networks": networks, "trajectory": shown}

    def completeness(self, results: Results) -> Completeness:
        return weakest([training.completeness(COMPARED, results), super().completeness(results)])

    def rows(self, results: Results) -> tuple[Row, ...]:
        released, in_turn, no_bias = (training.best(RUNS[name], results) for name in COMPARED)
        return (
            _count_row("as released", released),
            _count_row("in turn", in_turn),
            _count_row("no biases", no_bias),
            _when_row(released),
            _effect_row("in turn", in_turn),
            _effect_row("no biases", no_bias),
            self._alternation_row(results),
        )

    def _alternation_row(self, results: Results) -> Row:
        found = self.found(results)
        chosen = [net for net in found.get("networks", ()) if net["reading"] == "as released"]
        alternating = sum(len(net["alternating"]) for net in chosen)
        both = sum(net["both_settle"] for net in chosen)
        return Row(
            name="as released: images that alternate, of which both sequences settle",
            paper="–",
            ours=f"{both} of {alternating}" if found else None,
            passed=None,
            note=f"every second state compared, after {LONG} steps",
        )

    def blocks(self, results: Results) -> tuple[Block, ...]:
        outcomes = [outcome for name in COMPARED if (outcome := training.best(RUNS[name], results))]
        blocks: list[Block] = []
        if outcomes:
            blocks += [_readings_table(outcomes), _epochs_chart(outcomes, results)]
        if outcomes and outcomes[0].run.name == COMPARED[0]:
            blocks.append(_psi_chart(outcomes[0], results))
        return *blocks, *super().blocks(results)

    def draw(self, found: dict[str, Any]) -> tuple[Block, ...]:
        lines = [_looked_at(net) for net in found["networks"]]
        table = Table(
            f"Test images in networks stopped at epoch {found['epochs']}, Ψ = 0°. Alternating: "
            f"after {found['long']} steps still in another state at every step",
            tuple(lines[0]),
            tuple(tuple(line.values()) for line in lines),
        )
        if found["trajectory"] is None:
            return Text("No image alternates between two states."), table
        return table, _sequences_chart(found)


def _looked_at(net: dict[str, Any]) -> dict[str, str]:
    return {
        "": net["reading"].replace("-", " "),
        "seed": f"{net['seed']}",
        "not settled after T": f"{net['unsettled']} of {net['images']}",
        "alternating": f"{len(net['alternating'])}",
        "both sequences settle": f"{net['both_settle']}",
        "answers differ": f"{net['answers_differ']}",
        "settle in turn": f"{net['in_turn']} of {net['unsettled']}",
    }


def _reading(run: TrainingRun) -> str:
    return run.label.removesuffix(" snapshot")


def _diverged(outcome: Outcome) -> Tensor:
    return divergence(outcome.curves("test_error"))


def _by_angle(outcome: Outcome, values: Tensor) -> Tensor:
    return values.reshape(-1, outcome.recipe.seeds)  # members are ordered by angle


def _count_row(name: str, outcome: Outcome | None) -> Row:
    failed = [result for result in PUBLISHED if result.test.mean > FAILED]
    published, total = (sum(result.test.n for result in each) for each in (failed, PUBLISHED))
    row = f"{name}: networks that diverge"
    paper = f"{published} of {total} fail, from Ψ = {failed[0].angle:g}° on"
    if outcome is None:
        return Row(row, paper, None, None)
    gone = ~_diverged(outcome).isnan()
    return Row(row, paper, f"{int(gone.sum())} of {len(gone)}", None, _spared(outcome, gone))


def _spared(outcome: Outcome, gone: Tensor) -> str:
    """List the networks that did not diverge, if they are few."""
    members = zip(outcome.recipe.members(), gone, strict=True)
    left = [f"Ψ = {m.angle:g}° seed {m.seed}" for m, it in members if not it]
    return f"all but {', '.join(left)}" if 0 < len(left) < 4 else ""


def _chance_row(name: str, paper: str, ours: str, values: Tensor, notes: str = "") -> Row:
    """Return a row with the spread over angles, [angles, seeds], and that of shuffled angles."""
    note = f"{notes}as far apart in {100 * chance(values):.0f} % of {SHUFFLES} shuffles of Ψ"
    return Row(name, paper, ours, None, note)


def _when_row(outcome: Outcome | None) -> Row:
    name = "as released: mean epoch of divergence, earliest to latest Ψ"
    if outcome is None:
        return Row(name, "–", None, None)
    after = outcome.recipe.epochs + 1.0  # networks that did not diverge count as later
    values = _by_angle(outcome, _diverged(outcome).nan_to_num(after))
    return _chance_row(name, "–", _from_to(values, 0), values)


def _effect_row(name: str, outcome: Outcome | None) -> Row:
    row = f"{name}: test error (%), best to worst Ψ"
    means = [result.test.mean for result in PUBLISHED]
    paper = f"{min(means):.2f} to {max(means):.2f}"
    if outcome is None:
        return Row(row, paper, None, None)
    test = outcome.curves("test_error")
    values, last_ten = (_by_angle(outcome, each) for each in (test[-1], test[-10:].mean(0)))
    ours = f"{_from_to(values)}, seeds ± {values.var(1).mean().sqrt():.2f}"
    notes = f"last ten epochs {_from_to(last_ten)}; "
    return _chance_row(row, paper, ours, values, notes)


def _from_to(values: Tensor, digits: int = 2) -> str:
    """Format the lowest and the highest mean over angles."""
    means = values.mean(1)
    return f"{means.min():.{digits}f} to {means.max():.{digits}f}"


def _label(outcome: Outcome) -> str:
    return outcome.run.label + (", quick" if outcome.quick else "")


def _readings_table(outcomes: Sequence[Outcome]) -> Table:
    def cells(outcome: Outcome) -> tuple[str, ...]:
        test, epochs = outcome.curves("test_error"), _diverged(outcome)
        known = epochs[~epochs.isnan()]
        return (
            _label(outcome),
            f"{len(known)} of {test.shape[1]}",
            f"{known.min():.0f} to {known.max():.0f}" if len(known) else "–",
            f"{int((test[-1] > FAILED).sum())}",
            _from_to(_by_angle(outcome, test[-1])),
        )

    return Table(
        f"Readings of the recipe, nine angles Ψ and five seeds each. Diverged: test error above "
        f"{FAILED:g} % after having been below {HEALTHY:g} %",
        ("", "diverged", "at epoch", f"above {FAILED:g} % at the end", "test error (%) over Ψ"),
        tuple(cells(outcome) for outcome in outcomes),
    )


def _epochs_chart(outcomes: Sequence[Outcome], results: Results) -> Chart:
    metrics = [results.run_folder(o.run.name, o.quick).metrics() for o in outcomes]
    panels = [
        Panel(
            title,
            "epoch",
            unit,
            tuple(
                _quantiles(_label(outcome), factor * figures.series(records, key, part), color)
                for color, (outcome, records) in enumerate(zip(outcomes, metrics, strict=True))
            ),
            y_log=True,
        )
        for title, unit, key, part, factor in (
            ("test images that do not settle", "%", "unsettled", None, 100.0),
            ("largest residual", "after T steps", "residual", None, 1.0),
            ("weights hidden → output", "norm", "weight_norm", "synapses.1.weight", 1.0),
            ("test error", "%", "test_error", None, 1.0),
        )
    ]
    caption = "C-VF-1h over the epochs, by reading: median of the networks, and 10 to 90 % of them"
    return Chart("c-vf-story-epochs", caption, tuple(panels))


def _quantiles(label: str, values: Tensor, color: int) -> Line:
    """Return median and 10 to 90 % of values [epochs, networks], without non-finite networks."""
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype)
    low, median, high = (tuple(q.tolist()) for q in values.nanquantile(levels, dim=1))
    x = tuple(float(epoch + 1) for epoch in range(len(values)))
    return Line(label, x, median, color=color, low=low, high=high)


def _psi_chart(outcome: Outcome, results: Results) -> Chart:
    epochs, members = _diverged(outcome).tolist(), outcome.recipe.members()
    when = tuple(
        Line(
            f"seed {seed}",
            tuple(m.angle for m in members if m.seed == seed),
            tuple(e for m, e in zip(members, epochs, strict=True) if m.seed == seed),
            "points",
            seed,
        )
        for seed in sorted({member.seed for member in members})
    )
    paper = points("paper", [(result.angle or 0.0, result.test) for result in PUBLISHED])
    lines = paper, *ours_by_run(compare(PUBLISHED, results))
    axis = "initial Ψ(θ_f, θ_b) (°)"
    return Chart(
        "c-vf-story-psi",
        "C-VF-1h against the initial Ψ: when each network diverged, and the test error in the end",
        (
            Panel("as released: divergence", axis, "epoch", when),
            Panel("test error after the last epoch", axis, "%", lines, y_log=True),
        ),
    )


def _sequences_chart(found: dict[str, Any]) -> Chart:
    shown, outputs = found["trajectory"], torch.tensor(found["trajectory"]["outputs"])

    def sequence(first: int, column: int) -> Line:
        label = f"{('even', 'odd')[first]} steps, output {shown['neurons'][column]}"
        x = tuple(float(t) for t in range(first, len(outputs), 2))
        style: Any = ("solid", "dashed")[column]
        return Line(label, x, tuple(outputs[first::2, column].tolist()), style, first)

    lines = tuple(sequence(first, column) for column in (0, 1) for first in (0, 1))
    return Chart(
        "c-vf-story-sequences",
        f"Two sequences: a test image (number {shown['image']}, a {shown['label']}) in a network "
        f"as released, stopped at epoch {found['epochs']}; and how far apart the two states of "
        "every alternating image are",
        (
            Panel("one image", "step t of the free phase", "output", lines),
            Panel(
                "all that alternate",
                "image, by distance",
                "largest difference of an output",
                tuple(_distances(found["networks"])),
                y_range=(0.0, 1.0),
            ),
        ),
    )


def _distances(networks: Sequence[dict[str, Any]]) -> Iterable[Line]:
    for color, net in enumerate(networks):
        y = tuple(sorted(net["distance"], reverse=True))
        x = tuple(float(i + 1) for i in range(len(y)))
        label = f"{net['reading'].replace('-', ' ')}, seed {net['seed']}"
        yield Line(label, x, y, "points", color)


ITEMS = (Story(),)
