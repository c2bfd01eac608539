"""Oracle: the two phases and autograd written out here. The GDD figures of the paper."""

import dataclasses
from pathlib import Path

import pytest
import torch

from eqprop.papers.continual_ep import gdd, sources
from eqprop.report.blocks import Chart
from eqprop.report.item import Order
from eqprop.report.results import Results
from eqprop.rules import ContinualEP, ContinualVF, Step

pytestmark = pytest.mark.slow

FIGURES = {item.name: item for item in gdd.ITEMS}
# Tab. "table-hyp-th": figure, Ψ, T, K, β, ε, η
PUBLISHED = (
    ("ep-to-cvf-b", 45, 800, 80, 0.01, 0.08, 1.5e-5),
    ("gdd-real-time-asymmetric-neurons", 0, 800, 80, 0.005, 0.08, 2e-5),
    ("gdd-real-time-asymmetric-synapses", 0, 800, 80, 0.005, 0.08, 2e-5),
    ("gdd-discrete-asymmetric-neurons", 0, 150, 10, 0.01, None, 2e-5),
    ("gdd-discrete-asymmetric-synapses", 0, 150, 10, 0.01, None, 2e-5),
    ("gdd-real-time-symmetric-neurons", 0, 800, 80, 0.05, 0.08, 2e-5),
    ("gdd-real-time-symmetric-synapses", 0, 800, 80, 0.05, 0.08, 2e-5),
    ("gdd-discrete-symmetric-neurons", 0, 150, 10, 0.01, None, 2e-5),
    ("gdd-discrete-symmetric-synapses", 0, 150, 10, 0.01, None, 2e-5),
)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def only_drawn(name):
    """A figure without the readings that are not drawn."""
    figure = FIGURES[name]
    drawn = tuple(reading for reading in figure.experiment.readings if reading.drawn)
    return dataclasses.replace(
        figure, experiment=dataclasses.replace(figure.experiment, readings=drawn)
    )


def run(figure, results):
    figure.run(Order(results, quick=True, say=lambda line: None))
    return figure.found(results)


