"""Measure savings and costs of two shortcuts in the free phase: layers in turn, and a tolerance.

With each shortcut the compiled engine trains two networks of a recipe on all of MNIST for a few
epochs. The script writes results/shortcuts.json and prints a table in Markdown.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import eqprop
from eqprop import data
from eqprop.runs import machine
from eqprop.runs import recipe as recipes

RESULT = Path(__file__).parent.parent / "results" / "shortcuts.json"
EPOCHS = 3
SHORTCUTS = {
    "exact T, synchronous": {},
    "in turn": {"in_turn": True},
    "tolerance 1e-3": {"tolerance": 1e-3},
    "tolerance 1e-2": {"tolerance": 1e-2},
    "in turn, tolerance 1e-3": {"in_turn": True, "tolerance": 1e-3},
}


def main() -> int:
    torch.set_num_threads(1)
    mnist = data.load("mnist")
    results = {}
    print(
        "| | ms for one network and minibatch, evaluation included | free steps | test error, % |"
    )
    print("| --- | ---: | ---: | ---: |")
    for name in ("ep-1h", "c-ep-1h"):
        for title, fields in SHORTCUTS.items():
            recipe = recipes.load(name, {"epochs": EPOCHS, "seeds": 2, **fields})
            run = eqprop.train(recipe, mnist, progress=False)
            seconds, last = run.summary["wall_seconds"], run.metrics[-1]
            row = {
                "milliseconds": 1e3 * seconds / (EPOCHS * 3000 * 2),
                "free_steps": sum(last["free_steps"]) / 2,
                "test_error": run.summary["test_error"]["mean"],
            }
            results[f"{name}, {title}"] = row
            print(
                f"| {name}, {title} | {row['milliseconds']:.2f} | {row['free_steps']:.1f} | "
                f"{row['test_error']:.2f} |",
                flush=True,
            )
    RESULT.write_text(
        json.dumps({"epochs": EPOCHS, "results": results, **machine.describe("cpu")}, indent=1)
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
