"""Measure a sweep of 40 small networks: packed ensembles against one process per network.

    python benchmarks/sweep.py [--repeats N] [--out FILE]

C-EP, 784-64-10, one epoch of MNIST: four values of β, two of the learning rates, five seeds. Each
way of packing runs the same `eqprop sweep`, from the shell to the table, in turn with the others;
medians count. All ways must give the same networks. The result is results/sweep-cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eqprop.runs import machine
from eqprop.sweeps.table import Table, collect

RESULTS = Path(__file__).parent.parent / "results"
SWEEP = """
recipe = "c-ep-1h"
seeds = 5

[set]
network.layers = [784, 64, 10]
epochs = 1
data.train_samples = {images}
data.test_samples = 1000

[grid]
nudging.beta = [0.1, 0.2, 0.3, 0.5]
update.learning_rates = [[0.0056, 0.0028], [0.0112, 0.0056]]
"""
NETWORKS, IMAGES = 40, (5_000, 20_000)
WAYS = {
    "one ensemble": [],
    "one ensemble per core": ["--pack", str(-(-NETWORKS // (os.cpu_count() or 1)))],
    "one process per network": ["--pack", "1"],
}


def run(file: Path, out: Path, words: list[str]) -> tuple[float, Table]:
    """Run a sweep; return its seconds and its table."""
    command = [sys.executable, "-m", "eqprop", "sweep", str(file), "--out", str(out), *words]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started, collect(out)


def errors(table: Table) -> list[tuple[object, ...]]:
    keys = ("nudging.beta", "update.learning_rates", "seed", "final_test_error")
    return sorted(tuple(row[key] for key in keys) for row in table.rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--out", type=Path, default=RESULTS / "sweep-cpu.json", metavar="FILE")
    options = parser.parse_args()
    where, load = machine.describe("cpu"), os.getloadavg()
    results = []
    for images in IMAGES:
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        training: dict[str, list[float]] = {way: [] for way in WAYS}
        came = []
        for _ in range(options.repeats):
            for way, words in WAYS.items():
                with tempfile.TemporaryDirectory() as own:
                    file = Path(own) / "sweep.toml"
                    file.write_text(SWEEP.format(images=images))
                    took, table = run(file, Path(own) / "out", words)
                    came.append(errors(table))
                    assert len(came[-1]) == NETWORKS
                    assert came[-1] == came[0], "the networks depend on how they were packed"
                    shutil.rmtree(Path(own) / "out")
                seconds[way].append(took)
                each = {row["folder"]: row["seconds"] for row in table.rows}
                training[way].append(sum(each.values()))
                print(f"{images} images, {way}: {took:.1f} s", flush=True)
        for way in WAYS:
            middle = statistics.median(seconds[way])
            results.append(
                {
                    "images": images,
                    "way": way,
                    "seconds": round(middle, 2),
                    "of": [round(each, 2) for each in seconds[way]],
                    "seconds in training, all tasks": round(statistics.median(training[way]), 2),
                    "networks per minute": round(60 * NETWORKS / middle, 1),
                }
            )
    record = {
        "what": "seconds of a whole sweep of 40 networks, 784-64-10, C-EP, one epoch; medians",
        "load before and after": [[round(it, 2) for it in at] for at in (load, os.getloadavg())],
        "results": results,
        **where,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
