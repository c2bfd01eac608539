"""Time the captured graph on a GPU: milliseconds per minibatch for 1, 5, 45 and 64 networks.

The script first compares it with the reference engine in float64. The data stays on the device as
bytes and is gathered there. Each time is the median of several measurements of 100 minibatches,
after a warm-up. The result is engines-gpu.json in the given folder (default: results).
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import rows
import torch

import eqprop
from eqprop import data
from eqprop.runs import machine

PROTOTYPE = {  # a plain CUDA-graph prototype, float32
    "c-ep-1h": {1: 1.56, 5: 1.90, 45: 2.41, 64: 2.53},
    "c-ep-2h": {1: 5.9, 5: 8.2, 45: 17.0, 64: 20.1},
}


def parity() -> float:
    worst = 0.0
    for row in rows.ROWS:
        recipe = rows.load(row, 3)
        members = recipe.members()
        plain = recipe.network.build(members, torch.float64)
        fast = copy.deepcopy(plain).cuda()
        rule, rates = recipe.learning_rule(members), recipe.rates(members)
        a = eqprop.make_engine(plain, rule, rates, "reference")
        b = eqprop.make_engine(fast, rule, rates, "telescoped")
        for m in range(3):
            g = torch.Generator().manual_seed(m)
            x = torch.rand(3, 20, 784, generator=g, dtype=torch.float64)
            y = torch.eye(10, dtype=torch.float64)[torch.randint(10, (3, 20), generator=g)]
            a.step(x, y)
            b.step(x.cuda(), y.cuda())
        pairs = zip(plain.parameters(), fast.parameters(), strict=True)
        error = max(float((p - q.cpu()).abs().max()) for p, q in pairs)
        print(f"parity {row}: {error:.1e}", flush=True)
        worst = max(worst, error)
    return worst


def milliseconds(row: str, networks: int) -> float:
    recipe = rows.load(row, networks)
    engine = rows.engine(recipe, "telescoped", "cuda")
    train = data.load("mnist").train.shaped((784,)).to("cuda")
    return rows.microseconds(engine, train, networks, 100) / 1000


def main() -> int:
    worst = parity()
    if worst > 1e-9:
        print(f"parity failed: {worst}")
        return 1
    results: dict[str, dict[str, dict[int, float]]] = {}
    for precision in ("float32", "tf32"):
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        results[precision] = {}
        for row in rows.ROWS:
            ms = {n: round(milliseconds(row, n), 4) for n in (1, 5, 45, 64)}
            results[precision][row] = ms
            print(precision, row, ms, flush=True)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results")
    record = {
        "what": "milliseconds per minibatch of 20 for 1, 5, 45 and 64 networks at once",
        "parity_float64": worst,
        "results": results,
        "prototype": PROTOTYPE,
        **machine.describe("cuda"),
    }
    (folder / "engines-gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
