"""Oracle: the README and the pages that took over from it. What they claim is so."""

import re
import subprocess

import pytest
import torch

import eqprop
from tests.documents import DOCUMENTS, ROOT, python_blocks

README = DOCUMENTS["README.md"].read_text("utf-8")
NETWORKS = DOCUMENTS["docs/networks.md"].read_text("utf-8")


def test_the_readme_is_short():
    (example,) = python_blocks(README)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    assert len(README.split()) < 500
    links = README.partition("## Read on")[2]
    assert links.count("](") == 3


def test_the_example_says_whether_the_rule_follows_bptt(capsys):
    torch.manual_seed(0)
    names: dict = {}
    exec(python_blocks(README)[0], names)
    printed = capsys.readouterr().out
    assert "FAILED at relative error" in printed  # as docs/start.md explains
    assert "at β = 0.2 in discrete time" in DOCUMENTS["docs/start.md"].read_text("utf-8")
    assert names["output"].shape == (20, 10)


def test_make_train_trains(cli, tmp_path, monkeypatch):
    """Its command, on fewer samples."""
    monkeypatch.chdir(tmp_path)
    shown = subprocess.run(
        ["make", "-n", "-C", ROOT, "train"], capture_output=True, text=True, check=True
    ).stdout
    (words,) = re.findall(r"^\S+/eqprop (.*)$", shown, flags=re.MULTILINE)
    outcome = cli(*words.split(), "--epochs", 1, train_samples=200, test_samples=200)
    assert outcome.code == 0
    assert "over 2 network(s)" in outcome.out


def loop_error(mnist, **lines):
    """Test error in % after the optimiser loop, with some of its lines replaced."""
    (code,) = (block for block in python_blocks(NETWORKS) if "optimiser.step()" in block)
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


@pytest.mark.slow
def test_the_optimiser_loop_learns_mnist(mnist):
    """From 90 %, after one epoch of 5,000 images. It ends near 14 %."""
    assert loop_error(mnist) < 20


@pytest.mark.slow
def test_a_continual_rule_learns_with_plain_descent_and_not_with_adam(mnist):
    """As the text says. They end near 40 % and 90 %."""
    (sgd,) = re.findall(r"`(torch\.optim\.SGD\([^`]*)`", NETWORKS)
    assert loop_error(mnist, rule=CONTINUAL, optimiser=sgd) < 60
    assert loop_error(mnist, rule=CONTINUAL) > 80
