"""Oracle: the theorem. What the examples build has the property that they claim."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import eqprop

ROOT = Path(__file__).parent.parent
PAPER_NETWORKS = ROOT / "examples" / "paper_networks.py"
NUDGING = ROOT / "examples" / "nudging.py"


def test_the_paper_networks_example_makes_the_jacobian_symmetric_and_keeps_the_steady_state():
    example = runpy.run_path(str(PAPER_NETWORKS))
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
    page = (ROOT / "docs" / "nudging.md").read_text()
    text = page.partition("<!-- python examples/nudging.py -->")[2].partition("<!-- end -->")[0]
    written = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    runpy.run_path(str(NUDGING), run_name="__main__")
    printed = capsys.readouterr().out.strip().split("\n\n")
    assert len(written) == len(printed) == 2
    for ours, script in zip(written, printed, strict=True):
        assert ours.splitlines()[0] == script.splitlines()[0]
        assert numbers(ours) == pytest.approx(numbers(script), rel=0.06)  # two digits
