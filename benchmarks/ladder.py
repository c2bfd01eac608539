"""Time one training minibatch of rungs of the ladder (docs/ladder.md), on one GPU.

    python benchmarks/ladder.py [RUNG ...] [--tolerances T ...] [--rounds N] [--kernels N]

RUNG may also be a recipe, such as cifar10-resnet. With --tolerances, each rung is timed with each T
besides: its free phase ends when the network has settled to T. A T that rounding does not reach,
such as 1e-12, tells what it costs to look at every step.

Rungs are interleaved round by round and compared by medians, with random images that are drawn and
prepared as in training, several minibatches per call. By default one rung of each kind is timed:
the others do the same work. That of C-EP has the smallest η_tiny; with larger ones it may diverge
on random images. With --kernels N the script also prints the N kernels that take most of the time
of each rung. Writes results/ladder-gpu.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys

import torch
from convolution import RESULTS, epoch, milliseconds
from torch.profiler import ProfilerActivity, profile

from eqprop.engines import Engine
from eqprop.runs import machine
from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe
from eqprop.runs.training import recipe_engine
from eqprop.sweeps.file import read

RUNGS = {recipe.name: recipe for recipe in read(RESULTS.parent / "examples" / "ladder.toml")}
KINDS = (
    *("ep-centred", "ep-random-sign", "ep-centred-softmax", "c-ep-share-0.0001", "vf-centred"),
    *("vf-untied-45", "vf-kolen-pollack-45", "centred", "at-once", "half-sweeps"),
)
MINIBATCHES = 5  # per call


def engine(rung: Recipe, precision: torch.dtype) -> Engine:
    """Return the engine of a rung, with a network of its own."""
    members = rung.members()
    net = rung.network.build(members).cuda()
    return recipe_engine(rung, members, net, "convolutional", precision=precision)


def kernels(it: Engine, rung: Recipe, count: int) -> None:
    """Print the kernels with the largest total time in one minibatch."""
    given = epoch(rung, 1, rung.batch, "cuda")
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        it.run(*given)
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.device_time_total)
    total = sum(row.device_time_total for row in rows) / 1e3
    print(f"{rung.name}: {total:.1f} ms in kernels", flush=True)
    for row in rows[:count]:
        print(
            f"  {row.device_time_total / 1e3:7.2f} ms {row.count:5d} × {row.key[:110]}", flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "rungs", nargs="*", default=KINDS, metavar="RUNG", help="default: see above"
    )
    parser.add_argument("--tolerances", nargs="+", type=float, default=[], metavar="T")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=0, metavar="N")
    options = parser.parse_args()
    known = [*RUNGS, *recipes.names()]
    if unknown := [name for name in options.rungs if name not in known]:
        parser.error(f"no rung {unknown[0]!r}: choose from {', '.join(known)}")
    rungs = {
        name: RUNGS[name] if name in RUNGS else recipes.load(name, {"seeds": 1})
        for name in options.rungs
    }
    for name, tolerance in itertools.product(list(rungs), options.tolerances):
        rungs[f"{name}, tolerance {tolerance:g}"] = recipes.changed(
            rungs[name], {"rule.tolerance": tolerance}
        )
    torch.set_float32_matmul_precision("high")
    engines = {name: engine(rung, torch.float16) for name, rung in rungs.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for r in range(options.rounds + 1):
        for name, it in engines.items():
            given = epoch(rungs[name], MINIBATCHES, rungs[name].batch, "cuda")
            spent = milliseconds(lambda it=it, given=given: it.run(*given), "cuda") / MINIBATCHES
            if r > 0:  # the first round captures graphs
                times[name].append(spent)
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    for name, spent in medians.items():
        print(f"{name}: {spent:.1f} ms", flush=True)
    record = {
        "what": "milliseconds for one training minibatch of 128, median; rungs of the ladder",
        "rounds": options.rounds,
        "results": medians,
        **machine.describe("cuda", precision=torch.float16),
    }
    text = json.dumps(record, indent=1, ensure_ascii=False)
    (RESULTS / "ladder-gpu.json").write_text(text + "\n", "utf-8")
    for name, it in engines.items() if options.kernels else ():
        kernels(it, rungs[name], options.kernels)
    return 0


if __name__ == "__main__":
    sys.exit(main())
