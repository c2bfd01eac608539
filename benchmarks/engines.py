"""Time the CPU engines, the reference engine and the baseline: `make bench`.

All run in one process, interleaved round by round, and medians are compared, since the speed of a
shared machine drifts. Milliseconds are per network and minibatch of 20. The script writes
results/engines-cpu.json and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rows
import torch
from baseline import Baseline
from torch import Tensor

from eqprop import data
from eqprop.data import Split
from eqprop.engines import Engine, NativeEngine, make_engine
from eqprop.peak import Peak
from eqprop.runs import machine

RESULT = Path(__file__).parent.parent / "results" / "engines-cpu.json"


AT_ONCE = NativeEngine.chunk  # minibatches per call of `run`, as in training


def measure(row: str, rounds: int, train: Split) -> dict[str, float]:
    """Return the median milliseconds per network and minibatch for each engine.

    With `run`, the engines gather their minibatches from the bytes of the data set. The baseline
    and `step` get theirs ready-made. Dense inputs are random, without zeros.
    """
    one, five = rows.load(row, 1), rows.load(row, 5)
    at_once = AT_ONCE if row.endswith("1h") else 4  # enough for two hidden layers, which are slower
    source = torch.Generator().manual_seed(0)
    index = torch.randint(len(train), (AT_ONCE, 5, 20), generator=source)
    ready = [train.batch(i) for i in index[:at_once]]
    dense = [(torch.rand(5, 20, 784, generator=source), y) for _, y in ready]
    baseline, dense_baseline = (Baseline(*rows.alone(one)) for _ in range(2))

    def scripted(network: Baseline, batches: list[tuple[Tensor, Tensor]]) -> Callable[[], int]:
        def run() -> int:
            for x, y in batches[:3]:
                network.step(x[0], y[0])
            return 3

        return run

    def stepping(
        engine: Engine, members: int, batches: list[tuple[Tensor, Tensor]]
    ) -> Callable[[], int]:
        def run() -> int:
            for x, y in batches:
                engine.step(x[:members], y[:members])
            return len(batches) * members

        return run

    def running(engine: Engine, members: int, count: int) -> Callable[[], int]:
        def run() -> int:
            engine.run(train, index[:count, :members])
            return count * members

        return run

    contenders: dict[str, Callable[[], int]] = {
        "baseline": scripted(baseline, ready),
        "baseline, dense": scripted(dense_baseline, dense),
        "reference": running(rows.engine(one, "reference"), 1, 2),
        "native, 1 network": running(rows.engine(one, "native"), 1, at_once),
        "native, 5 networks, 1 thread": running(rows.engine(five, "native", threads=1), 5, at_once),
        "native, 5 networks": running(rows.engine(five, "native"), 5, at_once),
        "native, 5 networks, step": stepping(rows.engine(five, "native"), 5, ready),
        "native, 1 network, step, dense": stepping(rows.engine(one, "native"), 1, dense),
        "native, 5 networks, step, dense": stepping(rows.engine(five, "native"), 5, dense),
        "telescoped, 5 networks": running(rows.engine(five, "telescoped"), 5, 2),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for r in range(rounds + 1):
        for name, run in contenders.items():
            # the baseline uses torch's threads, as its authors do; the engines need only one
            torch.set_num_threads(1 if name.startswith(("native", "telescoped")) else 2)
            time.sleep(0.02)  # until the threads of the previous engine sleep
            started = time.perf_counter()
            done = run()
            if r > 0:
                times[name].append(1e3 * (time.perf_counter() - started) / done)
    return {name: statistics.median(values) for name, values in times.items()}


def memory(row: str, train: Split) -> dict[str, float]:
    """Return the peak megabytes per network: weights, buffers and temporary tensors."""
    index = torch.arange(2 * 5 * 20).reshape(2, 5, 20)
    megabytes: dict[str, float] = {}
    for name, kind, members in (
        ("baseline", "baseline", 1),
        ("reference", "reference", 1),
        ("native, 1 network", "native", 1),
        ("native, 5 networks", "native", 5),
        ("telescoped, 5 networks", "telescoped", 5),
    ):
        recipe = rows.load(row, members)
        baseline = Baseline(*rows.alone(recipe))
        engine = rows.engine(recipe, "reference" if kind == "baseline" else kind)
        weights = sum(p.numel() * p.element_size() for p in engine.model.parameters())
        with Peak() as peak:
            if kind == "baseline":
                baseline.step(*train.batch(index[0, 0]))
            else:
                fresh = make_engine(engine.model, engine.rule, dict(engine.rates), kind)
                fresh.run(train, index[:, :members])
        megabytes[name] = (weights + peak.bytes) / members / 1e6
    return megabytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", nargs="+", default=rows.ROWS, choices=rows.ROWS)
    options = parser.parse_args()
    train = data.load("mnist").train.shaped((784,))
    results: dict[str, dict[str, float]] = {}
    megabytes = {row: memory(row, train) for row in options.rows}
    for row in options.rows:
        results[row] = measure(row, options.rounds, train)
        print(row, {k: round(v, 3) for k, v in results[row].items()}, file=sys.stderr, flush=True)
    record = {
        "what": "milliseconds for one network and one minibatch of 20, median",
        "rounds": options.rounds,
        "results": results,
        "megabytes": megabytes,
        **machine.describe("cpu"),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(table(results, megabytes))
    print(f"\n{record['machine']['processor']}, {record['machine']['cores']} cores; {RESULT}")
    return 0


def table(results: dict[str, dict[str, float]], megabytes: dict[str, dict[str, float]]) -> str:
    lines = [
        "| | baseline, ms | reference, ms | 1 network, ms | 5 networks, ms | 1 network | "
        "5 networks | baseline, MB | 5 networks, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, ms in results.items():
        single, five = ms["native, 1 network"], ms["native, 5 networks"]
        mb = megabytes[row]
        lines.append(
            f"| {row} | {ms['baseline']:.1f} | {ms['reference']:.1f} | {single:.2f} | {five:.2f} | "
            f"{ms['baseline'] / single:.3g}× | {ms['baseline'] / five:.3g}× | "
            f"{mb['baseline']:.0f} | {mb['native, 5 networks']:.0f} |"
        )
    lines += [
        "",
        "| `step`, ms | 5 networks | 1 network, dense | 5 networks, dense | baseline, dense | "
        "1 network, dense | 5 networks, dense |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, ms in results.items():
        single, five = (ms[f"native, {n}, step, dense"] for n in ("1 network", "5 networks"))
        slow = ms["baseline, dense"]
        lines.append(
            f"| {row} | {ms['native, 5 networks, step']:.2f} | {single:.2f} | {five:.2f} | "
            f"{slow:.1f} | {slow / single:.3g}× | {slow / five:.3g}× |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
