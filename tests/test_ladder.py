"""Oracle: the reference engine, and the metrics of runs. The rungs of docs/ladder.md, its table."""

import copy
import json
import random
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from eqprop import Conv2d, Dense, Input, Layer, Network, relax
from eqprop.engines import ConvolutionalEngine
from eqprop.runs import Recipe
from eqprop.runs import recipe as recipes
from eqprop.runs.training import recipe_engine
from eqprop.sweeps import estimate
from eqprop.sweeps.file import read
from eqprop.sweeps.table import Table
from eqprop.sweeps.tasks import pack
from tests.documents import DOCUMENTS, ROOT, told
from tests.faults import write_idx

PAGE = "docs/ladder.md"
FILE = ROOT / "examples" / "ladder.toml"
RUNGS = {recipe.name: recipe for recipe in read(FILE)}
NARROW = {recipe.name: recipe for recipe in read(FILE.with_name("ladder_narrow.toml"))}
SWEEPS = {"rule.free_steps", "rule.nudged_steps"}
ONCE = {"rule.free_steps", "nudging.kind"}
NEGATIVE = {*ONCE, "nudging.beta"}
SOFTMAX = {"network.readout", "network.output_activation"}
SLOWER = {*SOFTMAX, "update.learning_rates"}  # the read-out may be faster
CONTINUAL = {*NEGATIVE, "rule.name", "rule.rescale"}
UNTIED = {"rule.name", "network.tied", "network.angle"}
# of each rung from the recipe of its base, with over-relaxed steps
RELAXED = {
    "ep-centred": set(),
    "ep-negative": NEGATIVE,
    "ep-random-sign": ONCE,
    "ep-one-sided": ONCE,
    "ep-centred-softmax": SLOWER,
    "ep-negative-softmax": {*NEGATIVE, *SLOWER},
    "ep-random-sign-softmax": {*ONCE, *SLOWER},
    "ep-one-sided-softmax": {*ONCE, *SLOWER},
    **{f"c-ep-share-{share}": CONTINUAL for share in (0.0001, 0.001, 0.01)},
    "vf-centred": {"rule.name"},
    "vf-untied-45": UNTIED,
    "vf-kolen-pollack-45": {*UNTIED, "network.shared_update"},
    "ep-centred-softmax-faster-readout": SLOWER,
    "ep-random-sign-softmax-faster-readout": {*ONCE, *SLOWER},
}
PLAIN = {
    *("update.learning_rates", "update.momentum", "update.weight_decay", "update.schedule"),
    *("nudging.kind", "epochs"),  # epochs changes the numbers only with a schedule
}
# and without them
UNRELAXED = {
    "centred": set(),
    "random-sign": {"nudging.kind"},
    "one-sided": {"nudging.kind"},
    "centred-softmax": SOFTMAX,
    "random-sign-softmax": {*SOFTMAX, "nudging.kind"},
    "one-sided-softmax": {*SOFTMAX, "nudging.kind"},
    **{f"ep-{eta}": PLAIN for eta in ("eta-0.3", "gain-0.25")},
    "vf-tied": {"rule.name"},
    "vf-untied": UNTIED,
    "vf-kolen-pollack": {*UNTIED, "network.shared_update"},
    "at-once": {*SWEEPS, "rule.in_turn", "rule.nudged_in_turn"},
    "random-sign-settled": {"nudging.kind", "rule.free_steps"},
    "half-sweeps": SWEEPS,
    "centred-softmax-slower": SLOWER,
}
PAIRS = {f"c-ep-{eta}": f"ep-{eta}" for eta in ("eta-0.3", "gain-0.25")}
# The largest difference of any parameter from the reference after two minibatches in float64. The
# feedback of C-EP multiplies every rounding, the more so with η = 0.3.
TOLERANCE = dict.fromkeys(RUNGS, 1e-11) | {"c-ep-eta-0.3": 1e-8}
SMALL = """epochs = 2
batch = 10
network.layers = [
    {conv = 2, kernel = 3, padding = 1, pool = 2},
    {conv = 3, kernel = 3, padding = 1, pool = 2},
    {conv = 2, kernel = 3, padding = 1, pool = 2},
    {conv = 3, kernel = 3, padding = 1, pool = 2},
    10,
]
rule.free_steps = 8
rule.nudged_steps = 4
data.name = "pictures"
"""


