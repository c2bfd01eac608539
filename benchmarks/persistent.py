"""Time the persistent kernels on a GPU: microseconds per minibatch, free step and nudged step.

    python benchmarks/persistent.py [--out DIR] [ROW:NETWORKS:CLUSTER ...]

Times are per minibatch of all networks together. Cluster 0 means that the engine chooses. The time
of a step is the extra time of a minibatch with more steps. The result is persistent-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import rows
import torch

from eqprop import data
from eqprop.data import Split
from eqprop.engines.persistent import TURN, CannotBuild, PersistentEngine
from eqprop.runs import machine
from eqprop.runs import recipe as recipes

CASES = [
    *(f"{row}:{networks}:0" for row in rows.ROWS for networks in (1, 5, 45, 65)),
    *(f"c-ep-1h:5:{cluster}" for cluster in (16, 8, 4, 2)),
]
STAMPS = {  # what the kernels do between two stamps
    "1h": (
        *("read minibatch", "spread", "input drive", "begin"),
        *("free: partial sums", "free: hidden", "free: receive", "free: output"),
        *("begin nudging", "nudged: partial sums", "nudged: drive", "nudged: hidden"),
        *("nudged: output", "nudged: weights", "update"),
    ),
    "2h": (
        *("step: begin", "step: wait for states, products", "step: drive", "step: wait for sums"),
        *("step: states", "end of free phase", "nudged: wait"),
        *("read minibatch", "spread", "input drive", "begin", "begin nudging"),
        *("nudged: changes", "nudged: move", "update"),
    ),
}


def engine(
    row: str, networks: int, cluster: int, more: tuple[int, int], profile: bool
) -> PersistentEngine:
    """Return the engine of a row, with `more` free and nudged steps."""
    recipe = rows.load(row, networks)
    T, K = recipe.rule.free_steps + more[0], recipe.rule.nudged_steps + more[1]
    recipe = recipes.changed(recipe, {"free_steps": T, "nudged_steps": K})
    plain = rows.engine(recipe, "telescoped", "cuda")
    return PersistentEngine(plain.job, cluster or None, profile)


def measure(case: str, train: Split) -> dict[str, Any]:
    row, networks, cluster = case.split(":")
    members, many = int(networks), 200
    steps = (40, 20)
    profiled = engine(row, members, int(cluster), (0, 0), True)
    whole, free, nudged = (
        rows.microseconds(engine(row, members, int(cluster), more, False), train, members, many)
        for more in ((0, 0), (steps[0], 0), (0, steps[1]))
    )
    found: dict[str, Any] = {
        "cluster": profiled.kernel(20).cluster,
        "minibatch": round(whole, 1),
        "free step": round((free - whole) / steps[0], 3),
        "nudged step": round((nudged - whole) / steps[1], 3),
    }
    profiled.run(train, torch.randint(60000, (many, members, 20), device="cuda"))
    assert profiled.clocks is not None
    launched = many if profiled.kernel(20).resident() >= members else min(many, TURN)
    cycles = (profiled.clocks // launched).tolist()
    found["cycles"] = dict(zip(STAMPS[row[-2:]], cycles, strict=False))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="ROW:NETWORKS:CLUSTER")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    train = data.load("mnist").train.shaped((784,)).to("cuda")
    results: dict[str, dict[str, Any]] = {}
    for case in options.cases:
        try:
            results[case] = measure(case, train)
        except CannotBuild as error:
            results[case] = {"cannot": str(error)}
        print(case, results[case], flush=True)
    record = {
        "what": "microseconds for a minibatch of 20 of all networks together, float32",
        "results": results,
        **machine.describe("cuda"),
    }
    (options.out / "persistent-gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
