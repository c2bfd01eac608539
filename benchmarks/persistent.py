"""Time the persistent kernel on a GPU: microseconds a minibatch, a free step, a nudged step.

python benchmarks/persistent.py [ROW:NETWORKS:CLUSTER ...]
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import rows
import torch

from eqprop import data
from eqprop.engines.persistent import CannotBuild, PersistentEngine

STAMPS = (
    "read minibatch",
    "spread",
    "input drive",
    "begin",
    "free: partial sums",
    "free: hidden",
    "free: receive, output",
    "free: barrier",
    "begin nudging",
    "nudged: partial sums",
    "nudged: drive",
    "nudged: hidden",
    "nudged: output",
    "nudged: weights",
    "update",
    "between",
)


def cycles(row: str, networks: int, cluster: int) -> dict[str, int]:
    """Cycles a minibatch spends in each part, of one thread."""
    recipe = rows.load(row, networks)
    plain = rows.engine(recipe, "telescoped", "cuda")
    engine = PersistentEngine(plain.model, plain.rule, plain.rates, plain.cost, cluster, True)
    train = data.load("mnist").train.to("cuda")
    engine.run(train, torch.randint(60000, (200, networks, 20), device="cuda"))
    assert engine.clocks is not None
    return dict(zip(STAMPS, (engine.clocks // 200).tolist(), strict=True))


def microseconds(
    row: str, networks: int, cluster: int | None, more: tuple[int, int], minibatches: int = 200
) -> float:
    recipe = rows.load(row, networks)
    T, K = recipe.free_steps + more[0], recipe.nudged_steps + more[1]
    recipe = replace(recipe, free_steps=T, nudged_steps=K)
    plain = rows.engine(recipe, "telescoped", "cuda")
    engine = PersistentEngine(plain.model, plain.rule, plain.rates, plain.cost, cluster)
    train = data.load("mnist").train.to("cuda")
    index = torch.randint(60000, (minibatches, networks, 20), device="cuda")
    engine.run(train, index)
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        engine.run(train, index)
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - started) / minibatches)
    return statistics.median(times)


CASES = [
    f"{row}:{networks}:{cluster}"
    for row in ("ep-1h", "c-ep-1h", "c-vf-1h")
    for networks, cluster in ((1, 16), (1, 8), (5, 16), (5, 8), (5, 4), (45, 2), (65, 2))
]


def main() -> int:
    for case in sys.argv[1:] or CASES:
        row, networks, cluster = case.split(":")
        try:
            whole, free, nudged = (
                microseconds(row, int(networks), int(cluster) or None, more)
                for more in ((0, 0), (40, 0), (0, 20))
            )
        except CannotBuild as error:
            print(case, error)
            continue
        print(
            f"{case}: {whole:.1f} µs; free step {(free - whole) / 40:.2f}, "
            f"nudged step {(nudged - whole) / 20:.2f}",
            flush=True,
        )
        print(cycles(row, int(networks), int(cluster)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
