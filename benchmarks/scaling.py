"""Measure how time and memory of the compiled engine grow with depth, width, batch and ensemble.

The results are results/scaling.png and results/scaling.json: medians for one minibatch of C-EP with
T = 40 and K = 15. Each axis varies from 784-512-10, batch 20, two networks.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import eqprop
from eqprop.runs import machine

RESULTS = Path(__file__).parent.parent / "results"
AXES = {
    "hidden layers": [1, 2, 3, 4],
    "hidden neurons": [64, 128, 256, 512, 1024, 2048],
    "batch": [1, 5, 10, 20, 50, 100],
    "networks": [1, 2, 4, 8, 16, 32],
}
USUAL = {"hidden layers": 1, "hidden neurons": 512, "batch": 20, "networks": 2}


def measure(point: dict[str, int]) -> tuple[float, float]:
    """Return milliseconds per minibatch, and megabytes of parameters and buffers."""
    hidden = [point["hidden neurons"]] * point["hidden layers"]
    net = eqprop.layered(784, *hidden, 10, init="fan_in", ensemble=(point["networks"],))
    rule = eqprop.ContinualEP(beta=0.2, free_steps=40, nudged_steps=15)
    engine = eqprop.make_engine(net, rule, 1e-3, "native")
    x = torch.rand(point["networks"], point["batch"], 784)
    x = x * (torch.rand_like(x) < 0.19)  # the share of nonzero pixels in MNIST
    y = torch.eye(10)[torch.randint(10, (point["networks"], point["batch"]))]
    times = []
    for r in range(14):
        started = time.perf_counter()
        engine.step(x, y)
        if r >= 3:
            times.append(1e3 * (time.perf_counter() - started))
    parameters = sum(p.numel() * p.element_size() for p in net.parameters())
    return statistics.median(times), (parameters + len(engine._scratch)) / 2**20


def main() -> int:
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {}
    figure, axes = plt.subplots(2, 4, figsize=(12, 5), constrained_layout=True)
    for column, (axis, values) in enumerate(AXES.items()):
        measured = [measure(USUAL | {axis: value}) for value in values]
        results[axis] = [
            {"value": v, "milliseconds": ms, "megabytes": mb}
            for v, (ms, mb) in zip(values, measured, strict=True)
        ]
        for row, (label, scale) in enumerate((("ms per minibatch", 0), ("MB", 1))):
            panel = axes[row, column]
            panel.plot(values, [m[scale] for m in measured], "o-")
            panel.set(xlabel=axis, ylabel=label, ylim=(0, None))
            panel.grid(alpha=0.3)
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "scaling.png", dpi=100)
    record = {"usual": USUAL, "results": results, **machine.describe("cpu")}
    (RESULTS / "scaling.json").write_text(json.dumps(record, indent=1) + "\n")
    print(RESULTS / "scaling.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
