"""Oracle: the theorem, and closed forms. What the examples build has the property they claim."""

import re
import runpy
from dataclasses import astuple
from itertools import pairwise

import pytest
import torch

import eqprop
from tests.documents import DOCUMENTS, ROOT, blocks

EXAMPLES = ROOT / "examples"
RUN = {  # by a test below, or one of the same name, as a reader runs it
    "examples/fashion.py",
    "examples/hardware.py",
    "examples/ladder.py",
    "examples/nudging.py",
    "examples/own_data.py",
    "examples/sequences.py",
    "examples/theorem.py",
}


def printed(name, capsys):
    """What a script prints."""
    assert f"examples/{name}" in RUN
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def shown(name):
    """What the tutorials say that it prints."""
    after = DOCUMENTS["docs/tutorials.md"].read_text("utf-8").partition(f"python examples/{name}")
    return next(block.code for block in blocks(f"```sh\n{after[2]}") if block.language == "text")


def numbers_in(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_the_theorem_tutorial_prints_its_table_and_errors_halve_with_beta(capsys):
    out = printed("theorem.py", capsys)
    assert [line.rstrip() for line in out.splitlines()] == shown("theorem.py").splitlines()
    rows = [numbers_in(line) for line in out.splitlines()[1:]]
    for larger, smaller in pairwise(rows):
        for a, b in zip(larger, smaller, strict=True):
            assert a / b == pytest.approx(2, rel=0.07)


def test_the_theorem_tutorial_converges_faster_with_centred_nudging():
    """As the page says: by four. And in discrete time some of the error stays."""
    errors = runpy.run_path(str(EXAMPLES / "theorem.py"))["errors"]
    ep = eqprop.EP

    def measured(beta, **changed):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in changed.items():
                patch.setattr(eqprop, name, value)
            return errors(beta)

    def centred(beta, **steps):
        return ep(nudging=eqprop.Centred(beta), **steps)

    pairs = zip(measured(0.02, EP=centred), measured(0.01, EP=centred), strict=True)
    assert all(a / b == pytest.approx(4, rel=0.05) for a, b in pairs)
    discrete = {"RealTime": lambda dt: eqprop.Discrete()}
    assert min(measured(1e-5, **discrete)) > 0.01 > 1e-3 > max(measured(1e-5))


def test_the_tutorial_of_two_sequences_alternates_and_settles_in_turn(capsys):
    assert printed("sequences.py", capsys) == shown("sequences.py")
    example = runpy.run_path(str(EXAMPLES / "sequences.py"))
    net, x = example["two_neurons"](), example["X"]
    at_once, in_turn = (example["trajectory"](40, turn) for turn in (False, True))
    assert example["change"](at_once, 1) > 0.9
    assert example["change"](at_once, 2) < 1e-12
    assert example["change"](in_turn, 1) < 1e-12
    for low_or_high in (torch.zeros(1, 1).double(), torch.ones(1, 1).double()):  # two steady states
        s = (low_or_high, low_or_high)
        for _ in range(40):
            s = net(x, s)
        assert float((s[0] - low_or_high).abs()) < 0.03
        torch.testing.assert_close(net(x, s), s, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_networks_of_the_data_tutorial_learn_what_no_line_can(capsys):
    out = printed("own_data.py", capsys)
    words = [re.sub(r"[\d.]+ ± [\d.]+ %", "", line).split() for line in out.splitlines()]
    said = [
        re.sub(r"[\d.]+ ± [\d.]+ %", "", line).split() for line in shown("own_data.py").splitlines()
    ]
    assert words == said
    errors = [float(error) for error in re.findall(r"([\d.]+) ±", out)]
    assert len(errors) == 4
    assert max(errors) < 6
    example = runpy.run_path(str(EXAMPLES / "own_data.py"))
    (x, y), (x_test, y_test) = example["two_moons"](1000, 0), example["two_moons"](500, 1)
    with_bias = [torch.nn.functional.pad(points, (0, 1), value=1.0) for points in (x, x_test)]
    line = torch.linalg.lstsq(with_bias[0], torch.eye(2)[y]).solution
    assert float(((with_bias[1] @ line).argmax(-1) != y_test).double().mean()) > 0.08


def test_the_hardware_counts_are_those_of_the_formulas(capsys):
    """(stored per weight, stored per neuron, reads per step, writes), by the rules' equations."""
    example = runpy.run_path(str(EXAMPLES / "hardware.py"))
    K = example["K"]
    expected = {
        "BPTT": (1, K + 1, 4, 1),  # Σ ∇_θ; K states and ∇_s; W and Wᵀ in F and in its transpose
        "RBP": (1, 2, 4, 1),  # Σ ∇_θ; s_* and ∇_s
        "EP": (1, 1, 2, 1),  # ∂Φ/∂θ(s_*); s_t; W and Wᵀ
        "C-EP": (0, 1, 2, K),
        "VF": (1, 1, 1, 1),  # Σ Δ_θ; s_t; each weight in its direction
        "C-VF, `none`": (0, 1, 1, K),
        "C-VF, `own`": (0, 1, 2, K),  # the drive of the synapse alone
        "C-VF, `full`": (0, 1, 2, K),  # the drive of the layer
    }
    found = {
        name: astuple(example["count"](rule, tied))
        for name, (tied, rule) in example["RULES"].items()
    }
    assert found == expected
    page = DOCUMENTS["docs/hardware.md"].read_text("utf-8")
    for table in printed("hardware.py", capsys).strip().split("\n\n"):
        assert table in page.partition("<!-- python examples/hardware.py -->")[2]


def coordinates(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(
    "name",
    [
        "phases",
        "sequences",
        "circuits",
        *(pytest.param(slow, marks=pytest.mark.slow) for slow in ("gdd", "settings")),
    ],
)
def test_the_figures_are_what_the_script_draws(name, tmp_path, monkeypatch):
    """To half a pixel."""
    monkeypatch.syspath_prepend(EXAMPLES)
    example = runpy.run_path(str(EXAMPLES / "figures.py"))
    example["main"].__globals__["FOLDER"] = tmp_path
    example["main"]([name])
    drawn, there = (
        coordinates((folder / f"{name}.svg").read_text("utf-8"))
        for folder in (tmp_path, ROOT / "docs" / "figures")
    )
    assert len(drawn) > 50
    assert drawn == pytest.approx(there, abs=0.5)


def test_the_paper_networks_example_makes_the_jacobian_symmetric_and_keeps_the_steady_state():
    example = runpy.run_path(str(EXAMPLES / "paper_networks.py"))
    net = example["network"](5, 8, 3, tied=False)
    net.synapses[1].bias.add_(0.5)  # away from where σ′ is 1
    x, y = torch.linspace(-1, 1, 5).double()[None], torch.eye(3).double()[:1]
    balanced = example["with_symmetric_jacobian"](net, x)
    s = eqprop.relax(net, x, 150).state
    torch.testing.assert_close(eqprop.relax(balanced, x, 150).state, s, rtol=0, atol=1e-14)

    def asymmetry(model):
        def transition(hidden, output):
            return torch.cat(model(x, (hidden, output)), dim=-1)[0]

        J = torch.cat([block[:, 0] for block in torch.func.jacrev(transition, (0, 1))(*s)], dim=-1)
        return float((J - J.T).norm() / J.norm())

    assert asymmetry(net) > 0.05
    assert asymmetry(balanced) < 1e-14
    angle = {}
    for slope in ("none", "full"):
        rule = eqprop.ContinualVF(beta=1e-4, free_steps=150, nudged_steps=10, update_slope=slope)
        angle[slope] = eqprop.gddcheck(balanced, rule, x, y).angle
    assert angle["none"] > 1
    assert angle["full"] < 0.1


def numbers(table):
    """The rows of a Markdown table, without its head."""
    cells = [line.strip("| ").split("|") for line in table.strip().splitlines()[2:]]
    return [float(cell) for row in cells for cell in row]


@pytest.mark.slow
def test_the_tables_of_the_nudging_page_are_what_the_script_prints(capsys):
    page = DOCUMENTS["docs/nudging.md"].read_text("utf-8")
    text = page.partition("<!-- python examples/nudging.py -->")[2].partition("<!-- end -->")[0]
    written = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    tables = printed("nudging.py", capsys).strip().split("\n\n")
    assert len(written) == len(tables) == 2
    for ours, script in zip(written, tables, strict=True):
        assert ours.splitlines()[0] == script.splitlines()[0]
        assert numbers(ours) == pytest.approx(numbers(script), rel=0.06)  # two digits
