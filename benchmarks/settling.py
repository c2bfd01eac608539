"""How long does a trained network take to settle, from rest and from an earlier state?

    python benchmarks/settling.py RUN                     on the CPU, 200 images
    python benchmarks/settling.py RUN --device cuda --images 1280 --minibatches 391

RUN is the folder of a run whose layers move in turn. For each number of sweeps in the free phase:
the error, the share of images whose answer is already the final one (after four times the sweeps
of the recipe), and the median residual. "rest" starts from zero. "augmented" starts from the final
state of the same image under another augmentation, as a run that keeps states from epoch to epoch
would, if the weights stood still. "an epoch later" also trains between the two. The images are
from the training set, because only they come again. From rest, also the angle between the EP
gradient with that many sweeps and the one with the most; and angle and relative length of the
gradient that nudges once, with the same β > 0. Writes results/settling-<name of the run>.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eqprop
from eqprop.analysis import angle
from eqprop.engines import Engine
from eqprop.network import Network
from eqprop.nudging import Nudging
from eqprop.runs import machine
from eqprop.runs.training import fitting, recipe_engine
from eqprop.types import State

RESULTS = Path(__file__).parent.parent / "results"
SHARES = (1 / 12, 1 / 6, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 1, 2)  # of the recipe's sweeps


class Settling:
    """The free phases of some images in a network, in turn.

    Args:
        net: one network, [1] in its ensemble.
        labels: the classes of the images, [n].
        most: steps after which an answer is final.
    """

    def __init__(self, net: Network, labels: Tensor, most: int) -> None:
        self.net, self.labels, self.most = net, labels.long(), most

    def final(self, x: Tensor) -> State:
        return eqprop.relax(self.net, x, self.most, in_turn=True).state

    def answers(self, state: State) -> Tensor:
        return self.net.readout.output(state).argmax(-1)[0]

    def measure(self, x: Tensor, start: State | None, steps: list[int]) -> list[dict[str, float]]:
        """Return one record per number of steps. x is [1, n, *shape]."""
        final = self.answers(self.final(x))
        found, done, state = [], 0, start
        for wanted in steps:
            free = eqprop.relax(self.net, x, wanted - done, in_turn=True, state=state)
            state, done = free.state, wanted
            answers = self.answers(state)
            record = {
                "sweeps": wanted // 2,
                "error": 100 * float((answers != self.labels).double().mean()),
                "final": 100 * float((answers == final).double().mean()),
                "residual": float(free.sample_residual.median()),
            }
            found.append(record)
        return found


def gradient_errors(
    net: Network, rule: eqprop.EP, x: Tensor, y: Tensor, steps: list[int], most: int
) -> list[dict[str, float]]:
    """Return how the EP gradient after each number of steps differs from that after most."""
    assert rule.nudging is not None
    once = eqprop.OneSided(rule.nudging.beta)

    def gradient(nudging: Nudging, free_steps: int) -> Tensor:
        short = eqprop.EP(
            nudging=nudging,
            free_steps=free_steps,
            nudged_steps=rule.nudged_steps,
            in_turn=True,
            nudged_in_turn=rule.nudged_in_turn,
        )
        (found,) = short.gradients(net, x, y)
        return torch.cat([g.flatten(1) for g in found.values()], 1)[..., None]

    def degrees(given: Tensor) -> float:
        return float(angle(given, exact, net.ensemble).mean())

    exact, found = gradient(rule.nudging, most), []
    for n in steps:
        one_sided = gradient(once, n)
        record = {
            "gradient_angle": degrees(gradient(rule.nudging, n)),
            "one_sided_angle": degrees(one_sided),
            "one_sided_length": float(one_sided.norm() / exact.norm()),
        }
        found.append(record)
    return found


def train(engine: Engine, split: Any, minibatches: int, batch: int) -> None:
    source = torch.Generator().manual_seed(1)
    for _ in range(minibatches):
        index = torch.randint(len(split), (1, 1, batch), generator=source)
        engine.run(split, index.to(engine.device))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--minibatches", type=int, default=10, help="between the two states")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args()
    run, device = eqprop.load(options.run), options.device
    recipe, net = run.recipe, run.net.members([0]).to(device)
    if not (recipe.rule.in_turn and recipe.rule.name == "ep"):
        parser.error(f"{options.run}: the run must be one of EP with in_turn = true")
    data = fitting(eqprop.data.load(recipe.data.name), recipe).to(device)
    seeds, index = [0], torch.arange(options.images, device=device)[None]
    draw = recipe.data.augmentation.draw
    before, after = (draw(data.train, seeds, epoch).batch(index, net.dtype)[0] for epoch in (0, 1))
    y = data.train.batch(index, net.dtype)[1]
    members, usual = recipe.members()[:1], recipe.rule.free_steps
    steps = sorted({max(2, 2 * round(share * usual / 2)) for share in SHARES})
    settling = Settling(net, data.train.labels[: options.images], 4 * usual)
    state = settling.final(before)
    found = {
        "rest": settling.measure(after, None, steps),
        "augmented": settling.measure(after, state, steps),
    }
    rule = recipe.learning_rule(members)
    assert isinstance(rule, eqprop.EP)
    part = slice(min(options.images, recipe.batch))
    errors = gradient_errors(net, rule, after[:, part], y[:, part], steps, 4 * usual)
    for record, error in zip(found["rest"], errors, strict=True):
        record |= error
    engine = recipe_engine(recipe, members, net)
    train(engine, draw(data.train, seeds, 0), options.minibatches, recipe.batch)
    found["an epoch later"] = settling.measure(after, state, steps)
    for name, records in found.items():
        print(name)
        for record in records:
            print("  " + "  ".join(f"{key} {value:.4g}" for key, value in record.items()))
    record = {
        "what": "free phases of training images by number of sweeps; % but for sweeps, residual, "
        "angles of gradients in degrees and their relative length",
        "run": Path(options.run).name,
        "images": options.images,
        "minibatches": options.minibatches,
        "results": found,
        **machine.describe(device),
    }
    file = options.out / f"settling-{Path(options.run).name}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
