"""Why C-VF fails. Oracles: run folders written by hand, whose networks diverge when the test says;
two neurons that inhibit each other, whose two steady states are known.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import eqprop
from eqprop.data import Dataset
from eqprop.papers.continual_ep import story
from eqprop.papers.continual_ep.catalogue import CATALOGUE
from eqprop.papers.continual_ep.published import ANGLES
from eqprop.papers.continual_ep.training import RUNS
from eqprop.report.blocks import Chart, Table, Text
from eqprop.report.item import Order, Row
from eqprop.report.results import Results
from eqprop.runs.recipe import Member, UserError
from tests.test_paper_training import summary_of

(STORY,) = story.ITEMS
NAN = math.nan
RELEASED, IN_TURN, NO_BIAS = story.COMPARED
SNAPSHOT = story.SNAPSHOTS[0].name


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def write(results: Results, name: str, test: Callable[[int, Member], float | None]) -> None:
    """A complete run folder by hand; residual is a hundredth of the test error."""
    recipe, folder = RUNS[name].resolved(quick=False), results.run_folder(name, quick=False)
    folder.path.mkdir(parents=True)
    folder.recipe_file.write_text(recipe.to_toml())
    lines, errors = [], []
    for epoch in range(1, recipe.epochs + 1):
        errors = [test(epoch, member) for member in recipe.members()]
        record: dict[str, Any] = {"epoch": epoch, "train_error": errors, "test_error": errors}
        record["residual"] = [None if e is None else e / 100 for e in errors]
        record["weight_norm"] = {"synapses.1.weight": [epoch + m.seed for m in recipe.members()]}
        lines.append(json.dumps(record) + "\n")
    (folder.path / "metrics.jsonl").write_text("".join(lines))
    summary = summary_of(recipe.epochs, errors)
    (folder.path / "summary.json").write_text(json.dumps(summary))


def dies_at(when: Callable[[Member], int | None]) -> Callable[[int, Member], float]:
    def test(epoch: int, member: Member) -> float:
        at = when(member)
        return 90.0 if at is not None and epoch >= at else 50.0 / epoch + 2 + 0.1 * member.seed

    return test


def rows(results: Results) -> dict[str, Row]:
    return {row.name: row for row in STORY.rows(results)}


# Divergence


@pytest.mark.parametrize(
    ("errors", "epoch"),
    [
        ([30, 9, 3, 21, 90], 4),
        ([30, 9, 3, 20, 90], 5),  # not more than 20
        ([30, 25, 90, 90, 90], NAN),  # never learned
        ([30, 10, 15, 90, 90], NAN),  # not less than 10
        ([30, 9, 3, 2, 2], NAN),
        ([9, 30, 3, 2, 90], 2),  # the first time counts
    ],
)
def test_a_network_diverges_when_it_fails_after_it_has_learned(
    errors: list[float], epoch: float
) -> None:
    found = story.divergence(torch.tensor([errors, errors[::-1]], dtype=torch.float64).T)
    assert found[0].item() == pytest.approx(epoch, nan_ok=True)


def test_angles_that_matter_are_told_from_angles_that_do_not() -> None:
    seeds = torch.arange(5.0)[None]
    angle = torch.arange(9.0)[:, None]
    assert story.chance((seeds + 0 * angle).double()) == 1.0  # shuffled within a seed: the same
    assert story.chance((10 * seeds + 0.1 * angle).double()) < 1e-3  # hidden by seeds, but there
    noise = torch.rand(9, 5, generator=torch.Generator().manual_seed(3)).double()
    assert 0.05 < story.chance(noise) < 1.0


def test_counts_epochs_and_verdicts_come_from_the_run_folders(results: Results) -> None:
    def when(member: Member) -> int | None:
        if member.angle == 157.5 and member.seed == 3:
            return None
        return 60 + 5 * member.seed + (member.angle == 0) * 2

    write(results, RELEASED, dies_at(when))
    write(results, IN_TURN, dies_at(lambda member: None))
    write(results, NO_BIAS, dies_at(lambda member: 70 if member.angle >= 135 else None))
    found = rows(results)
    released = found["as released: networks that diverge"]
    assert (released.paper, released.ours) == ("15 of 45 fail, from Ψ = 135° on", "44 of 45")
    assert released.note == "all but Ψ = 157.5° seed 3"
    in_turn = found["in turn: networks that diverge"]
    assert (in_turn.ours, in_turn.note) == ("0 of 45", "")
    no_bias = found["no biases: networks that diverge"]
    assert (no_bias.ours, no_bias.note) == ("15 of 45", "")
    # mean of 60, 65, …, 80 is 70; two later at 0°; the survivor counts as 101 instead of 75
    later = found["as released: mean epoch of divergence, earliest to latest Ψ"]
    assert later.ours == "70 to 75"
    flat = found["in turn: test error (%), best to worst Ψ"]
    assert flat.ours == "2.70 to 2.70, seeds ± 0.16"
    assert flat.note.startswith("last ten epochs 2.72 to 2.72; as far apart in 100 % of")
    steep = found["no biases: test error (%), best to worst Ψ"]
    assert steep.ours.startswith("2.70 to 90.00")
    assert "as far apart in 4 % of" in steep.note
    assert STORY.completeness(results) == "missing"  # the sequences are
    assert {(row.passed, row.source) for row in found.values()} == {(None, None)}  # ours alone

    table, epochs, psi = STORY.blocks(results)
    assert isinstance(table, Table)
    assert table.rows == (
        ("as released", "44 of 45", "60 to 82", "44", "72.56 to 90.00"),
        ("in turn", "0 of 45", "–", "0", "2.70 to 2.70"),
        ("no bias", "15 of 45", "70 to 70", "15", "2.70 to 90.00"),
    )
    assert isinstance(epochs, Chart)
    unsettled, residual, norm, error = epochs.panels
    assert all(math.isnan(y) for y in unsettled.lines[0].y)  # was not recorded
    for line in norm.lines:
        assert (line.y[9], line.x[9]) == (12.0, 10.0)  # the median seed is 2
    assert error.lines[0].y[-1] == 90.0
    assert residual.lines[1].y[-1] == pytest.approx(0.027)
    assert error.lines[2].low[-1] < 3 < 89 < error.lines[2].high[-1]
    assert isinstance(psi, Chart)
    when_drawn, tests = psi.panels
    assert [line.label for line in when_drawn.lines] == [f"seed {i}" for i in range(5)]
    assert when_drawn.lines[1].y == (67.0, *[65.0] * 8)
    assert math.isnan(when_drawn.lines[3].y[ANGLES.index(157.5)])
    assert [line.label for line in tests.lines] == ["paper", "as released", "in turn", "no bias"]


def test_a_network_that_becomes_non_finite_has_diverged(results: Results) -> None:
    write(results, RELEASED, lambda epoch, member: None if epoch > 80 else 3.0)
    released = rows(results)["as released: networks that diverge"]
    assert (released.ours, released.note) == ("45 of 45", "")
    assert STORY.blocks(results)[0].rows[0][2] == "81 to 81"


def test_nothing_is_shown_of_nothing(results: Results) -> None:
    assert STORY.completeness(results) == "missing"
    assert STORY.blocks(results) == ()
    assert {(row.ours, row.passed) for row in STORY.rows(results)} == {(None, None)}
    assert CATALOGUE.find("c-vf-story") is STORY


# Two sequences


def rivals(weight: float = -2.0) -> eqprop.Network:
    """h = σ(1.5 + 2x + w·o), o = σ(1.5 + w·h): from zero, each sequence keeps one of the two on."""
    net = eqprop.layered(1, 1, 1, dtype=torch.float64)
    values = {"0.weight": 2.0, "0.bias": 1.5, "1.weight": weight, "1.bias": 1.5}
    for name, value in values.items():
        net.get_parameter(f"synapses.{name}").fill_(value)
    return net


def sigma(v: float) -> float:
    return 1 / (1 + math.exp(-4 * (v - 0.5)))


def steady(o: float) -> tuple[float, float]:
    """Hidden and output neuron at x = 0, starting from an output."""
    h = 0.0
    for _ in range(100):
        h = sigma(1.5 - 2 * o)
        o = sigma(1.5 - 2 * h)
    return h, o


X = torch.tensor([[0.0], [1.0], [0.0]], dtype=torch.float64)  # x = 1 leaves one steady state


def test_sequences_that_settle_in_different_states_are_found() -> None:
    (h_on, o_off), (h_off, o_on) = steady(0.0), steady(1.0)
    assert min(h_on, o_on) > 0.95 > 0.05 > max(h_off, o_off)
    found = story.alternation(rivals(), X, T=40)
    assert (found["images"], found["unsettled"]) == (3, 2)
    assert found["alternating"] == [0, 2]
    assert (found["both_settle"], found["in_turn"]) == (2, 2)
    assert found["distance"] == pytest.approx([o_on - o_off] * 2, abs=1e-4)
    assert found["answers_differ"] == 0  # there is one output
    # in turn is the sequence that starts from the output
    state = eqprop.relax(rivals(), X[:1], 200, in_turn=True).state
    assert [float(layer) for layer in state] == pytest.approx([h_on, o_off], abs=1e-12)


def test_answers_are_compared_between_the_two_states() -> None:
    """A second output that stands still in the middle: which of the two is larger changes."""
    net = eqprop.layered(1, 1, 2, dtype=torch.float64)
    for name, value in {"0.weight": 2.0, "0.bias": 1.5}.items():
        net.get_parameter(f"synapses.{name}").fill_(value)
    one = net.get_parameter("synapses.1.weight")
    one.copy_(torch.tensor([-2.0, 0.0]).reshape(one.shape))
    net.get_parameter("synapses.1.bias").copy_(torch.tensor([1.5, 0.5]))
    found = story.alternation(net, X, T=40)
    assert (len(found["alternating"]), found["answers_differ"]) == (2, 2)
    path = story.trajectory(net, X[0])
    assert path["neurons"] == [0, 1]
    outputs = torch.tensor(path["outputs"])
    (_, off), (_, on) = steady(0.0), steady(1.0)
    assert outputs.shape == (story.SHOWN + 1, 2)
    assert outputs[0].tolist() == [0.0, 0.0]
    assert outputs[40::2, 0].tolist() == pytest.approx([off] * 11, abs=1e-4)
    assert outputs[41::2, 0].tolist() == pytest.approx([on] * 10, abs=1e-4)
    assert outputs[1:, 1].tolist() == pytest.approx([0.5] * 60)


def test_a_network_that_settles_has_nothing_that_alternates() -> None:
    found = story.alternation(rivals(-0.3), X, T=40)
    assert found == {"images": 3, "unsettled": 0, "in_turn": 0, "alternating": []} | {
        "both_settle": 0,
        "answers_differ": 0,
        "distance": [],
    }


def test_a_network_that_is_only_slow_does_not_alternate() -> None:
    """Next to the weight at which the steady state splits, both sequences creep to one state."""
    found = story.alternation(rivals(-0.99), X * 0, T=12)
    assert found["unsettled"] == found["in_turn"] == 3
    assert found["alternating"] == []


def test_a_cycle_within_a_sequence_does_not_count_as_settled() -> None:
    """h excites o and o inhibits h: strong enough, neither sequence comes to rest."""
    net = eqprop.layered(1, 1, 1, tied=False, dtype=torch.float64)
    values = {"0.weight": 0.0, "0.bias": 3.0, "1.weight": 5.0, "1.bias": -2.0}
    for name, value in (values | {"1.backward_weight": -5.0}).items():
        net.get_parameter(f"synapses.{name}").fill_(value)
    found = story.alternation(net, X, T=40)
    assert len(found["alternating"]) == found["unsettled"] == 3
    assert (found["both_settle"], found["in_turn"]) == (0, 0)


# Running


def test_snapshots_are_the_recipe_stopped_before_the_first_divergence() -> None:
    assert [run.name for run in story.SNAPSHOTS] == [
        "c-vf-1h-as-released-snapshot",
        "c-vf-1h-no-bias-snapshot",
    ]
    for run, of in zip(story.SNAPSHOTS, (RELEASED, NO_BIAS), strict=True):
        full, quick = run.resolved(quick=False), run.resolved(quick=True)
        differing = full.differences(RUNS[of].resolved(quick=False))
        assert set(differing) == {"network.angle", "seeds"}
        assert (full.network.angle, full.seeds, full.epochs) == (0.0, 2, 55)
        assert (quick.network.angle, quick.epochs) == (0.0, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("small_quick_runs")
def test_it_runs_quick_and_a_second_time_changes_nothing(mnist: Dataset, results: Results) -> None:
    said: list[str] = []
    order = Order(results, quick=True, say=said.append)
    STORY.run(order)
    assert (STORY.completeness(results), STORY.passed(results)) == ("quick", None)
    assert all(row.ours is not None for row in STORY.rows(results))
    stored = results.folder(quick=True) / "c-vf-story.json"
    found, before = json.loads(stored.read_bytes()), stored.read_bytes()
    assert {"machine", "versions", "commit", "when"} <= set(found["machine"])
    assert [(n["reading"], n["seed"], n["images"]) for n in found["networks"]] == [
        *(("as released", 0, 60), ("as released", 1, 60), ("no bias", 0, 60), ("no bias", 1, 60))
    ]
    assert found["trajectory"] is None  # two epochs: everything settles
    assert Text("No image alternates between two states.") in STORY.blocks(results)
    STORY.run(order)
    assert stored.read_bytes() == before

    stored.unlink()
    for file in sorted(results.root.rglob("c-vf-1h-as-released-snapshot/checkpoints/*")):
        file.unlink()
    results.run_folder(SNAPSHOT, quick=True).checkpoints.rmdir()
    with pytest.raises(UserError, match=f"{SNAPSHOT}: its weights were not kept"):
        STORY.run(order)


def test_images_that_alternate_are_counted_and_drawn(results: Results) -> None:
    net: dict[str, Any] = {"images": 100, "unsettled": 5, "in_turn": 5, "answers_differ": 1}
    net |= {"alternating": [7, 9, 30], "both_settle": 3, "distance": [0.2, 0.9, 0.5], "seed": 0}
    networks = [
        {"run": SNAPSHOT, "reading": "as released", **net},
        {"run": SNAPSHOT, "reading": "as released", **net, "seed": 1},
        {"run": "c-vf-1h-no-bias-snapshot", "reading": "no bias", **net, "both_settle": 0},
    ]
    path = {"image": 9, "label": 4, "seed": 0, "neurons": [4, 6]}
    path["outputs"] = [[0.0, 0.0], [0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    found = {"machine": {}, "epochs": 55, "long": 1000, "networks": networks, "trajectory": path}
    results.folder(quick=False).mkdir(parents=True)
    stored = results.folder(quick=False) / "c-vf-story.json"
    stored.write_text(json.dumps(found))
    name = "as released: images that alternate, of which both sequences settle"
    assert rows(results)[name].ours == "6 of 6"
    table, chart = STORY.blocks(results)
    assert table.rows[0][2:] == ("5 of 100", "3", "3", "1", "5 of 5")
    one, every = chart.panels
    drawn = {line.label: (line.x, line.y) for line in one.lines}
    assert drawn["even steps, output 4"] == ((0.0, 2.0), pytest.approx((0.0, 0.3)))
    assert drawn["odd steps, output 6"] == ((1.0, 3.0), pytest.approx((0.2, 0.6)))
    assert every.lines[1].y == (0.9, 0.5, 0.2)
    networks[1]["both_settle"] = 2
    stored.write_text(json.dumps(found))
    assert rows(results)[name].ours == "5 of 6"
