"""`eqprop sweep`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from eqprop.exits import INTERRUPTED, MEMBER_NON_FINITE, OK, USER_ERROR
from eqprop.runs import UserError
from eqprop.runs.arithmetic import Arithmetic
from eqprop.runs.progress import printable, say
from eqprop.runs.run import check_device
from eqprop.sweeps import extras, file, listing, plan, worker
from eqprop.sweeps.cluster import Cluster
from eqprop.sweeps.local import Local
from eqprop.sweeps.sweep import Place, SweepFolder
from eqprop.sweeps.table import FILE, collect
from eqprop.sweeps.tasks import Task, pack
from eqprop.sweeps.worker import Ended, State

EXITS = {State.DONE: OK, State.FAILED: USER_ERROR, State.STOPPED: INTERRUPTED}


def add(commands: Any) -> argparse.ArgumentParser:
    """Add the command `sweep`; return its parser, to which the caller adds the arithmetic."""
    help = "Train a grid or a list of recipes, on this machine or on a Ray cluster, into one table."
    sweep: argparse.ArgumentParser = commands.add_parser(
        "sweep",
        help=help,
        description=help,
        epilog="The same command again continues with the tasks that are not done. Ctrl-C saves "
        "and stops every task. docs/sweeps.md describes the sweep file and the table. Exit codes: "
        "0 done, 2 invalid input or a failed task, 3 done but a network became non-finite, "
        "130 stopped.",
    )
    sweep.set_defaults(command=_sweep)
    sweep.add_argument("file", nargs="?", metavar="FILE", help="a sweep file")
    sweep.add_argument(
        "--on", choices=("local", "ray"), default="local", help="where tasks run (default: local)"
    )
    sweep.add_argument(
        "--address",
        metavar="A",
        help="address of a Ray cluster (default: start one on this machine)",
    )
    sweep.add_argument("--out", metavar="DIR", help="folder of the sweep (default: runs/FILE)")
    sweep.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="number of local processes (default: one per core on a CPU, one on a GPU)",
    )
    sweep.add_argument(
        "--pack",
        type=int,
        metavar="N",
        help="largest number of networks per task (default: all that can train as one ensemble)",
    )
    sweep.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    sweep.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="number of CPU threads per task (default: cores / jobs)",
    )
    sweep.add_argument(
        "--retries",
        type=int,
        default=2,
        metavar="N",
        help="number of restarts of a task whose process was killed (default: 2)",
    )
    sweep.add_argument(
        "--data", metavar="DIR", help="folder of the data files on the machines that run tasks"
    )
    sweep.add_argument(
        "--task", type=int, metavar="I", help="run only task I, in this process: for job arrays"
    )
    sweep.add_argument(
        "--dry-run",
        action="store_true",
        help="print tasks, networks, parameters, estimated time and memory; train nothing",
    )
    sweep.add_argument(
        "--table",
        metavar="DIR",
        help=f"only write DIR/{FILE} from all run folders below DIR",
    )
    return sweep


def _sweep(options: argparse.Namespace) -> int:
    if options.table is not None:
        if options.file is not None:
            raise UserError("--table needs no FILE: leave one of both out")
        table = collect(Path(options.table))
        for problem in table.problems:
            print(printable(f"left out: {problem}"))
        print(table.write(Path(options.table) / FILE))
        return OK
    if options.file is None:
        raise UserError("FILE is missing: give a sweep file (docs/sweeps.md), or --table DIR")
    _check(options)
    path = Path(options.file)
    tasks = pack(file.read(path), options.pack)
    folder = SweepFolder(Path(options.out or Path("runs") / path.stem))
    jobs = _jobs(options, len(tasks))
    threads = _threads(options, jobs)
    if options.dry_run:
        device = options.device if options.on == "local" else "cpu"  # a cluster's GPU is elsewhere
        at_once = jobs if options.on == "local" else 1
        plan.show(tasks, at_once, device, threads, options.data, _arithmetic(options))
        return OK
    if options.task is not None:
        return _one(tasks, folder, options)
    place: AbstractContextManager[Place]
    if options.on == "local":
        share_gpu = options.device == "cuda" and jobs > 1
        place = Local(jobs, options.retries, folder.logs, share_gpu)
    else:
        gpus = int(options.device == "cuda")
        place = Cluster(folder.path, options.address, options.retries, threads, gpus)
    try:
        results = folder.run(
            tasks,
            place,
            {task.name: _job(task, folder, threads, options) for task in tasks},
            path.read_bytes(),
        )
    except KeyboardInterrupt:
        print(f"stopped at once. To go on: {_command(options)}")
        return INTERRUPTED
    return _finished(tasks, folder, results, options)


def _check(options: argparse.Namespace) -> None:
    for name, least in (("jobs", 1), ("retries", 0), ("task", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name} must be {least} or more, not {value}")
    if options.on == "ray":
        extras.ray()
        if options.jobs is not None:
            raise UserError("--jobs is for --on local: Ray runs as many tasks as it has CPUs for")
    elif options.address is not None:
        raise UserError("--address is of a Ray cluster: add --on ray")
    else:
        check_device(options.device)


def _jobs(options: argparse.Namespace, tasks: int) -> int:
    """Return how many tasks share the cores of this machine. For Ray, the number of cores."""
    cores = os.cpu_count() or 1
    if options.on == "ray":
        return cores
    return int(options.jobs or (1 if options.device == "cuda" else min(tasks, cores)))


def _threads(options: argparse.Namespace, jobs: int) -> int:
    """Return the number of threads per task, so that concurrent tasks use each core once."""
    return int(options.threads or max(1, (os.cpu_count() or 1) // jobs))


def _arithmetic(options: argparse.Namespace) -> Arithmetic:
    return Arithmetic(options.precision, options.tf32)


def _job(
    task: Task, folder: SweepFolder, threads: int | None, options: argparse.Namespace
) -> worker.Job:
    return folder.job(task, options.device, threads, options.data, _arithmetic(options))


def _one(tasks: Sequence[Task], folder: SweepFolder, options: argparse.Namespace) -> int:
    if options.task > len(tasks):
        raise UserError(f"--task must be 1 to {len(tasks)}, the tasks of this sweep")
    task = tasks[options.task - 1]
    ended = worker.run(_job(task, folder, options.threads, options))
    if ended.state is State.FAILED:
        raise UserError(f"{task.name}: {ended.message}")
    said = ended.message or ended.state.value
    if ended.state is State.STOPPED:
        said += f". To go on: {_command(options)}"
    say(f"{task.name}: {said}", sys.stdout)
    return _code([task], folder, {task.name: ended})


def _finished(
    tasks: Sequence[Task],
    folder: SweepFolder,
    results: Mapping[str, Ended],
    options: argparse.Namespace,
) -> int:
    """Print the results of a sweep and write its table; return the exit code."""
    for task in tasks:
        ended = results[task.name]
        if ended.state is State.FAILED:
            print(f"{task.name} failed: {printable(ended.message)}")
    code = _code(tasks, folder, results)
    if any(folder.of(task).glimpse() for task in tasks):
        table = collect(folder.path)
        if code != INTERRUPTED:
            listing.show_settings(table)
        try:
            print(table.write(folder.path / FILE))
        except extras.Missing as error:
            print(f"no table: {error}")
    if code == INTERRUPTED:
        done = sum(ended.state is State.DONE for ended in results.values())
        print(f"stopped, {done} of {len(tasks)} tasks done. To go on: {_command(options)}")
    return code


def _code(tasks: Sequence[Task], folder: SweepFolder, results: Mapping[str, Ended]) -> int:
    codes = {EXITS[ended.state] for ended in results.values()}
    done = [task for task in tasks if results[task.name].state is State.DONE]
    if any(folder.of(task).summary()["frozen"] for task in done):
        codes.add(MEMBER_NON_FINITE)
    return next(c for c in (INTERRUPTED, USER_ERROR, MEMBER_NON_FINITE, OK) if c in codes)


def _command(options: argparse.Namespace) -> str:
    words = ["eqprop", "sweep", options.file]
    for name, default in (
        ("on", "local"),
        ("address", None),
        ("out", None),
        ("task", None),
        ("jobs", None),
        ("pack", None),
        ("device", "cpu"),
        ("threads", None),
        ("retries", 2),
        ("data", None),
    ):
        value = getattr(options, name)
        if value != default:
            words += [f"--{name}", str(value)]
    return shlex.join([*words, *_arithmetic(options).words])