@pytest.mark.parametrize(
    ("recipe", "rungs"), [("cifar10-conv-relaxed", RELAXED), ("cifar10-conv", UNRELAXED)]
)
def test_each_rung_differs_from_its_base_by_what_it_names(
    recipe: str, rungs: dict[str, set[str]]
) -> None:
    base = recipes.load(recipe, {"epochs": 30, "seeds": 1})
    for name, differ in rungs.items():
        assert (RUNGS[name].epochs, RUNGS[name].seeds) == (30, 1)
        assert set(RUNGS[name].differences(base)) == differ
        nudged_once = RUNGS[name].nudging.kind != "centred"
        if rungs is RELAXED:  # 20 and 6 sweeps; 60 and 6
            steps = (120 if nudged_once else 40, 12)
            assert (RUNGS[name].rule.free_steps, RUNGS[name].rule.nudged_steps) == steps


def test_the_narrow_rungs_differ_from_their_base_as_the_wide_ones_do() -> None:
    base = NARROW["ep-centred"]
    for name in NARROW.keys() & RELAXED.keys():
        differ = set(NARROW[name].differences(base))
        rates = set() if "faster" in name else {"update.learning_rates"}
        assert differ == RELAXED[name] - rates
        assert differ <= {*NARROW[name].differences(RUNGS["ep-centred"])}
    in_turn, at_once = NARROW["plain-in-turn"], NARROW["plain-at-once"]
    assert set(in_turn.differences(base)) == {"network.relaxation", *SWEEPS}
    orders = {"rule.in_turn", "rule.nudged_in_turn"}
    assert set(at_once.differences(in_turn)) == {*SWEEPS, *orders}
    assert in_turn.rule.free_steps == 2 * at_once.rule.free_steps
    assert in_turn.rule.nudged_steps == 2 * at_once.rule.nudged_steps
    plain, continual = NARROW["ep-plain-descent"], NARROW["c-ep-plain-descent"]
    assert continual.differences(plain) == ["rule.name"]
    assert continual.rule.rescale is None
    more = {it.name for it in (in_turn, at_once, plain, continual)}
    assert {*NARROW} == (NARROW.keys() & RELAXED.keys()) | more


def test_c_ep_differs_from_its_partner_in_the_rule_alone() -> None:
    for name, partner in PAIRS.items():
        assert RUNGS[name].differences(RUNGS[partner]) == ["rule.name"]
        assert RUNGS[name].rule.name == "continual-ep"
    for share in (0.0001, 0.001, 0.01):
        rung = RUNGS[f"c-ep-share-{share}"]
        assert rung.differences(RUNGS["ep-negative"]) == ["rule.name", "rule.rescale"]
        assert (rung.rule.name, rung.rule.rescale) == ("continual-ep", share)


def test_the_tasks_are_the_rungs_in_order() -> None:
    assert {*RUNGS} == {*RELAXED, *UNRELAXED, *PAIRS}
    tasks = pack(list(RUNGS.values()))
    assert [task.name for task in tasks] == [f"{i:02}-{n}" for i, n in enumerate(RUNGS, start=1)]
    finished = {folder.name for folder in (ROOT / "results" / "ladder" / "tasks").iterdir()}
    assert finished <= {task.name for task in tasks}


def test_the_rate_of_plain_descent_is_that_of_momentum() -> None:
    base, plain = RUNGS["centred"].update, RUNGS["ep-eta-0.3"].update
    assert plain.learning_rates == pytest.approx(
        [rate / (1 - base.momentum) for rate in base.learning_rates]
    )


