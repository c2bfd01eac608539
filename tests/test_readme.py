"""Oracle: the README itself. Its examples run as they are written."""

import re
from pathlib import Path

import pytest
import torch

import eqprop


def python_blocks(text: str) -> list[str]:
    """The examples of a Markdown text."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = python_blocks(README)


def test_the_examples_run_in_order(capsys):
    torch.manual_seed(0)
    names: dict = {}
    exec(EXAMPLES[0], names)
    printed = capsys.readouterr().out
    assert "FAILED at relative error" in printed  # as the text says
    assert names["output"].shape == (20, 10)
    exec(EXAMPLES[2], names)
    assert names["net"].layer_names == ("left", "right", "out")


def loop_error(mnist, **lines):
    """Test error in % after the optimiser loop, with 64 hidden neurons and some lines replaced."""
    code = EXAMPLES[1].replace("784, 512, 10", "784, 64, 10")
    for name, value in lines.items():
        code, found = re.subn(rf"^{name} = .*$", f"{name} = {value}", code, flags=re.MULTILINE)
        assert found == 1, name
    torch.manual_seed(0)
    names = {"torch": torch, "eqprop": eqprop}
    exec(code, names)
    x, y = mnist.test.head(2000).shaped((784,)).batch(torch.arange(2000))
    output = eqprop.relax(names["net"], x, names["rule"].free_steps).state[-1]
    return 100 * float((output.argmax(-1) != y.argmax(-1)).double().mean())


CONTINUAL = "eqprop.ContinualEP(beta=0.2, free_steps=20, nudged_steps=8)"


def test_the_optimiser_loop_learns_mnist(mnist):
    """From 90 %, after one epoch of 5,000 images. It ends near 14 %."""
    assert loop_error(mnist) < 20


@pytest.mark.slow
def test_a_continual_rule_learns_with_plain_descent_and_not_with_adam(mnist):
    """As the text says. They end near 40 % and 90 %."""
    (sgd,) = re.findall(r"`(torch\.optim\.SGD\([^`]*)`", README)
    assert loop_error(mnist, rule=CONTINUAL, optimiser=sgd) < 60
    assert loop_error(mnist, rule=CONTINUAL) > 80


def test_the_theorem_holds_where_the_text_says_it_does():
    assert '`time=eqprop.RealTime(dt=0.08)` and\n`activation="tanh"`' in README
    assert "`beta=0.01` and `free_steps=400`" in README
    settings = {"time": eqprop.RealTime(dt=0.08), "activation": "tanh", "dtype": torch.float64}
    net = eqprop.layered(784, 512, 10, init="fan_in", **settings)
    rule = eqprop.ContinualEP(beta=0.01, free_steps=400, nudged_steps=15)
    torch.manual_seed(0)
    x, y = torch.rand(20, 784).double(), torch.eye(10).double().repeat(2, 1)
    report = eqprop.gddcheck(net, rule, x, y)
    assert report.passed
    assert "weights held still" in str(report)


def test_the_first_example_is_ten_lines():
    lines = [line for line in EXAMPLES[0].splitlines() if line.strip()]
    assert len(lines) <= 10


def test_every_document_that_the_readme_links_exists():
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
