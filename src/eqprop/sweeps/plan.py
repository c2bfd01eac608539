"""`eqprop sweep --dry-run`: the estimated cost of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from eqprop import data as datasets
from eqprop import memory
from eqprop.dynamics import NonFinite
from eqprop.runs.arithmetic import Arithmetic
from eqprop.runs.machine import describe
from eqprop.runs.progress import clock, printable
from eqprop.sweeps.board import table as aligned
from eqprop.sweeps.estimate import Estimate, estimate
from eqprop.sweeps.tasks import FIELDS, Task


def show(
    tasks: Sequence[Task],
    jobs: int,
    device: str,
    threads: int,
    data: str | None,
    arithmetic: Arithmetic,
) -> None:
    """Print tasks, networks, parameters, and time and memory estimated on this machine.

    Args:
        tasks: the tasks of the sweep.
        jobs: number of tasks at a time.
        device, threads: device and number of threads per task.
        data: the folder of the data files. None: find it by the name of the data set.
        arithmetic: precision of the products.
    """
    before, precision = memory.held(), arithmetic.set_up()
    estimates = list(_estimates(tasks, device, threads, data, precision))
    rows = [("task", "networks", "parameters", "time", "memory", "")]
    for task, found in zip(tasks, estimates, strict=True):
        size = task.recipe.network.size
        rows.append(
            (
                task.name,
                str(task.networks),
                f"{task.networks * size:,}",
                _time(found.seconds) if found else "unknown",
                memory.text(before + found.bytes) if found else "unknown",
                task.label if found else "becomes non-finite in its first minibatches",
            )
        )
    for line in aligned(rows, right=(1, 2, 3, 4)):
        print(printable(line))
    known = [found for found in estimates if found]
    total = sum(found.seconds for found in known)
    networks = sum(task.networks for task in tasks)
    print(f"{len(tasks)} task(s), {networks} networks, {_time(total)} one after the other")
    if jobs > 1:
        print(f"{jobs} at a time: {_time(_together([f.seconds for f in known], jobs))}")
    where: Any = describe(device, threads)["machine"]
    timed = max((found.minibatches for found in known), default=0)
    print(
        f"measured on {where.get('gpu') or where['processor']}, {threads} thread(s) per task, up "
        f"to {timed} minibatches and some test samples of each recipe. Memory is that of a "
        f"process before training ({memory.text(before)}) and of its tensors; "
        f"{memory.text(memory.available(device) or 0)} are free here"
    )


def _estimates(
    tasks: Sequence[Task],
    device: str,
    threads: int,
    data: str | None,
    precision: torch.dtype | None,
) -> Iterator[Estimate | None]:
    """Yield one estimate per task, None if the task becomes non-finite.

    Tasks that differ only in β, angle, learning rates, seed and name share one estimate.
    """
    measured: dict[Any, Estimate] = {}
    loaded: dict[str, datasets.Dataset] = {}
    for task in tasks:
        values = task.recipe.values()
        alike = {p: v for p, v in values.items() if p not in (*FIELDS, "name", "description")}
        key = (task.networks, repr(alike))
        if key not in measured:
            name = task.recipe.data.name
            if name not in loaded:
                loaded[name] = datasets.load(name, data)
            try:
                measured[key] = estimate(task.recipe, loaded[name], device, threads, precision)
            except NonFinite:  # with other rates it may not
                yield None
                continue
        yield measured[key]


def _time(seconds: float) -> str:
    return clock(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def _together(seconds: Sequence[float], jobs: int) -> float:
    """Return the time until the last task ends, if `jobs` tasks run at a time."""
    free = [0.0] * jobs
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free)
