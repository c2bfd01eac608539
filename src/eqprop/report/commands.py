"""The commands `eqprop paper list`, `run` and `report`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eqprop.exits import INTERRUPTED, OK
from eqprop.report import writer
from eqprop.report.catalogue import Catalogue
from eqprop.report.item import MARKS, Item, Order, Task
from eqprop.report.results import Results
from eqprop.runs import Interrupted, UserError
from eqprop.runs.run import check_device

DAMAGED = "damaged"
Command = Callable[[argparse.Namespace], int]


def add(commands: Any, catalogue: Catalogue) -> None:
    """Add `paper` to the commands of `eqprop`."""
    first = "; ".join(f"eqprop paper run {words}" for words in catalogue.first)
    help = (
        "Regenerate the tables and figures of the paper, and compare them with the published ones."
    )
    paper = commands.add_parser(
        "paper",
        help=help,
        description=help,
        epilog=f"Start with: eqprop paper list; {first}; eqprop paper report",
    )
    parts = paper.add_subparsers(required=True, metavar="COMMAND")

    listing = _part(
        parts,
        "list",
        partial(_list, catalogue),
        "List every item: its place in the paper, what it needs, its state, and whether it passes.",
        "✓: every number is within the tolerance. ✗: one is not. –: not run in full, or without "
        "verdict. missing: not run. quick: a small run, without verdict. full: as in the paper. "
        "damaged: a file cannot be read; the end of the list names it. "
        "The training runs that items share are listed below the items.",
    )
    listing.add_argument(
        "--json",
        action="store_true",
        help='print a list of {"item", "rows": [{"row", "paper", "ours", "passed", "reading", '
        '"source", "note"}], "state", "passed"}, with "problem" if a file is damaged',
    )

    run = _part(
        parts,
        "run",
        partial(_run, catalogue),
        "Compute an item: train or compute what is missing, and store it in --results.",
        "Complete results are kept. To continue after a stop, give the same command again. Items "
        "share training runs. You can also name a single run, such as a variant of a released "
        f"recipe: eqprop paper run {catalogue.by_itself}. "
        "Exit codes: 0 done, 2 invalid input, 130 stopped.",
    )
    run.add_argument(
        "items", nargs="+", metavar="ITEM", help="names from `eqprop paper list`, or all"
    )
    run.add_argument(
        "--quick",
        action="store_true",
        help="use few epochs, networks, angles and samples: minutes on two cores; marked as quick",
    )
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    run.add_argument(
        "--data", metavar="DIR", help="folder of the idx files (default: EQPROP_DATA, the cache, …)"
    )

    write = _part(
        parts,
        "report",
        partial(_report, catalogue),
        "Write the report: an HTML page, the same in Markdown, and the figures.",
        "Without --update-docs it writes only to --out and --results.",
    )
    write.add_argument(
        "--update-docs",
        action="store_true",
        help="also fill in the sections marked <!-- paper: ITEM --> … <!-- end --> of README.md "
        "and docs/*.md, next to the folder of results; fail if a section would shrink",
    )
    write.add_argument(
        "--out", metavar="FILE", default="report.html", help="the page (default: report.html)"
    )


def _part(parts: Any, name: str, command: Command, help: str, epilog: str) -> Any:
    part = parts.add_parser(name, help=help, description=help, epilog=epilog)
    part.set_defaults(command=command)
    part.add_argument(
        "--results", metavar="DIR", default="results", help="folder of results (default: results)"
    )
    part.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default for training: one per core)"
    )
    return part


def _list(catalogue: Catalogue, options: argparse.Namespace) -> int:
    results = Results(Path(options.results))
    if options.json:
        described = [_described(item, results) for item in catalogue.items]
        print(json.dumps(described, indent=1, ensure_ascii=False))
        return OK
    problems: dict[str, None] = {}  # an ordered set
    state: str
    lines = [("item", "state", "", "in the paper", "needs")]
    for item in catalogue.items:
        try:
            state, mark = item.completeness(results), MARKS[item.passed(results)]
        except UserError as error:
            state, mark = DAMAGED, MARKS[None]
            problems[str(error)] = None
        lines.append((item.name, state, mark, item.place, item.needs))
    _print_table(lines)
    print()
    runs = [("training run", "state", "epochs", "what it is")]
    for run in catalogue.runs:
        done, of = run.progress(results)
        try:
            state = run.completeness(results)
        except UserError as error:
            state = DAMAGED
            problems[str(error)] = None
        runs.append((run.name, state, f"{done}/{of}", run.note))
    _print_table(runs)
    for problem in problems:
        print(f"\n{problem}")
    return OK


def _described(item: Item, results: Results) -> dict[str, Any]:
    try:
        return _readable(item, results)
    except UserError as error:
        problem = str(error)
        return {"item": item.name, "rows": [], "state": DAMAGED, "passed": None, "problem": problem}


def _readable(item: Item, results: Results) -> dict[str, Any]:
    rows = [
        {
            "row": row.name,
            "paper": row.paper,
            "ours": row.ours,
            "passed": row.passed,
            "reading": row.reading,
            "source": None if row.source is None else str(row.source),
            "note": row.note,
        }
        for row in item.rows(results)
    ]
    return {
        "item": item.name,
        "rows": rows,
        "state": item.completeness(results),
        "passed": item.passed(results),
    }


def _print_table(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def _run(catalogue: Catalogue, options: argparse.Namespace) -> int:
    check_device(options.device)
    if "all" in options.items and len(options.items) > 1:
        raise UserError("all means every item: name no other item with it")
    everything = options.items == ["all"]
    chosen: Sequence[Task] = (
        catalogue.items if everything else [catalogue.find(name) for name in options.items]
    )
    order = Order(
        Results(Path(options.results)),
        quick=options.quick,
        device=options.device,
        data=options.data,
        threads=options.threads,
        say=_say,
    )
    try:
        for task in chosen:
            task.run(order)
    except Interrupted:
        print(f"To go on: {_command(options)}")
        return INTERRUPTED
    for task in chosen:
        print(f"{task.name}: {task.standing(order.results)}")
    return OK


def _say(line: str) -> None:
    print(line, flush=True)


def _command(options: argparse.Namespace) -> str:
    words = ["eqprop", "paper", "run", *options.items, *["--quick"] * options.quick]
    for name, default in (
        ("device", "cpu"),
        ("data", None),
        ("results", "results"),
        ("threads", None),
    ):
        value = getattr(options, name)
        if value != default:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _report(catalogue: Catalogue, options: argparse.Namespace) -> int:
    root = Path(options.results)
    if not root.is_dir():
        raise UserError(f"--results {root}: no such folder: give the one with paper/ in it")
    out, update_docs = Path(options.out), options.update_docs
    for path in writer.write(catalogue, Results(root), out, update_docs=update_docs):
        print(path)
    return OK
