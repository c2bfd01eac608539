"""Measure savings and costs of two shortcuts in the free phase: layers in turn, and a tolerance.

    python benchmarks/shortcuts.py                    # dense: results/shortcuts.json
    python benchmarks/shortcuts.py --convolutional    # results/shortcuts-convolutional.json

With each shortcut, networks of a recipe train on MNIST for a few epochs: two on all of it, or five
small convolutional ones on 10,000 images, with over-relaxed steps in turn. The script prints a
table in Markdown. Times are those of the processor, on one core, without tests. The first network
of each row comes before the second of any. Free steps are those of the minibatches, of the last one
in each call of the engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from eqprop import data
from eqprop.data import Dataset
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.training import Training, Watcher

RESULTS = Path(__file__).parent.parent / "results"
DENSE = {
    "exact T, synchronous": {},
    "in turn": {"in_turn": True},
    "tolerance 1e-3": {"tolerance": 1e-3},
    "tolerance 1e-2": {"tolerance": 1e-2},
    "in turn, tolerance 1e-3": {"in_turn": True, "tolerance": 1e-3},
}
SMALL = {
    "layers": [
        {"conv": 8, "kernel": 5, "padding": 2, "pool": 2},
        {"conv": 16, "kernel": 5, "padding": 2, "pool": 2},
        10,
    ],
    "train_samples": 10000,
    "batch": 50,
    "relaxation": 1.5,
    "nudged_in_turn": True,
    "nudged_steps": 20,
    "free_steps": 60,
}
CONVOLUTIONAL = {
    "60 free steps": {},
    "tolerance 1e-3": {"tolerance": 1e-3},
    "tolerance 1e-2": {"tolerance": 1e-2},
}
NUDGINGS = {
    "centred": {"nudging.kind": "centred"},
    "random sign": {"nudging.kind": "random-sign"},
}


def rows(convolutional: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return for each row a recipe and what it changes."""
    if convolutional:
        return {
            f"{name}, {title}": ("mnist-conv", {"epochs": 4, **SMALL, **nudging, **fields})
            for name, nudging in NUDGINGS.items()
            for title, fields in CONVOLUTIONAL.items()
        }
    return {
        f"{name}, {title}": (name, {"epochs": 3, **fields})
        for name in ("ep-1h", "c-ep-1h")
        for title, fields in DENSE.items()
    }


class Meter(Watcher):
    """Adds up the time that a training takes between its tests, and its free steps."""

    def __init__(self, training: Training) -> None:
        self.training, self.steps, self.seconds = training, [], 0.0
        self.since = time.process_time()

    def minibatch(self, epoch: int, done: int, of: int, train_error: float) -> None:
        now = time.process_time()
        self.seconds, self.since = self.seconds + now - self.since, now
        self.steps.append(self.training.engine.relaxation.steps)

    def epoch(self, record: dict[str, Any], seconds: float) -> None:
        self.since = time.process_time()


def measure(name: str, fields: dict[str, Any], seed: int, mnist: Dataset) -> dict[str, float]:
    """Train one network: an ensemble would step until its last member has settled."""
    training = Training(recipes.load(name, {**fields, "seeds": 1, "seed": seed}), mnist)
    training.run(meter := Meter(training))
    minibatches = training.recipe.epochs * -(-len(training.data.train) // training.recipe.batch)
    return {
        "milliseconds": 1e3 * meter.seconds / minibatches,
        "free_steps": statistics.mean(meter.steps),
        "test_error": training.metrics[-1]["test_error"][0],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--convolutional", action="store_true", help="small networks on MNIST")
    convolutional = parser.parse_args().convolutional
    torch.set_num_threads(1)
    mnist = data.load("mnist")
    cases = rows(convolutional)
    networks: dict[str, list[dict[str, float]]] = {title: [] for title in cases}
    for seed in range(5 if convolutional else 2):
        for title, (name, fields) in cases.items():
            networks[title].append(measure(name, fields, seed, mnist))
            print(f"network {seed + 1}, {title}", file=sys.stderr, flush=True)
    print("| | ms per network and minibatch | free steps | test error, % | of each network |")
    print("| --- | ---: | ---: | ---: | ---: |")
    results = {}
    for title, each in networks.items():
        mean = {key: statistics.mean(one[key] for one in each) for key in each[0]}
        errors = [one["test_error"] for one in each]
        results[title] = {**mean, "test_errors": errors}
        print(
            f"| {title} | {mean['milliseconds']:.2f} | {mean['free_steps']:.1f} | "
            f"{mean['test_error']:.2f} | {', '.join(f'{error:.2f}' for error in errors)} |"
        )
    file = RESULTS / ("shortcuts-convolutional.json" if convolutional else "shortcuts.json")
    file.write_text(json.dumps({"results": results, **machine.describe("cpu")}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
