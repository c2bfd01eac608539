"""Does the network of cifar10-conv settle if its backward weights differ from the forward ones?

    python benchmarks/asymmetry.py      some minutes on a CPU

Tied weights have an energy, which no step raises when layers move in turn. Untied ones have none:
the network may move for ever. For initial weights at several angles Ψ between forward and backward
ones, the script relaxes the first training images. It reports the residual, the largest change of a
neuron in the last sweep, as median over the images, and the share of images whose residual exceeds
0.001. So it does with half the weights between layers of neurons, and with strides of 2 instead of
pooling.

Writes results/asymmetry-cifar10.json, from which docs/ladder.md has its numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from eqprop.data import load
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.evaluation import UNSETTLED
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import fitting, recipe_engine

RESULT = Path(__file__).parent.parent / "results" / "asymmetry-cifar10.json"
BASE = recipes.load("cifar10-conv", {"seeds": 1, "rule.name": "vf", "tied": False})
ANGLES = (0.0, 45.0, 67.5, 85.0, 90.0)
SWEEPS = (60, 240)


def strided(recipe: Recipe) -> Recipe:
    """Return the recipe with strides in the place of pooling."""
    layers = [
        it if isinstance(it, int) else {**it, "pool": 1, "stride": it["pool"]}
        for it in recipe.values()["network.layers"]
    ]
    return recipes.changed(recipe, {"layers": layers})


CASES = {
    "pooling": (BASE, 1.0),
    "pooling, half the weights": (BASE, 0.5),
    "strides": (strided(BASE), 1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=16)
    options = parser.parse_args()
    data = fitting(load("cifar-10"), BASE)
    x, _ = data.train.batch(torch.arange(options.images)[None], torch.float32)
    found: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    for case, (base, factor) in CASES.items():
        for angle in ANGLES:
            recipe = recipes.changed(base, {"angle": angle})
            members = list(recipe.members())
            net = recipe.network.build(members)
            with torch.no_grad():
                for synapse in net.synapses[1:]:
                    synapse.weight.mul_(factor)
                    synapse.backward_weight.mul_(factor)
            engine = recipe_engine(recipe, members, net)
            for sweeps in SWEEPS:
                residual = engine.relax(x, len(net.split()) * sweeps).sample_residual
                row = {
                    "angle": angle,
                    "sweeps": sweeps,
                    "residual": float(residual.median()),
                    "unsettled": float((residual > UNSETTLED).float().mean()),
                }
                print(case, row, flush=True)
                found[case].append(row)
    record = {
        "what": f"the first {options.images} training images, initial weights of cifar10-conv",
        "cases": found,
        **machine.describe("cpu"),
    }
    RESULT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
