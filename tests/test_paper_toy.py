"""Oracle: closed form. The item "toy-model", held against recursions written out here."""

import json
from itertools import pairwise

import pytest

from eqprop.papers.continual_ep import toy
from eqprop.report.blocks import Chart
from eqprop.report.item import Order
from eqprop.report.results import Results
from eqprop.rules import ContinualEP, Step

(ITEM,) = toy.ITEMS


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


def run(results, quick=True):
    ITEM.run(Order(results, quick=quick, say=lambda line: None))
    return results.read("toy-model", quick)


def continual(theta, beta, eta, steps):
    """Eq. (sys): s and θ of C-EP, step by step, in plain floats."""
    s, moving, path = theta, theta, [(theta, theta)]
    for _ in range(steps):
        s_next = (0.5 - beta) * s + 0.5 * moving
        moving += eta / (2 * beta) * (s_next - s)
        s = s_next
        path.append((s, moving))
    return path


def test_every_row_passes_and_none_does_before_the_run(results):
    assert ITEM.completeness(results) == "missing"
    assert ITEM.blocks(results) == ()
    assert all(row.passed is None and row.ours is None for row in ITEM.rows(results))
    run(results)
    assert ITEM.completeness(results) == "quick"
    assert ITEM.passed(results) is True
    assert ITEM.blocks(results)[0].text.startswith("Quick")
    run(results, quick=False)
    assert ITEM.completeness(results) == "full"
    assert "Quick" not in ITEM.blocks(results)[0].text


def test_points_and_formulas_are_those_of_the_recursion(results):
    found = run(results)
    theta, beta, eta = found["theta"], found["beta"], found["eta"]
    curves = {(c["algorithm"], c["quantity"]): c for c in found["curves"]}
    for algorithm, rate in (("C-EP", eta), ("EP", 0.0)):
        path = continual(theta, beta, rate, toy.K)
        states = [s for s, _ in path]
        moves = [(b - a) / beta for a, b in pairwise(states)]
        expected = {"s": states, "Δ_s": moves, "Δ_θ": [move / 2 for move in moves]}
        if rate:
            expected["θ"] = [moving for _, moving in path]
        for quantity, values in expected.items():
            for kind in ("points", "formula"):
                assert curves[algorithm, quantity][kind] == pytest.approx(values, abs=1e-12)
    for algorithm in ("BPTT", "RBP"):
        back = [-theta / 2**t for t in range(toy.K)]
        assert curves[algorithm, "Δ_s"]["points"] == pytest.approx(back, abs=1e-12)
        assert curves[algorithm, "Δ_θ"]["points"] == pytest.approx(
            [value / 2 for value in back], abs=1e-12
        )


class OneStepLate(ContinualEP):
    """∂Φ/∂θ of the step before: a slip that leaves every sign right."""

    def resolved(self, trial):
        late = None
        for step in super().resolved(trial):
            yield Step(step.neurons, late or step.synapses)
            late = step.synapses


def test_a_rule_that_is_one_step_late_fails_its_row_and_no_other(results, monkeypatch):
    monkeypatch.setattr(toy, "ContinualEP", OneStepLate)
    run(results)
    failed = [row.name for row in ITEM.rows(results) if not row.passed]
    assert [name[:4] for name in failed] == ["C-EP", "C-EP"]  # closed form, and the limit


def test_charts_are_drawn_from_the_file_alone(results):
    found = run(results)
    found["curves"][0]["points"][1] = 7.5
    (results.folder(True) / "toy-model.json").write_text(json.dumps(found))
    first = next(block for block in ITEM.blocks(results) if isinstance(block, Chart))
    line, points = first.panels[0].lines
    assert points.y[1] == 7.5
    assert points.style == "points"
    assert line.y[1] == 0.5
    assert not ITEM.passed(results)