@pytest.mark.parametrize("row", PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_the_first_reading_is_the_table_of_the_paper(row):
    name, *values = row
    experiment = FIGURES[name].experiment
    first = experiment.readings[0]
    assert first.name == gdd.TABLE
    assert first.drawn
    assert [
        first.angle,
        experiment.free_steps,
        experiment.nudged_steps,
        first.beta,
        experiment.dt,
        first.eta,
    ] == values
    assert len(FIGURES) == len(PUBLISHED)


def steps_by_hand(net, x, y, beta, T, K, dt, eta, tied):
    """Δ_s(t), Δ_W(t) and −∇(t) of a 784-n-10 tanh network, without the library's dynamics."""
    W0, b0, W1, b1 = (
        net.get_parameter(f"synapses.{i}.{field}").clone()
        for i, field in ((0, "weight"), (0, "bias"), (1, "weight"), (1, "bias"))
    )
    B1 = None if tied else net.get_parameter("synapses.1.backward_weight").clone()
    slope = lambda s: 1 - torch.tanh(s) ** 2  # noqa: E731
    rate = (lambda s: s) if dt is None else torch.tanh
    epsilon = 1.0 if dt is None else dt

    def step(h, o, W0, b0, W1, b1, B1):
        to_h = rate(x) @ W0 + b0 + rate(o) @ (W1.T if B1 is None else B1)
        to_o = rate(h) @ W1 + b1
        if dt is None:
            return torch.tanh(to_h), torch.tanh(to_o)
        return (1 - dt) * h + dt * slope(h) * to_h, (1 - dt) * o + dt * slope(o) * to_o

    h, o = torch.zeros(1, len(b0)).double(), torch.zeros(1, 10).double()
    for _ in range(T - K):
        h, o = step(h, o, W0, b0, W1, b1, B1)
    theta = [p for p in (W0, b0, W1, b1, B1) if p is not None]
    copies = [[p.clone().requires_grad_() for p in theta] for _ in range(K)]
    passed = []
    h, o = h.requires_grad_(), o.requires_grad_()
    for own in copies:  # θ_{T−K+1} … θ_T, each a leaf of its own
        h, o = step(h, o, *own, *([None] if tied else []))
        passed.append((h, o))
    loss = 0.5 * ((o - y) ** 2).sum()
    exact = {
        "neurons, hidden layer": [],
        "neurons, output layer": [],
        "weights, input → hidden": [],
        "weights, hidden → output": [],
        "weights, output → hidden": [],
    }
    for (h_t, o_t), own in zip(reversed(passed), reversed(copies), strict=True):
        wanted = [h_t, o_t, own[0], own[2], *own[4:]]
        gradients = torch.autograd.grad(
            loss, wanted, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for name, gradient in zip(exact, gradients, strict=False):
            exact[name].append(-gradient)

    h, o = h.detach(), o.detach()
    ours = {name: [] for name in exact}
    for _ in range(K):
        h_next, o_next = step(h, o, W0, b0, W1, b1, B1)
        o_next = o_next + beta * epsilon * (y - o)
        dh, do = (h_next - h) / (beta * epsilon), (o_next - o) / (beta * epsilon)
        if tied:  # contrast of products; Eqs. (model-cep-deltaw), (cep-realtime)
            change = lambda f: (f(h_next, o_next) - f(h, o)) / beta  # noqa: B023, E731
            dW0 = change(lambda h, o: rate(x).T @ rate(h))
            dW1 = change(lambda h, o: rate(h).T @ rate(o))
            db0, db1 = change(lambda h, o: rate(h)[0]), change(lambda h, o: rate(o)[0])
            dB1 = None
        else:  # (∂F/∂W)ᵀ·Δs, where discrete time drops σ′
            gh, go = (dh, do) if dt is None else (dh * dt * slope(h), do * dt * slope(o))
            dW0, db0 = rate(x).T @ gh, gh[0]
            dW1, db1, dB1 = rate(h).T @ go, go[0], rate(o).T @ gh
        for name, value in zip(ours, (dh, do, dW0, dW1, dB1), strict=True):
            ours[name].append(value)
        W0, b0, W1, b1 = W0 + eta * dW0, b0 + eta * db0, W1 + eta * dW1, b1 + eta * db1
        B1 = None if tied else B1 + eta * dB1
        h, o = h_next, o_next
    if tied:
        del ours["weights, output → hidden"], exact["weights, output → hidden"]
    stacked = [{name: torch.stack(v) for name, v in each.items()} for each in (ours, exact)]
    return stacked[0], stacked[1]


@pytest.mark.parametrize(
    "name",
    [
        "gdd-discrete-symmetric-neurons",
        "gdd-discrete-asymmetric-synapses",
        "gdd-real-time-symmetric-synapses",
        "gdd-real-time-asymmetric-neurons",
    ],
)
def test_curves_and_numbers_are_those_of_the_equations_written_out(name, results, mnist):
    figure = only_drawn(name)
    found = run(figure, results)
    x, y = mnist.train.shaped((784,)).batch(torch.tensor([0]), torch.float64)
    experiment = figure.experiment
    reading, stored = experiment.readings[0], found["readings"][0]
    for case, panel in zip(experiment.cases, stored["panels"], strict=True):
        net = experiment.network(case, reading, found["hidden"])
        ours, exact = steps_by_hand(
            net,
            x,
            y,
            reading.beta,
            found["free_steps"],
            experiment.nudged_steps,
            experiment.dt,
            reading.eta if case.moving else 0.0,
            case.tied,
        )
        for curve in panel["curves"]:
            pre, post = 0, int(curve["which"].split()[-1])
            if "→" in curve["which"]:
                pre = int(curve["which"].split()[1])
            for key, process in (("update", ours), ("gradient", exact)):
                expected = process[curve["group"]][:, pre, post]
                assert curve[key] == pytest.approx(
                    expected.tolist(), rel=1e-4, abs=1e-6 * float(expected.abs().max())
                )
        for row in panel["rows"]:
            if row["name"] in ours:
                a, b = ours[row["name"]], exact[row["name"]]
                error = float((a - b).norm() / b.norm())
                assert row["relative_error"] == pytest.approx(error, rel=1e-3)


class HalvedHidden(ContinualVF):
    def resolved(self, trial):
        for step in super().resolved(trial):
            yield Step((step.neurons[0] / 2, *step.neurons[1:]), step.synapses)


class WrongSign(ContinualEP):
    def resolved(self, trial):
        for step in super().resolved(trial):
            yield Step(step.neurons, {name: -g for name, g in step.synapses.items()})


@pytest.mark.parametrize(
    ("weights", "rule", "wrong", "broken"),
    [
        ("symmetric", "ContinualEP", WrongSign, "synapses"),
        ("asymmetric", "ContinualVF", HalvedHidden, "neurons"),
    ],
)
def test_a_broken_rule_fails_the_left_panel_that_shows_it(
    weights, rule, wrong, broken, results, monkeypatch
):
    monkeypatch.setattr(gdd, rule, wrong)
    for part in ("neurons", "synapses"):
        figure = only_drawn(f"gdd-discrete-{weights}-{part}")
        run(figure, results)
        left, _ = figure.rows(results)
        assert left.paper == "the curves coincide"
        assert left.passed is (part != broken)


def test_real_time_symmetric_splits_at_the_released_beta_and_not_at_the_printed_one(results):
    """The released command drew the figure and is judged; the table's β is a note."""
    for part in ("neurons", "synapses"):
        figure = only_drawn(f"gdd-real-time-symmetric-{part}")
        printed, released = (figure.verdict(r) for r in run(figure, results)["readings"])
        assert (printed.as_published, released.as_published) == (False, True)
        rows = figure.rows(results)
        assert [(row.reading, row.source) for row in rows] == [
            (gdd.COMMAND, sources.COMMANDS),
            (gdd.COMMAND, sources.COMMANDS),
        ]
        assert [row.passed for row in rows] == [True, True]
        assert figure.passed(results) is True
        assert f"{gdd.TABLE}: relative error {printed.errors[1]:.2g}" in rows[1].note
        assert rows[1].name == "C-EP, η > 0 (β = 0.005, η = 2e-05)"


def test_every_figure_is_judged_by_one_reading_that_is_drawn_and_has_a_source():
    for figure in FIGURES.values():
        (judged,) = (r for r in figure.experiment.readings if r.name == figure.experiment.judged)
        assert judged.drawn
        assert judged.source is not None


def test_the_readings_of_the_update_are_computed_in_discrete_time(results):
    """Without σ′ in the update the two panels differ from those with it, and not in the neurons
    while weights stand still.
    """
    figure = FIGURES["gdd-discrete-asymmetric-synapses"]
    slopes = {"none": gdd.TABLE, "own": gdd.OWN, "full": gdd.FULL}
    readings = tuple(r for r in figure.experiment.readings if r.name in slopes.values())
    assert {r.update_slope: r.name for r in readings} == slopes
    experiment = dataclasses.replace(figure.experiment, readings=readings)
    found = run(dataclasses.replace(figure, experiment=experiment), results)["readings"]
    still = [{row["name"]: row["relative_error"] for row in r["panels"][0]["rows"]} for r in found]
    for name in ("neurons, hidden layer", "neurons, output layer"):
        assert len({errors[name] for errors in still}) == 1
    assert len({errors["weights, output → hidden"] for errors in still}) == 3


def test_two_figures_share_one_computation(results, monkeypatch):
    run(only_drawn("gdd-discrete-symmetric-neurons"), results)
    synapses = FIGURES["gdd-discrete-symmetric-synapses"]
    monkeypatch.setattr(gdd.Experiment, "compute", lambda *_: pytest.fail("computed twice"))
    run(synapses, results)
    assert synapses.completeness(results) == "quick"


def test_every_panel_and_every_reading_shows_the_same_synapses(results):
    figure = only_drawn("ep-to-cvf-b")
    shown = [
        [(c["group"], c["which"]) for c in panel["curves"] if c["group"].endswith(group)]
        for reading in run(figure, results)["readings"]
        for panel in reading["panels"]
        for group in ("input → hidden", "hidden → output")
    ]
    assert len(shown) == 16
    assert all(len(curves) == gdd.CURVES for curves in shown)
    assert shown[0::2] == shown[:1] * 8
    assert shown[1::2] == shown[1:2] * 8


def test_a_colour_is_one_synapse_dashed_its_update(results):
    figure = only_drawn("gdd-discrete-asymmetric-synapses")
    run(figure, results)
    charts = [block for block in figure.blocks(results) if isinstance(block, Chart)]
    assert len(charts) == len({chart.name for chart in charts}) == 3
    for chart in charts:
        assert len(chart.panels) == 2
        for panel in chart.panels:
            for line, dashed in zip(panel.lines[::2], panel.lines[1::2], strict=True):
                assert (line.style, dashed.style) == ("solid", "dashed")
                assert line.color == dashed.color
                assert line.label.removesuffix(", −∇") == dashed.label.removesuffix(", Δ")
        left, right = chart.panels
        assert [a.y for a in left.lines[::2]] == [b.y for b in right.lines[::2]]  # one ∇
        assert [a.y for a in left.lines[1::2]] != [b.y for b in right.lines[1::2]]


@pytest.mark.parametrize("name", FIGURES)
def test_the_results_of_the_repository_are_full_and_small_and_of_a_clean_commit(name):
    kept = Results(Path(__file__).parent.parent / "results")
    figure = FIGURES[name]
    assert figure.completeness(kept) == "full"
    assert (kept.folder(False) / f"{figure.stored}.json").stat().st_size < 200_000
    assert not figure.found(kept)["machine"]["commit"].endswith("+changes")
    readings = [reading.values() for reading in figure.experiment.readings]
    stored = figure.found(kept)["readings"]
    panels = [reading.pop("panels") for reading in stored]
    assert stored == readings
    assert all(len(each) == len(figure.experiment.cases) for each in panels)
