"""Oracle: the README itself. Its examples run as they are written."""

import re
from pathlib import Path

import torch

import eqprop

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_examples_run_in_order_and_learn(capsys):
    torch.manual_seed(0)
    names: dict = {}
    exec(EXAMPLES[0], names)
    before = {n: p.clone() for n, p in names["net"].named_parameters()}
    printed = capsys.readouterr().out
    assert "FAILED at relative error" in printed  # as the text says
    assert names["output"].shape == (20, 10)
    exec(EXAMPLES[1], names)
    assert all(not torch.equal(before[n], p) for n, p in names["net"].named_parameters())
    exec(EXAMPLES[2], names)
    assert names["net"].layer_names == ("left", "right", "out")


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
