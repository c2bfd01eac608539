"""How large may the rates of C-EP be in the network of cifar10-conv, and what does rounding cost?

    python benchmarks/feedback.py       some minutes on a CPU

C-EP moves the weights while the neurons move. A change of a layer comes back to it multiplied by up
to (η/β) λ. Here λ is the largest eigenvalue of the mean outer product of what a position of the
layer reads (with a 1 for the bias), times the number of positions that share its weights. The
numbers are those of the first training images with the initial weights, after a free phase in
float64:

- λ of each layer,
- the relative distance between one update of C-EP and one of EP, each divided by η, for rates that
  make (η/β) λ the same in each layer,
- the cosine between one update and that of centred EP for β → 0 (β = 0.0001 in float64), for each
  layer: of centred EP, of EP with one nudged phase, and of C-EP with (η/β) λ = 1/4, with
  convolutions of several dtypes. Parameters are in float32 if these have fewer bits.

Writes results/feedback-cifar10.json, from which docs/ladder.md has its numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

from eqprop.data import load
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import fitting, recipe_engine
from eqprop.sweeps.file import read
from eqprop.synapses import Conv2d
from eqprop.types import State

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "results" / "feedback-cifar10.json"
RUNGS = {recipe.name: recipe for recipe in read(ROOT / "examples" / "ladder.toml")}
GAINS = (1, 1 / 4, 1 / 16, 1 / 64)  # of (η/β) λ
DTYPES = ("float64", "float32", "float16", "bfloat16")


def engine_of(recipe: Recipe, dtype: torch.dtype, precision: torch.dtype | None = None) -> Engine:
    members = list(recipe.members())
    return recipe_engine(recipe, members, recipe.network.build(members, dtype), precision=precision)


def eigenvalues(net: Network, x: Tensor, state: State) -> list[float]:
    """Return λ of each layer of a chain with biases, strides of 1 and one member.

    Args:
        net: the chain, of `Conv2d` and `Dense`.
        x: [1, batch, channels, height, width].
        state: its layers, [1, batch, *shape] each.
    """
    found = []
    for synapse, (pre, post) in zip(net.synapses, itertools.pairwise((x, *state)), strict=True):
        read_by, positions = pre[0].flatten(1), 1
        if isinstance(synapse, Conv2d):
            patches = unfold(pre[0], synapse.kernel, padding=synapse.padding)
            read_by, positions = patches.mT.flatten(0, 1), post[0, 0, 0].numel()
        read_by = pad(read_by, (0, 1), value=1.0)  # the bias
        moments = read_by.T @ read_by / len(read_by)
        found.append(positions * float(torch.linalg.eigvalsh(moments)[-1]))
    return found


def moved(engine: Engine, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return how each parameter moves in one minibatch, with β > 0."""
    start = [p.clone() for p in engine.model.parameters()]
    engine.step(x, y, torch.ones(1))
    return [p - before for p, before in zip(engine.model.parameters(), start, strict=True)]


def distance(gain: float, x: Tensor, y: Tensor) -> float:
    """Return how far an update of C-EP is from that of EP, in units of η, relative to EP."""
    quarter = RUNGS["ep-gain-0.25"].update.settings[0]
    rates = [4 * gain * rate for rate in quarter]
    updates = []
    for name in ("ep-gain-0.25", "c-ep-gain-0.25"):
        recipe = recipes.changed(RUNGS[name], {"learning_rates": rates})
        parts = moved(engine_of(recipe, torch.float64), x, y)
        each = [rate for rate in rates for _ in ("weight", "bias")]
        updates.append(
            torch.cat([(p / rate).flatten() for p, rate in zip(parts, each, strict=True)])
        )
    exact, continual = updates
    return float((continual - exact).norm() / exact.norm())


def cosines(
    recipe: Recipe, precise: Recipe, x: Tensor, y: Tensor, *names: str
) -> dict[str, list[float]]:
    """Return the cosine between updates of the weights and those of a precise recipe, per layer.

    The names are those of dtypes of convolutions. The precise update is in float64.
    """
    exact = moved(engine_of(precise, torch.float64), x, y)[::2]
    found = {}
    for name in names:
        precision = getattr(torch, name)
        dtype = torch.promote_types(precision, torch.float32)
        engine = engine_of(recipe, dtype, precision if precision != dtype else None)
        weights = moved(engine, x.to(dtype), y.to(dtype))[::2]
        found[name] = [
            float(torch.cosine_similarity(a.flatten(), b.double().flatten(), 0))
            for a, b in zip(exact, weights, strict=True)
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=8)
    options = parser.parse_args()
    data = fitting(load("cifar-10"), RUNGS["centred"])
    x, y = data.train.batch(torch.arange(options.images)[None], torch.float64)
    engine = engine_of(RUNGS["centred"], torch.float64)
    state = engine.relax(x, RUNGS["centred"].rule.free_steps).state
    centred = recipes.changed(RUNGS["centred"], {"weight_decay": 0.0})
    small = recipes.changed(centred, {"beta": 1e-4})
    one_sided = recipes.changed(RUNGS["one-sided"], {"weight_decay": 0.0})
    found = {
        "what": f"feedback of C-EP in cifar10-conv, the first {options.images} training images",
        "lambda": eigenvalues(engine.model, x, state),
        "distance of C-EP from EP": {str(gain): distance(gain, x, y) for gain in GAINS},
        "cosine with the update for beta to 0": cosines(centred, small, x, y, *DTYPES),
        "the same with one nudged phase": cosines(one_sided, small, x, y, *DTYPES),
        "the same with C-EP": cosines(RUNGS["c-ep-gain-0.25"], small, x, y, *DTYPES),
        **machine.describe("cpu"),
    }
    RESULT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(RESULT.read_text("utf-8"), end="")


if __name__ == "__main__":
    main()
