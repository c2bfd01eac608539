"""Time the CPU engines against the reference and the baseline: `make bench`.

Everything is timed in one process, interleaved round by round, and compared by medians: the
machine is shared and its speed drifts. Milliseconds are for one network and one minibatch of 20.
Writes results/engines-cpu.json and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rows
import torch
from baseline import Baseline

from eqprop.runs import machine

RESULT = Path(__file__).parent.parent / "results" / "engines-cpu.json"


def timed(work: Callable[[int], object], minibatch: int) -> float:
    started = time.perf_counter()
    work(minibatch)
    return time.perf_counter() - started


def measure(row: str, rounds: int, batches: list) -> dict[str, float]:
    """Median milliseconds for one network and minibatch, of each contender."""
    one, five = rows.load(row, 1), rows.load(row, 5)
    baseline = Baseline(*rows.alone(one))
    contenders: dict[str, tuple[int, Callable[[int], object]]] = {}

    def add(name: str, members: int, step: Callable[..., object], single: bool = False) -> None:
        def run(r: int) -> object:
            x, y = batches[r % len(batches)]
            return step(x[0], y[0]) if single else step(x[:members], y[:members])

        contenders[name] = (members, run)

    add("baseline", 1, baseline.step, single=True)
    add("reference", 1, rows.engine(one, "reference").step)
    add("native, 1 network", 1, rows.engine(one, "native").step)
    add("native, 5 networks, 1 thread", 5, rows.engine(five, "native", threads=1).step)
    add("native, 5 networks", 5, rows.engine(five, "native").step)
    add("telescoped, 5 networks", 5, rows.engine(five, "telescoped").step)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for r in range(rounds + 1):
        for name, (members, run) in contenders.items():
            # the baseline runs as its authors run it, with torch's threads; the engines need one
            torch.set_num_threads(2 if name in ("baseline", "reference") else 1)
            time.sleep(0.02)  # until the threads of the one before have gone to sleep
            run(r)
            seconds = [timed(run, r + k) for k in range(3)]
            if r > 0:
                times[name].append(1e3 * statistics.median(seconds) / members)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", nargs="+", default=rows.ROWS, choices=rows.ROWS)
    options = parser.parse_args()
    batches = rows.minibatches(5, 16)
    results: dict[str, dict[str, float]] = {}
    for row in options.rows:
        results[row] = measure(row, options.rounds, batches)
        print(row, {k: round(v, 3) for k, v in results[row].items()}, file=sys.stderr, flush=True)
    record = {
        "what": "milliseconds for one network and one minibatch of 20, median",
        "rounds": options.rounds,
        "results": results,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **machine.describe("cpu"),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(table(results))
    print(f"\n{record['machine']['processor']}, {record['machine']['cores']} cores; {RESULT}")
    return 0


def table(results: dict[str, dict[str, float]]) -> str:
    lines = [
        "| ms for one network and minibatch | baseline | reference | this engine, 1 network | "
        "5 networks | 1 network | 5 networks |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, ms in results.items():
        single, five = ms["native, 1 network"], ms["native, 5 networks"]
        lines.append(
            f"| {row} | {ms['baseline']:.1f} | {ms['reference']:.1f} | {single:.2f} | {five:.2f} | "
            f"{ms['baseline'] / single:.0f}× | {ms['baseline'] / five:.0f}× |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
