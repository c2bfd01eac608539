"""Run each persistent kernel, for each rule, under the tools of NVIDIA's compute-sanitizer.

    python benchmarks/sanitize.py [--out DIR] [TOOL ...]

A network of the paper's widths trains on a minibatch and relaxes another; for racecheck, which is a
thousand times slower, a small one. Writes sanitize-gpu.json: what each tool says at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

import eqprop
from eqprop.engines.persistent import PersistentEngine
from eqprop.runs import machine

TOOLS = {
    "memcheck": [],
    "initcheck": [],
    "synccheck": ["--num-cuda-barriers", "65536"],  # of all multiprocessors together
    "racecheck": [],
}
RULES = ((eqprop.EP, True), (eqprop.ContinualEP, True), (eqprop.ContinualVF, False))
SIZES = {
    "wide": ((40, 512, 10), 8, (40, 512, 512, 10), 16),
    "small": ((6, 40, 3), 2, (6, 40, 40, 3), 4),
}


def exercise(size: str) -> None:
    """What runs under a tool."""
    torch.manual_seed(0)
    shallow, shallow_cluster, deep, deep_cluster = SIZES[size]
    batch = 20 if size == "wide" else 9
    for sizes, cluster in ((shallow, shallow_cluster), (deep, deep_cluster)):
        for kind, tied in RULES:
            net = eqprop.layered(*sizes, tied=tied, ensemble=(2,), dtype=torch.float32).cuda()
            rule = kind(beta=0.3, free_steps=4, nudged_steps=2)
            plain = eqprop.make_engine(net, rule, 0.01, "reference")
            engine = PersistentEngine(plain.model, plain.rule, plain.rates, plain.cost, cluster)
            x = torch.rand(2, batch, sizes[0], device="cuda")
            y = torch.eye(sizes[-1], device="cuda")[torch.arange(batch) % sizes[-1]]
            engine.step(x, y)
            engine.relax(x, 3)
            torch.cuda.synchronize()
            print("ran", "-".join(map(str, sizes)), kind.__name__, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", default=list(TOOLS), metavar="TOOL")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--exercise", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.exercise:
        exercise(options.exercise)
        return 0
    found = {}
    for tool in options.tools:
        command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], sys.executable, __file__]
        size = "small" if tool == "racecheck" else "wide"
        done = subprocess.run([*command, "--exercise", size], capture_output=True, text=True)
        lines = done.stdout.splitlines()
        (options.out / f"sanitize-{tool}.txt").write_text(done.stdout + done.stderr)
        found[tool] = {
            "says": next((n.strip("= ") for n in reversed(lines) if "SUMMARY" in n), "nothing"),
            "ran": [line[4:] for line in lines if line.startswith("ran ")],
        }
        print(tool, found[tool], flush=True)
        record = {"tools": found, **machine.describe("cuda")}
        (options.out / "sanitize-gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
