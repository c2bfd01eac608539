"""How large may the rates of C-EP be in the network of cifar10-conv, and what does rounding cost?

    python benchmarks/feedback.py           some minutes on a CPU
    python benchmarks/feedback.py RUN       with the weights of a run of C-EP, too

C-EP moves the weights while the neurons move. A change of a layer comes back to it multiplied by up
to (η/β) λ. Here λ is the largest eigenvalue of the mean outer product of what a position of the
layer reads (with a 1 for the bias), times the number of positions that share its weights. The
numbers are those of the first training images with the initial weights, after a free phase in
float64:

- λ of each layer,
- the relative distance between one update of C-EP and one of EP, each divided by η, for rates that
  make (η/β) λ the same in each layer,
- one update of rescaled C-EP with β < 0, by share η_tiny/η: for each layer, its length relative to
  that of EP, and the cosine between them,
- the cosine between one update and that of centred EP for β → 0 (β = 0.0001 in float64), for each
  layer: of centred EP, of EP with one nudged phase, and of C-EP with (η/β) λ = 1/4, with
  convolutions of several dtypes. Parameters are in float32 if these have fewer bits.

Writes results/feedback-cifar10.json, from which docs/ladder.md has its numbers. With RUN it writes
results/feedback-NAME.json instead: λ, and one update of C-EP beside one of EP with the rates for
(η/β) λ = 1/4, for both signs of β and several minibatches, with the initial weights and with those
of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad, unfold

import eqprop
from eqprop.data import Dataset, load
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import fitting, recipe_engine
from eqprop.sweeps.file import read
from eqprop.synapses import Conv2d
from eqprop.types import State

Weights = Mapping[str, Tensor]
ROOT = Path(__file__).parent.parent
RESULT = ROOT / "results" / "feedback-cifar10.json"
RUNGS = {recipe.name: recipe for recipe in read(ROOT / "examples" / "ladder.toml")}
GAINS = (1, 1 / 4, 1 / 16, 1 / 64)  # of (η/β) λ
SHARES = (0.0001, 0.001, 0.01)  # η_tiny/η of rungs
DTYPES = ("float64", "float32", "float16", "bfloat16")
MINIBATCHES = 3  # of a run


def engine_of(
    recipe: Recipe,
    dtype: torch.dtype,
    precision: torch.dtype | None = None,
    weights: Weights | None = None,
) -> Engine:
    """Return the engine of a recipe, with the initial weights or other ones."""
    members = list(recipe.members())
    net = recipe.network.build(members, dtype)
    if weights is not None:
        net.load_state_dict(weights)
    return recipe_engine(recipe, members, net, precision=precision)


def free_eigenvalues(x: Tensor, weights: Weights | None = None) -> list[float]:
    """Return λ of each layer after a free phase in float64. x is as in `eigenvalues`."""
    base = RUNGS["centred"]
    engine = engine_of(base, torch.float64, weights=weights)
    assert isinstance(engine.model, Network)
    return eigenvalues(engine.model, x, engine.relax(x, base.rule.free_steps).state)


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


def moved(engine: Engine, x: Tensor, y: Tensor, sign: float = 1.0) -> list[Tensor]:
    """Return how each parameter moves in one minibatch, with a sign of β."""
    start = [p.clone() for p in engine.model.parameters()]
    engine.step(x, y, torch.full((1,), sign))
    return [p - before for p, before in zip(engine.model.parameters(), start, strict=True)]


def updates(
    gain: float, x: Tensor, y: Tensor, sign: float = 1.0, weights: Weights | None = None
) -> tuple[Tensor, Tensor]:
    """Return one update of EP and one of C-EP, each divided by η.

    Args:
        gain: (η/β) λ of each layer with the initial weights.
        x: [1, batch, channels, height, width].
        y: [1, batch, classes].
        sign: that of β.
        weights: state of the network. Default None: the initial one.
    """
    quarter = RUNGS["ep-gain-0.25"].update.settings[0]
    rates = [4 * gain * rate for rate in quarter]
    each = [rate for rate in rates for _ in ("weight", "bias")]
    found = []
    for name in ("ep-gain-0.25", "c-ep-gain-0.25"):
        recipe = recipes.changed(RUNGS[name], {"learning_rates": rates})
        parts = moved(engine_of(recipe, torch.float64, weights=weights), x, y, sign)
        found.append(torch.cat([(p / rate).flatten() for p, rate in zip(parts, each, strict=True)]))
    exact, continual = found
    return exact, continual


def distance(gain: float, x: Tensor, y: Tensor) -> float:
    """Return how far an update of C-EP is from that of EP, relative to EP."""
    exact, continual = updates(gain, x, y)
    return float((continual - exact).norm() / exact.norm())


def beside_ep(share: float, x: Tensor, y: Tensor) -> list[dict[str, float]]:
    """Return length and cosine of each layer's update in a rung with this share, beside EP's."""
    exact, continual = (
        moved(engine_of(recipes.changed(RUNGS[name], {"weight_decay": 0.0}), torch.float64), x, y)
        for name in ("ep-negative", f"c-ep-share-{share:g}")
    )
    return [
        {
            "length": float(c.norm() / e.norm()),
            "cosine": float(torch.cosine_similarity(c.flatten(), e.flatten(), 0)),
        }
        for c, e in zip(continual[::2], exact[::2], strict=True)  # of the weights
    ]


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


def with_weights(x: Tensor, y: Tensor, weights: Weights | None) -> dict[str, object]:
    """Return λ of the first minibatch, and length and cosine of C-EP's update of each.

    x is [minibatches, batch, channels, height, width]. The length is relative to that of EP.
    """
    found: dict[str, object] = {"lambda": free_eigenvalues(x[:1], weights)}
    for name, sign in (("beta > 0", 1.0), ("beta < 0", -1.0)):
        rows = []
        for m in range(len(x)):
            exact, continual = updates(1 / 4, x[m, None], y[m, None], sign, weights)
            cosine = float(torch.cosine_similarity(exact, continual, 0))
            rows.append({"length": float(continual.norm() / exact.norm()), "cosine": cosine})
        found[name] = rows
    return found


def of_a_run(run: eqprop.Run, data: Dataset, images: int) -> dict[str, object]:
    """Return what feedback does with the initial weights and with those of a run."""
    index = torch.arange(MINIBATCHES * images).reshape(MINIBATCHES, images)
    x, y = data.train.batch(index, torch.float64)
    assert run.net is not None
    of = f"the first {MINIBATCHES} minibatches of {images} training images"
    return {
        "what": f"C-EP with the rates of {run.recipe.name} against EP, {of}",
        "epochs": run.epoch,
        "initial weights": with_weights(x, y, None),
        "weights of the run": with_weights(x, y, run.net.state_dict()),
    }


def at_first(data: Dataset, images: int) -> dict[str, object]:
    """Return what feedback and rounding do with the initial weights."""
    x, y = data.train.batch(torch.arange(images)[None], torch.float64)
    centred = recipes.changed(RUNGS["centred"], {"weight_decay": 0.0})
    small = recipes.changed(centred, {"beta": 1e-4})
    one_sided = recipes.changed(RUNGS["one-sided"], {"weight_decay": 0.0})
    return {
        "what": f"feedback of C-EP in cifar10-conv, the first {images} training images",
        "lambda": free_eigenvalues(x),
        "distance of C-EP from EP": {str(gain): distance(gain, x, y) for gain in GAINS},
        "rescaled C-EP beside EP": {f"{it:g}": beside_ep(it, x, y) for it in SHARES},
        "cosine with the update for beta to 0": cosines(centred, small, x, y, *DTYPES),
        "the same with one nudged phase": cosines(one_sided, small, x, y, *DTYPES),
        "the same with C-EP": cosines(RUNGS["c-ep-gain-0.25"], small, x, y, *DTYPES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="folder of a run of C-EP")
    parser.add_argument("--images", type=int, default=8, help="per minibatch; default 8")
    options = parser.parse_args()
    data, file = fitting(load("cifar-10"), RUNGS["centred"]), RESULT
    if options.run is None:
        found = at_first(data, options.images)
    else:
        run = eqprop.load(options.run)
        found = of_a_run(run, data, options.images)
        file = RESULT.with_name(f"feedback-{run.recipe.name}.json")
    found |= machine.describe("cpu")
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(file.read_text("utf-8"), end="")


if __name__ == "__main__":
    main()
