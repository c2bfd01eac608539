"""Train several runs of the paper at once on one GPU, and time it.

    python benchmarks/together.py [--share S] [--results DIR] [--out FILE] RUN ...

Each run is a separate process (`eqprop paper run RUN --device cuda`), so one run can use
multiprocessors that another leaves idle. The processes share the GPU through NVIDIA's multi-process
service, which the script starts if it is installed. Without it they take turns, which is slower.
The output of a run goes to runs/log-RUN.txt. Runs that DIR already has are not trained again. The
times go to FILE. With --share each run trains only that part of its epochs, and the script
estimates the time of all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from eqprop.papers.continual_ep.training import BY_NAME
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.sweeps.sharing import shared_gpu

LOGS = Path("runs")
# the networks of the full table and of appendix F.2: 65 with one hidden layer, 60 with two
GROUPS = {
    "1h": ("c-vf-1h", "c-ep-1h", "c-ep-1h-fixed-beta", "rescaled-c-ep-1h", "ep-1h"),
    "2h": (*(f"c-vf-2h-part-{k}" for k in (1, 2, 3)), "c-ep-2h", "ep-2h", "rescaled-c-ep-2h"),
}


def command(run: str, options: argparse.Namespace) -> list[str]:
    eqprop = [sys.executable, "-m", "eqprop"]
    if options.share == 1:
        return [*eqprop, "paper", "run", run, "--device", "cuda", "--results", options.results]
    recipe = BY_NAME[run].resolved(quick=False)
    less = recipes.changed(recipe, {"epochs": max(1, round(options.share * recipe.epochs))})
    file = LOGS / f"share-{run}.toml"
    file.write_text(less.to_toml())
    shutil.rmtree(file.with_suffix(""), ignore_errors=True)
    out = ["--out", str(file.with_suffix(""))]
    return [*eqprop, "train", str(file), "--device", "cuda", *out]


def whole(seconds: dict[str, float], share: float) -> float:
    """Estimate the time of all epochs from that of a share: the start counts once."""
    summaries = {run: LOGS / f"share-{run}" / "summary.json" for run in seconds}
    starting = min(
        seconds[run] - json.loads(file.read_text())["wall_seconds"]
        for run, file in summaries.items()
    )
    return starting + (max(seconds.values()) - starting) / share


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        nargs="*",
        default=["1h"],
        metavar="RUN",
        help="; ".join(f"{name}: {' '.join(runs)}" for name, runs in GROUPS.items()),
    )
    parser.add_argument(
        "--share", type=float, default=1, metavar="S", help="share of the epochs, for an estimate"
    )
    parser.add_argument(
        "--results", default="runs/together", metavar="DIR", help="default: runs/together"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: results/together-RUN-gpu.json"
    )
    options = parser.parse_args()
    out = options.out or Path("results") / f"together-{'-'.join(options.runs)}-gpu.json"
    LOGS.mkdir(exist_ok=True)
    with shared_gpu() as added:
        started = time.perf_counter()
        running: dict[str, subprocess.Popen[bytes]] = {}
        for run in (run for name in options.runs for run in GROUPS.get(name, (name,))):
            with (LOGS / f"log-{run}.txt").open("wb") as log:
                running[run] = subprocess.Popen(
                    command(run, options),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | (added or {}),
                )
        seconds: dict[str, float] = {}
        failed = []
        while running:
            time.sleep(0.1)
            for run, process in list(running.items()):
                if process.poll() is not None:
                    del running[run]
                    seconds[run] = round(time.perf_counter() - started, 1)
                    print(run, seconds[run], "s, exit code", process.returncode, flush=True)
                    if process.returncode:
                        failed.append(run)
    if failed:
        print("failed:", *(f"{LOGS}/log-{run}.txt" for run in failed))
        return 1
    extrapolated = {}
    if options.share < 1:
        extrapolated = {"share": options.share, "whole": round(whole(seconds, options.share), 1)}
        print(extrapolated, flush=True)
    record = {
        "what": "seconds until a run ended, of runs that began together, compiling included",
        "multi-process service": added is not None,
        "all": max(seconds.values()),
        "runs": seconds,
        **extrapolated,
        **machine.describe("cuda"),
    }
    out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
