"""Every rule learns MNIST through the command line, and a broken one does not.

A few hundred minibatches of the first 2000 real images, tested on the first 1000 test images.
The bar is stated with a margin over what was measured; the same budget with the update pointing
uphill, or with the hidden layer left as it was drawn, stays far above it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eqprop.engines import descent

pytestmark = pytest.mark.slow

BUDGET = {
    "layers": "784,48,10",
    "free_steps": 15,  # enough for so small a network
    "train_samples": 2000,
    "test_samples": 1000,
    "epochs": 2,
}
# One update a minibatch: the learning rates may be larger than the paper's.
ONCE = BUDGET | {"learning_rates": "0.2,0.1"}
# K updates a minibatch, during which the input drive must not move too far: η·‖x‖² stays small.
CONTINUAL = BUDGET | {
    "learning_rates": "0.025,0.0125",
    "batch": 10,
    "nudged_steps": 4,
}
# Measured, the worse of two seeds: EP 17.4, VF 16.8, BPTT and RBP 18.5, C-EP 22.3, C-VF 22.0 %.
RULES = {
    "ep-1h": (ONCE, 22.0),
    "vf-1h": (ONCE, 22.0),
    "bptt-1h": (ONCE, 22.0),
    "rbp-1h": (ONCE, 22.0),
    "c-ep-1h": (CONTINUAL, 27.0),
    "c-vf-1h": (CONTINUAL, 27.0),
}
BROKEN = 55.0  # measured: uphill 87 to 92 %, the output layer alone 62 to 76 %


@pytest.fixture
def train(cli: Callable[..., Any], tmp_path: Path) -> Callable[..., list[float]]:
    def test_errors(name: str, seeds: int, engine: str = "auto", **more: Any) -> list[float]:
        words = ("train", name, "--seeds", seeds, "--engine", engine, "--out", tmp_path / "run")
        outcome = cli(*words, **RULES[name][0] | more)
        assert outcome.code == 0
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        return [member["final_test_error"] for member in summary["members"]]

    return test_errors


@pytest.mark.parametrize("name", RULES)
def test_rule_learns(name: str, train: Callable[..., list[float]]) -> None:
    assert max(train(name, seeds=2)) < RULES[name][1]


@pytest.mark.parametrize("name", RULES)
def test_rule_that_points_uphill_does_not_learn(
    name: str, train: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    descend = descent.descend

    def ascend(stream: Any, mover: Any, tiny: Any) -> None:
        uphill = ({key: -value for key, value in gradients.items()} for gradients in stream)
        descend(uphill, mover, tiny)

    monkeypatch.setattr(descent, "descend", ascend)
    assert min(train(name, seeds=1, engine="reference")) > BROKEN


@pytest.mark.parametrize("name", ["ep-1h", "vf-1h", "c-ep-1h", "c-vf-1h", "rbp-1h"])
def test_output_layer_alone_does_not_learn(name: str, train: Callable[..., list[float]]) -> None:
    hidden = "synapses.0.weight,synapses.0.bias"
    assert min(train(name, seeds=1, frozen=hidden)) > BROKEN