def test_as_many_sweeps_at_once_as_in_turn() -> None:
    in_turn, at_once = RUNGS["centred"].rule, RUNGS["at-once"].rule
    small = RUNGS["centred"].network.smallest.build(RUNGS["centred"].members())
    assert len(small.split()) == 2  # steps of a sweep in turn
    assert in_turn.free_steps == 2 * at_once.free_steps
    assert in_turn.nudged_steps == 2 * at_once.nudged_steps


def shrunk(rung: Recipe) -> Recipe:
    """The same rung with few channels and a tenth of its steps."""
    channels = iter((4, 3, 5, 4))
    layers = [
        it if isinstance(it, int) else {**it, "conv": next(channels)}
        for it in rung.values()["network.layers"]
    ]
    names = ("free_steps", "nudged_steps")
    steps = {name: max(2, getattr(rung.rule, name) // 10) for name in names}
    return recipes.changed(rung, {"layers": layers, **steps})


@pytest.mark.parametrize("name", RUNGS)
def test_each_rung_runs_on_the_convolutional_engine(name: str) -> None:
    """With the numbers of the reference, in float64, for two minibatches of random images.

    Biases start at 0: with others, all positions of a layer are equal after one step at once, so
    its windows are ties in the next, which rounding decides.
    """
    rung, close = shrunk(RUNGS[name]), {"rtol": 0, "atol": TOLERANCE[name]}
    members = list(rung.members())
    net = rung.network.build(members, torch.float64)
    start = copy.deepcopy(net.state_dict())
    slow = recipe_engine(rung, members, copy.deepcopy(net), "reference")
    fast = recipe_engine(rung, members, net)
    assert type(fast) is ConvolutionalEngine
    source = torch.Generator().manual_seed(0)
    for sign in (1.0, -1.0):
        for engine in (fast, slow):
            for synapse in engine.model.synapses:
                synapse.bias.zero_()
        x = torch.randn(1, 6, 3, 32, 32, generator=source, dtype=torch.float64)
        y = torch.randint(10, (1, 6), generator=source)
        ours, theirs = (engine.step(x, y, torch.tensor([sign])) for engine in (fast, slow))
        torch.testing.assert_close(ours, theirs, **close)
        torch.testing.assert_close(fast.model.state_dict(), slow.model.state_dict(), **close)
    for parameter, value in net.state_dict().items():
        assert not torch.equal(value, start[parameter])  # it learns


# The tables, from runs of the same sweep with few channels on a few random pictures


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small ladder and its pictures; scripts import what lies beside them."""
    chance = random.Random(0)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for stem, n in (("train", 20), ("t10k", 10)):
        content = chance.randbytes(n * 3072)
        write_idx(pictures / f"{stem}-images-idx3-ubyte", (n, 48, 64), content)
        labels = bytes(chance.choices(range(10), range(10), k=n))  # errors differ by the answer
        write_idx(pictures / f"{stem}-labels-idx1-ubyte", (n,), labels)
    (tmp_path / "examples").mkdir()
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    whole = FILE.read_text("utf-8")
    small = whole.replace("epochs = 30\n", SMALL)
    small = re.sub(r"free_steps = \d+(, nudged_steps = 20)?", "free_steps = 8", small)
    (tmp_path / "examples" / "ladder.toml").write_text(small, "utf-8")
    monkeypatch.setenv("EQPROP_DATA", str(pictures))
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def example(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The script, about the small ladder."""
    found = runpy.run_path(str(ROOT / "examples" / "ladder.py"))
    monkeypatch.setitem(found["main"].__globals__, "PAGE", replace(found["PAGE"], root=place))
    return found


def tables(text: str) -> dict[str, dict[str, list[str]]]:
    """The tables of a text: {title: {rung: the cells after its settings}}."""
    parts = text.split("\n\n")
    found = {}
    for title, table in zip(parts[::2], parts[1::2], strict=True):
        lines = [[it.strip() for it in line.split("|")[1:-1]] for line in table.splitlines()]
        found[title.removesuffix(":")] = {cells[1]: cells[9:] for cells in lines[2:]}
    return found


def trained(cli: Any, *rungs: str) -> None:
    for name in rungs:
        task = [*RUNGS].index(name) + 1
        words = ("sweep", "examples/ladder.toml", "--task", task, "--precision", "bfloat16")
        done = cli(*words, "--out", "results/ladder")
        assert done.code == 0, done


@pytest.mark.slow
def test_every_rung_is_estimated(place: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr(estimate, "REPEATS", 1)
    done = cli("sweep", "examples/ladder.toml", "--dry-run", "--precision", "bfloat16")
    assert done.code == 0, done
    assert [line.split()[0][3:] for line in done.out.splitlines()[1 : 1 + len(RUNGS)]] == [*RUNGS]
    assert f"{len(RUNGS)} task(s), {len(RUNGS)} networks" in done.out


def test_rungs_that_ran_have_the_numbers_of_their_metrics(
    example: dict[str, Any], place: Path, cli: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    page = place / "docs" / "ladder.md"
    start, end = "<!-- python examples/ladder.py -->\n", "<!-- end -->"
    page.write_text(f"before\n{start}| old |\n{end}\nafter\n", "utf-8")
    trained(cli, "centred", "ep-gain-0.25", "c-ep-gain-0.25", "at-once")
    monkeypatch.setattr(sys, "argv", ["ladder.py", "--update-docs"])
    capsys.readouterr()
    example["main"]()
    text = capsys.readouterr().out
    done = ["centred", "ep-gain-0.25", "c-ep-gain-0.25", "at-once"]
    shown = tables(text)
    assert shown.pop("Not trained yet") == {name: [] for name in RUNGS if name not in done}
    assert {title: [*of_it] for title, of_it in shown.items()} == {"Trained to the end": done}
    found = shown["Trained to the end"]
    for name in done:
        (folder,) = (place / "results" / "ladder" / "tasks").glob(f"[0-9][0-9]-{name}")
        epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        seconds = json.loads((folder / "run.json").read_text())["sessions"][-1]["wall_seconds"]
        assert found[name] == [
            f"{epochs[-1]['test_error'][0]:.2f}",
            f"{epochs[-1]['train_error'][0]:.2f}",
            "2",
            f"{seconds / 2:.1f}",
        ]
        assert found[name][0] != found[name][1]
    drawn = (place / "docs" / "figures" / "ladder.svg").read_text("utf-8")
    assert [drawn.count(f">{name}<") for name in ("centred", "c-ep-gain-0.25", "vf-tied")] == [
        2,
        1,
        0,
    ]
    written = page.read_text("utf-8")
    assert written.startswith(f"before\n{start}\n{text}\n![Test error on CIFAR-10")
    assert "](figures/ladder.svg)\n" in written
    assert written.endswith(f"*\n\n{end}\nafter\n")


def row(name: str, **more: Any) -> dict[str, Any]:
    columns = {"final_test_error": 20.0, "final_train_error": 10.0, "epochs": 2, "seconds": 60.0}
    known = {"recipe": name, "seed": 0, "folder": "a", "complete": True, "non_finite": False}
    return known | columns | more


@pytest.mark.parametrize(
    ("more", "title", "cells"),
    [
        ({}, "Trained to the end", ["20.00", "10.00", "2", "30.0"]),
        (
            {"complete": False, "epochs": 1},
            "Stopped before the end",
            ["20.00", "10.00", "1 of 2", "60.0"],
        ),
        ({"non_finite": True, "epochs": 1}, "Became non-finite", ["1", "60.0"]),
        ({"non_finite": True}, "Became non-finite", ["2", "30.0"]),
        ({"seconds": None}, "Trained to the end", ["20.00", "10.00", "2", "–"]),
    ],
)
def test_a_rung_that_stopped_or_failed_says_so(
    example: dict[str, Any], more: dict[str, Any], title: str, cells: list[str]
) -> None:
    runs = Table([row("vf-tied"), row("centred", **more)], Path())
    found = tables(example["tables"](runs))
    assert found[title].pop("centred") == cells
    assert found["Trained to the end"] == {"vf-tied": ["20.00", "10.00", "2", "30.0"]}
    assert [*found["Not trained yet"]] == [it for it in RUNGS if it not in ("centred", "vf-tied")]


def test_a_rung_is_not_counted_twice(example: dict[str, Any]) -> None:
    runs = Table([row("centred"), row("centred", folder="b")], Path())
    with pytest.raises(SystemExit, match="a and b hold the same networks: move one"):
        example["tables"](runs)


def test_a_run_with_other_settings_is_refused(
    example: dict[str, Any], place: Path, cli: Any
) -> None:
    trained(cli, "centred")
    file = place / "examples" / "ladder.toml"
    file.write_text(file.read_text().replace("batch = 10", "batch = 20"))
    page = replace(example["PAGE"], root=place)
    with pytest.raises(SystemExit, match=r"its batch differ from examples/ladder.toml: move it"):
        page.runs(place / "results" / "ladder")


def test_every_rung_is_in_a_panel_of_the_figure(example: dict[str, Any]) -> None:
    shown = {name for names in example["COMPARISONS"].values() for name in (*names[0], *names[1])}
    assert shown == set(RUNGS)


def test_the_page_has_what_the_script_prints(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ladder.py"])
    runpy.run_path(str(ROOT / "examples" / "ladder.py"), run_name="__main__")
    page = DOCUMENTS["docs/ladder.md"].read_text("utf-8")
    marked = page.partition("<!-- python examples/ladder.py -->")[2].partition("<!-- end -->")[0]
    assert marked.startswith(f"\n\n{capsys.readouterr().out}\n")


def metrics(task: str) -> list[dict[str, Any]]:
    """The epochs of a stored rung."""
    file = ROOT / "results" / "ladder" / "tasks" / task / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_the_page_says_what_became_of_the_relaxed_rungs() -> None:
    text = " ".join(DOCUMENTS[PAGE].read_text("utf-8").split())
    names = ("02-ep-negative", "03-ep-random-sign", "04-ep-one-sided", "09-c-ep-share-0.0001")
    negative, random_sign, one_sided, continual = (metrics(name) for name in names)
    centred = metrics("01-ep-centred")

    def error(rung: list[dict[str, Any]], epoch: int) -> float:
        return float(rung[epoch - 1]["test_error"][0])

    for said in (
        f"has settled: {error(random_sign, 30):.2f} % test error (rung 3)",
        f"and {error(centred, 30):.2f} % (rung 1). It takes three times",
        f"With β < 0 it has {error(negative, 30):.2f} % (rung 2)",
        f"of the whole update: {error(continual, 30):.2f} %",
        f"as its base does: {error(random_sign, 30):.2f} % and {error(centred, 30):.2f} %",
        f"starts more slowly, {error(negative, 9):.1f} % after nine epochs where the base has "
        f"{error(centred, 9):.1f} %",
        f"ends {error(negative, 30) - error(centred, 30):.1f} points behind",
        f"{100 * random_sign[-1]['unsettled'][0]:.1f} % of the test images have not settled with a "
        f"random sign, {100 * negative[-1]['unsettled'][0]:.1f} % with β < 0",
        f"{100 * one_sided[0]['saturated']['hidden3'][0]:.0f} % of the third layer is saturated",
        f"({100 * random_sign[0]['saturated']['hidden3'][0]:.0f} % with a random sign)",
    ):
        assert said in text, said
    apart = (abs(error(negative, t) - error(continual, t)) for t in range(1, 31))
    assert f"stay within {max(apart):.1f} points of each other" in text
    apart = (abs(error(random_sign, t) - error(centred, t)) for t in range(26, 31))
    assert "in the last five epochs they stay within 0.2 points of each other" in text
    assert max(apart) <= 0.2
    failed = [metrics(f"{k}-c-ep-share-{share}") for k, share in ((10, 0.001), (11, 0.01))]
    first, second = (rung[0]["frozen"][0]["minibatch"] for rung in failed)
    assert f"become non-finite after {first} and {second} minibatches" in text


def test_the_page_says_what_weights_order_and_loss_did() -> None:
    text = " ".join(DOCUMENTS[PAGE].read_text("utf-8").split())
    tied, untied, shared = (
        metrics(name) for name in ("12-vf-centred", "13-vf-untied-45", "14-vf-kolen-pollack-45")
    )
    softmax = {
        sign: metrics(f"{task}-softmax")
        for sign, task in (
            ("centred", "05-ep-centred"),
            ("negative", "06-ep-negative"),
            ("random", "07-ep-random-sign"),
            ("positive", "08-ep-one-sided"),
        )
    }
    centred, at_once, in_turn = (
        metrics(name) for name in ("01-ep-centred", "28-at-once", "15-centred")
    )

    def errors(rung: list[dict[str, Any]]) -> list[float]:
        return [epoch["test_error"][0] for epoch in rung]

    def last(rung: list[dict[str, Any]]) -> float:
        return errors(rung)[-1]

    def weights(rung: list[dict[str, Any]]) -> float:
        return float(rung[-1]["weight_norm"]["synapses.1.weight"][0])

    angles = [shared[-1]["weight_angle"][f"synapses.{k}"][0] for k in (1, 2, 3, 4)]
    first, second, third, fourth = (f"{angle:.0f}°" for angle in angles)
    for said in (
        f"share their updates: {last(shared):.2f} %, where tied ones have {last(tied):.2f} %",
        f"less: {last(at_once):.2f} % (28), where layers in turn have {last(in_turn):.2f} %",
        f"at best {last(softmax['negative']):.2f} %",
        f"has {errors(softmax['negative'])[11]:.1f} % after 12 epochs and ends at "
        f"{last(softmax['negative']):.1f} %",
        f"20 sweeps it ends at {last(softmax['centred']):.1f} %",
        f"from a norm of 6 to {weights(softmax['random']):.0f} and "
        f"{weights(softmax['positive']):.0f}",
        f"as EP does: {last(tied):.2f} %, where EP has {last(centred):.2f} % (rung 1)",
        f"from 45° to {first}, {second}, {third} and {fourth}",
        f"to {untied[0]['weight_angle']['synapses.4'][0]:.0f}° after the first epoch",
        f"At once ends at {last(at_once):.1f} %, in turn at {last(in_turn):.1f} %",
        f"At the end {100 * at_once[-1]['unsettled'][0]:.0f} % of the test images have not settled "
        f"to 10⁻³ at once, {100 * in_turn[-1]['unsettled'][0]:.0f} % in turn",
        f"but over-relaxed: {last(centred):.2f} %, as rung 15",
    ):
        assert said in text, said
    assert all(errors(rung)[0] == 90 for rung in softmax.values())
    assert all(epoch["unsettled"] == [1] for epoch in softmax["centred"][1:])
    assert min(*errors(softmax["random"])[5:], *errors(softmax["positive"])[2:]) == 90  # chance
    assert softmax["random"][-1]["saturated"]["hidden2"][0] > 0.995
    assert softmax["positive"][-1]["saturated"]["hidden2"][0] > 0.995
    apart = (abs(a - b) for a, b in zip(errors(tied)[20:], errors(shared)[20:], strict=True))
    assert max(apart) <= 1
    assert untied[1]["frozen"][0]["epoch"] == 2


def errors_of(run: str) -> list[str]:
    """Test errors, those of each network, and train errors of a stored run, as tables show them."""
    summary = json.loads((ROOT / "results" / run / "summary.json").read_text("utf-8"))
    found = [it["final_test_error"] for it in summary["members"]]
    each = ", ".join("non-finite" if it is None else f"{it:.1f}" for it in found)
    errors = (summary[f"{split}_error"] for split in ("test", "train"))
    test, train = ("–" if None in found else f"{it['mean']:.1f} ± {it['std']:.1f}" for it in errors)
    return [test, each, train]


def test_the_page_has_the_errors_of_the_narrow_networks() -> None:
    shown = told("eqprop sweep examples/ladder_narrow.toml", PAGE)
    assert [*shown] == [*NARROW]
    for number, (name, cells) in enumerate(shown.items(), start=1):
        assert cells == errors_of(f"ladder-narrow/tasks/{number:02}-{name}")


def test_another_page_has_those_of_the_narrow_residual_network() -> None:
    shown = told("eqprop sweep examples/residual_narrow.toml", "docs/convolution.md")
    recipes_of = read(FILE.with_name("residual_narrow.toml"))
    assert [*shown] == [f"`{recipe.name}`" for recipe in recipes_of]
    for number, (name, cells) in enumerate(shown.items(), start=1):
        assert cells == errors_of(f"residual-narrow/tasks/{number}-{name.strip('`')}")


def test_the_page_says_what_the_narrow_networks_did() -> None:
    def last(task: str) -> dict[str, Any]:
        file = ROOT / "results" / "ladder-narrow" / "tasks" / task / "metrics.jsonl"
        found: dict[str, Any] = json.loads(file.read_text("utf-8").splitlines()[-1])
        return found

    text = " ".join(DOCUMENTS[PAGE].read_text("utf-8").split())
    late = sorted(last("04-ep-one-sided")["unsettled"])
    assert f"With β > 0 {100 * late[0]:.0f} to {100 * late[-1]:.0f} % of the test images do" in text
    assert set(last("02-ep-negative")["unsettled"]) == {0}
    assert min(last("13-plain-at-once")["unsettled"]) > 0.99
    angles = last("11-vf-kolen-pollack-45")["weight_angle"].values()
    every = [angle for of_members in angles for angle in of_members]
    assert f"The angle stays at {min(every):.0f} to {max(every):.0f}°" in text
    plain, continual = (
        last(task)["train_error"] for task in ("14-ep-plain-descent", "15-c-ep-plain-descent")
    )
    assert max(abs(a - b) for a, b in zip(plain, continual, strict=True)) < 1
    assert "the train errors are within a point of each other" in text
    same, faster = (
        [share for of_members in last(task)["saturated"].values() for share in of_members]
        for task in ("05-ep-centred-softmax", "16-ep-centred-softmax-faster-readout")
    )
    assert f"(ep-centred-softmax) {100 * min(same):.0f} to {100 * max(same):.0f} %" in text
    assert 0.5 < sum(faster) / len(faster) < 0.55  # "about half"


# Why these rates: C-EP's feedback through the weights (benchmarks/feedback.py)

MEASURED = json.loads((ROOT / "results" / "feedback-cifar10.json").read_text("utf-8"))


def test_the_eigenvalue_is_that_of_a_change_that_comes_back() -> None:
    """A change v of the drives moves W and b along Jᵀv / batch, which moves the drives by J Jᵀv."""
    eigenvalues = runpy.run_path(str(ROOT / "benchmarks" / "feedback.py"))["eigenvalues"]
    layers = [Input((2, 5, 4)), Layer("c", (3, 4, 3)), Layer("out", 4)]
    synapses = [Conv2d("input", "c", 4, padding=1, bias=True), Dense("c", "out", bias=True)]
    net = Network(layers, synapses, dtype=torch.float64, ensemble=(1,))
    x = torch.rand(1, 6, 2, 5, 4, dtype=torch.float64)
    state = relax(net, x, 20).state
    weight, bias = net.synapses[0].weight.detach()[0], net.synapses[0].bias.detach()[0]
    found = eigenvalues(net, x, state)
    drives: list[Callable[..., torch.Tensor]] = [
        lambda w, b: torch.nn.functional.conv2d(x[0], w, b, padding=1),
        lambda w, b: state[0][0].flatten(1) @ w + b,
    ]
    dense = net.synapses[1]
    for theirs, drive, theta in zip(
        found, drives, ((weight, bias), (dense.weight[0], dense.bias[0])), strict=True
    ):
        parts = torch.autograd.functional.jacobian(drive, tuple(p.detach() for p in theta))
        outputs = drive(*theta).numel()
        J = torch.cat([part.reshape(outputs, -1) for part in parts], 1)
        (largest,) = torch.linalg.eigvalsh(J @ J.T / x.shape[1])[-1:]
        assert theirs == pytest.approx(float(largest), rel=1e-9)


def test_the_rates_hold_the_gain_at_a_quarter() -> None:
    beta = RUNGS["centred"].nudging.beta
    rates = RUNGS["ep-gain-0.25"].update.settings[0]
    for rate, eigenvalue in zip(rates, MEASURED["lambda"], strict=True):
        assert rate / beta * eigenvalue == pytest.approx(0.25, rel=0.15)


def test_the_page_has_what_was_measured() -> None:
    beta = RUNGS["centred"].nudging.beta
    assert list(told("largest eigenvalue", PAGE).values()) == [
        [f"{it:.3g}", f"{beta / it:.2g}"] for it in MEASURED["lambda"]
    ]
    distances = {float(gain): it for gain, it in MEASURED["distance of C-EP from EP"].items()}
    assert {
        float(Fraction(gain)): cell for gain, (cell,) in told("distance between", PAGE).items()
    } == {gain: "diverges" if it > 1e6 else f"{it:.3g}" for gain, it in distances.items()}
    for start, measured in {
        "eight bits are enough": "cosine with the update for beta to 0",
        "with one nudged phase, β > 0": "the same with one nudged phase",
        "this costs more than rounding": "the same with C-EP",
    }.items():
        assert told(start, "docs/convolution-engine.md") == {
            name: [f"{it:.3f}" for it in cosines] for name, cosines in MEASURED[measured].items()
        }


def test_the_page_has_rescaled_c_ep_beside_ep() -> None:
    measured = MEASURED["rescaled C-EP beside EP"]
    shown = told("and their cosine (`python benchmarks/feedback.py`", PAGE)
    assert {f"{float(share):g}" for share in shown} == {*measured}
    for share, cells in shown.items():
        layers = measured[f"{float(share):g}"]
        assert cells == [f"{it['length']:.3g} ({it['cosine']:.2f})" for it in layers]
    first = {float(share): layers[0] for share, layers in measured.items()}
    assert first[1e-4]["cosine"] > first[1e-3]["cosine"] > first[1e-2]["cosine"]
    assert first[1e-3]["length"] > 2


def test_the_page_has_the_feedback_of_a_trained_network() -> None:
    file = ROOT / "results" / "feedback-c-ep-gain-0.25.json"
    measured = json.loads(file.read_text("utf-8"))
    assert list(told("Training strengthens this feedback", PAGE).values()) == [
        [
            ", ".join(f"{it['length']:.3g} ({it['cosine']:.2f})" for it in measured[weights][sign])
            for sign in ("beta > 0", "beta < 0")
        ]
        for weights in ("initial weights", "weights of the run")
    ]
    before, after = (measured[it]["lambda"] for it in ("initial weights", "weights of the run"))
    assert all(abs(b / a - 1) < 0.3 for a, b in zip(before, after, strict=True))


def test_the_page_says_which_untied_networks_settle() -> None:
    cases = json.loads((ROOT / "results" / "asymmetry-cifar10.json").read_text("utf-8"))["cases"]
    shown = told("## Asymmetric weights", PAGE)
    for angle, cells in shown.items():
        measured = [row for rows in cases.values() for row in rows if f"{row['angle']:g}°" == angle]
        assert [cell.split()[0] for cell in cells] == [
            f"{100 * it['unsettled']:.0f}" for it in measured
        ]
    assert len(shown) == len(cases["pooling"]) / 2
