"""What over-relaxation saves: residual and update of a network after fewer sweeps.

    python benchmarks/relaxation.py RUN                     on the CPU, 32 images
    python benchmarks/relaxation.py RUN --device cuda --images 256
    python benchmarks/relaxation.py cifar10-resnet          with initial weights

RUN is the folder of a run of EP whose layers move in turn, or the name of such a recipe. For each ω
and number of free and nudged sweeps, for training images from rest, in float32: the median residual
of an image and the one that a tenth of them exceed; and angle and relative length of the EP update,
with centred and with one-sided nudging, compared with centred nudging by a tenth of β after 240
free and 60 nudged sweeps with the same ω. Several ω may end in different steady states, so each has
its own. Writes results/relaxation-<name of the run or recipe>.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

import eqprop
from eqprop.analysis import angle
from eqprop.network import Network
from eqprop.nudging import Nudging
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.training import fitting
from eqprop.timesteps import Discrete

RESULTS = Path(__file__).parent.parent / "results"
OMEGAS = (1.0, 1.25, 1.5, 1.75)
SWEEPS = ((10, 3), (15, 5), (20, 6), (30, 10), (60, 20))  # free and nudged
MOST = (240, 60)


def with_relaxation(net: Network, omega: float) -> Network:
    """Return the same network with steps of this ω."""
    relaxed = net.members([0])
    relaxed.time = Discrete(omega)
    relaxed.nudge_scale = relaxed.time.epsilon
    return relaxed


def update(net: Network, nudging: Nudging, sweeps: tuple[int, int], x: Tensor, y: Tensor) -> Tensor:
    """Return the update of EP, [1, n, 1]."""
    groups = len(net.split())
    free, nudged = (groups * n for n in sweeps)
    rule = eqprop.EP(
        nudging=nudging, free_steps=free, nudged_steps=nudged, in_turn=True, nudged_in_turn=True
    )
    (found,) = rule.gradients(net, x, y)
    return torch.cat([g.flatten(1) for g in found.values()], 1)[..., None]


def measure(net: Network, beta: float, x: Tensor, y: Tensor) -> list[dict[str, float]]:
    """Return one record per number of sweeps."""
    exact, records = update(net, eqprop.Centred(beta / 10), MOST, x, y), []
    for sweeps in SWEEPS:
        free = eqprop.relax(net, x, len(net.split()) * sweeps[0], in_turn=True)
        residual = free.sample_residual.flatten()
        record = {
            "omega": net.time.epsilon,
            "free": sweeps[0],
            "nudged": sweeps[1],
            "residual": float(residual.median()),
            "residual_90": float(residual.quantile(0.9)),
        }
        for name, nudging in (("centred", eqprop.Centred(beta)), ("once", eqprop.OneSided(beta))):
            found = update(net, nudging, sweeps, x, y)
            record[f"{name}_angle"] = float(angle(found, exact, net.ensemble).mean())
            record[f"{name}_length"] = float(found.norm() / exact.norm())
        records.append(record)
        print(" ".join(f"{key} {value:.3g}" for key, value in record.items()), flush=True)
    return records


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="folder of the run, or a recipe")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    device = options.device
    if options.run in recipes.names():
        recipe = recipes.load(options.run, {"seeds": 1})
        net = recipe.network.build(recipe.members()).to(device)
    else:
        run = eqprop.load(options.run)
        recipe, net = run.recipe, run.net.to(device)
    if not (recipe.rule.in_turn and recipe.rule.name == "ep" and recipe.nudging is not None):
        parser.error(f"{options.run}: the rule must be EP with in_turn = true")
    torch.backends.cudnn.allow_tf32 = False
    data = fitting(eqprop.data.load(recipe.data.name), recipe).to(device)
    index = torch.arange(options.images, device=device)[None]
    x, y = recipe.data.augmentation.draw(data.train, [0], 0).batch(index, net.dtype)
    beta = recipe.members()[0].beta
    assert beta is not None
    found = [
        record for omega in OMEGAS for record in measure(with_relaxation(net, omega), beta, x, y)
    ]
    name = Path(options.run).resolve().name
    record = {
        "what": f"{options.images} training images in the network of {name}",
        "most": MOST,
        "results": found,
        **machine.describe(device),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (options.out / f"relaxation-{name}.json").write_text(text + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
