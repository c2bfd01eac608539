"""Run each persistent kernel, for each rule, under the tools of NVIDIA's compute-sanitizer.

    python benchmarks/sanitize.py [--out DIR] [TOOL ...]

Networks of the paper's widths train on one minibatch and relax another. The result is
sanitize-gpu.json, with the last line of each tool. (You can also name racecheck, but it did not end
within a minute.)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

import eqprop
from eqprop.data import Split
from eqprop.engines.persistent import PersistentEngine
from eqprop.runs import machine

TOOLS = ("memcheck", "initcheck", "synccheck")
BARRIERS = "65536"  # number of barriers that synccheck can track, on all multiprocessors together
RULES = ((eqprop.EP, True), (eqprop.ContinualEP, True), (eqprop.ContinualVF, False))
SIZES = ((40, 512, 10), (40, 512, 512, 10))


def exercise() -> None:
    """Run every kernel and rule once, under a tool."""
    torch.manual_seed(0)
    for sizes in SIZES:
        for kind, tied in RULES:
            net = eqprop.layered(*sizes, tied=tied, ensemble=(2,), dtype=torch.float32).cuda()
            rule = kind(beta=0.3, free_steps=4, nudged_steps=2)
            plain = eqprop.make_engine(net, rule, 0.01, "reference")
            engine = PersistentEngine(plain.job)
            x = torch.rand(2, 20, sizes[0], device="cuda")
            y = torch.eye(sizes[-1], device="cuda")[torch.arange(20) % sizes[-1]]
            engine.step(x, y)
            engine.relax(x, 3)
            bytes_ = torch.randint(256, (100, sizes[0]), dtype=torch.uint8, device="cuda")
            labels = torch.arange(100, device="cuda").to(torch.uint8) % sizes[-1]
            engine.run(Split(bytes_, labels, sizes[-1]), torch.arange(40).reshape(2, 20).cuda())
            torch.cuda.synchronize()
            print("ran", "-".join(map(str, sizes)), kind.__name__, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", nargs="*", default=TOOLS, metavar="TOOL")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--exercise", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.exercise:
        exercise()
        return 0
    found = {}
    for tool in options.tools:
        command = ["compute-sanitizer", "--tool", tool]
        command += ["--num-cuda-barriers", BARRIERS] if tool == "synccheck" else []
        command += [sys.executable, __file__, "--exercise"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        found[tool] = {
            "says": next((line.strip("= ") for line in lines if "SUMMARY" in line), "nothing"),
            "ran": [line.removeprefix("ran ") for line in lines if line.startswith("ran ")],
        }
        print(tool, found[tool], flush=True)
        record = {"tools": found, **machine.describe("cuda")}
        (options.out / "sanitize-gpu.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
