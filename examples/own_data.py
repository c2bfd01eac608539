"""Your own data: C-EP and C-VF on two moons, at three angles between forward and backward weights.

At the end you have trained twelve networks on tensors of your own, and a table of their errors:
tied weights beside weights that differ by 0°, 90° and 180°.
"""

import math

import torch
from torch import Tensor

import eqprop

ANGLES = (0.0, 90.0, 180.0)
SETTINGS = {"layers": [2, 64, 2], "learning_rates": [0.04, 0.02], "free_steps": 30}


def two_moons(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return points [n, 2] on two interleaved half circles, and their labels [n]."""
    source = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 2
    around = math.pi * (torch.rand(n, generator=source) + labels)
    points = torch.stack((around.cos() + labels - 0.5, around.sin() + 0.5 * labels - 0.25), -1)
    return points + 0.1 * torch.randn(n, 2, generator=source), labels


def trained(recipe: str, **overrides: object) -> eqprop.Run:
    """Train three networks per setting on 1000 points and test them on 500."""
    return eqprop.train(
        recipe,
        data=(two_moons(1000, seed=0), two_moons(500, seed=1)),
        epochs=60,
        seeds=3,
        overrides={**SETTINGS, **overrides},
        progress=False,
    )


def main() -> None:
    for run in (trained("c-ep-1h"), trained("c-vf-1h-in-turn", angle=list(ANGLES))):
        for setting in run.summary["settings"]:
            error = setting["test_error"]
            name = f"{run.recipe.name} {setting['label']}"
            print(f"{name:28} {error['mean']:6.2f} ± {error['std']:.2f} %")


if __name__ == "__main__":
    main()
