"""The command line: `eqprop recipes | train | evaluate | show | compare | search | paper | …`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eqprop import __version__, explorer, quiet_start, runs
from eqprop import data as datasets
from eqprop.data import Dataset
from eqprop.dynamics import NonFinite
from eqprop.engines import KINDS, MAX_THREADS
from eqprop.exits import INTERRUPTED, MEMBER_NON_FINITE, OK, USER_ERROR
from eqprop.measured import Measured
from eqprop.memory import NotEnoughMemory
from eqprop.papers.continual_ep.catalogue import CATALOGUE
from eqprop.report import commands as paper
from eqprop.runs import Evaluation, Interrupted, Recipe, Run, UserError, figures
from eqprop.runs import recipe as recipes
from eqprop.runs.arithmetic import PRECISIONS, Arithmetic
from eqprop.runs.check import check
from eqprop.runs.evaluation import NothingToTest
from eqprop.runs.folder import RunFolder
from eqprop.runs.progress import printable, say
from eqprop.runs.run import SPLITS, check_device
from eqprop.runs.summary import error_text, errors, percent
from eqprop.runs.training import fitting
from eqprop.search import commands as search
from eqprop.search.folder import SearchFolder
from eqprop.seeds import generator
from eqprop.sweeps import commands as sweeps
from eqprop.sweeps import listing
from eqprop.sweeps import table as tables
from eqprop.tuning import commands as tuning

# options of `train` that the command to resume repeats, with their defaults
RESUMED = {"device": "cpu", "engine": "auto", "data": None, "threads": None}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        quiet_start.over()
        options = _parser().parse_args(arguments)
        if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
            raise UserError(f"--threads must be 1 to {MAX_THREADS}, not {options.threads}")
        torch.set_num_threads(options.threads or 1)  # small tensors are faster on one thread
        command: Callable[[argparse.Namespace], int] = options.command
        code = command(options)
        sys.stdout.flush()
        return code
    except (UserError, datasets.DataError, NonFinite, NotEnoughMemory) as error:
        message = str(error)
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        message = f"{error.filename or 'file'}: {error.strerror or error}"
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"eqprop: error: {printable(message)}", file=sys.stderr)
    return USER_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqprop",
        description="Train networks that settle to a steady state with local learning rules: "
        "EP, C-EP, VF and C-VF. Compare them with BPTT and RBP.",
        epilog="Start with: eqprop recipes; eqprop check c-ep-1h; "
        "eqprop train c-ep-1h --epochs 2 --seeds 2; eqprop show runs/c-ep-1h",
    )
    parser.add_argument("--version", action="version", version=f"eqprop {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], help: str, epilog: str = ""
    ) -> Any:
        command = commands.add_parser(name, help=help, description=help, epilog=epilog)
        command.set_defaults(command=run)
        command.add_argument(
            "--threads",
            type=int,
            metavar="N",
            help="number of CPU threads (default: one per core)",
        )
        return command

    add("recipes", _recipes, "List the recipes, one per line.")

    train = add(
        "train",
        _train,
        "Train the networks of a recipe, and save everything in a run folder.",
        epilog="A list in --set makes an ensemble: --set angle=0,22.5,45 --seeds 5 trains 15 "
        "networks together. Ctrl-C, SIGTERM or a closed terminal saves and stops the run, which "
        "prints the command that resumes it. The folder stores --data; a run does not resume with "
        "other images. Exit codes: 0 done, 2 invalid input, 3 done but a member became non-finite "
        "and was frozen, 130 stopped.",
    )
    _recipe_arguments(train)
    _data_argument(train)
    _device_argument(train)
    _arithmetic_arguments(train)
    train.add_argument(
        "--epochs", type=int, metavar="N", help="number of epochs (default: the recipe's)"
    )
    train.add_argument("--engine", choices=KINDS, default="auto", help="default: auto, the fastest")
    train.add_argument(
        "--out",
        metavar="DIR",
        help="run folder (default: runs/RECIPE, or runs/RECIPE-2, ... if that exists)",
    )
    train.add_argument("--resume", action="store_true", help="continue the run in --out")
    train.add_argument(
        "--angles-every",
        type=int,
        metavar="N",
        help="record the angle between the total update and BPTT's gradient every N minibatches",
    )

    evaluate = add(
        "evaluate",
        _evaluate,
        "Test the latest saved networks of a run on its own data.",
    )
    evaluate.add_argument("run", metavar="RUN", help="a run folder")
    evaluate.add_argument("--split", choices=SPLITS, default="test", help="default: test")
    evaluate.add_argument(
        "--free-steps", type=int, metavar="T", help="steps of the free phase (default: as trained)"
    )
    _data_argument(evaluate)
    _device_argument(evaluate)

    show = add(
        "show",
        _show,
        "Print and draw the results of a run: errors (mean ± standard deviation per setting), "
        "confusion matrix, residuals, saturation, norms and weight angles over time. For a search: "
        "best trials, history, importances and contours.",
    )
    show.add_argument(
        "run",
        metavar="RUN",
        help="a run, sweep or search folder, or a table; the figures go to the same folder",
    )
    _data_argument(show)
    _device_argument(show)

    compare = add("compare", _compare, "Compare runs in a table and a figure.")
    compare.add_argument(
        "runs", nargs="+", metavar="RUN", help="run folders, sweep folders or tables (.parquet)"
    )
    compare.add_argument(
        "--out",
        metavar="FILE",
        default="comparison.png",
        help="file of the figure (default: comparison.png)",
    )

    check_command = add(
        "check",
        _check,
        "Compare a recipe's update with BPTT's gradient before training. Print the angle between "
        "them, the shares of β, η and asymmetry in it, and the η at which an update turns away.",
    )
    _recipe_arguments(check_command)
    _data_argument(check_command)
    search_command = search.add(add)
    _recipe_arguments(search_command)
    _data_argument(search_command)
    _device_argument(search_command)
    tuning.add(commands)
    _arithmetic_arguments(sweeps.add(commands))

    explore = add(
        "explore",
        _explore,
        "Write the explorer, one HTML page that works offline, and open it in a browser.",
    )
    explore.add_argument(
        "run", nargs="?", metavar="RUN", help="a run folder; its networks come first on the page"
    )
    explore.add_argument(
        "--out", metavar="FILE", default="explorer.html", help="default: explorer.html"
    )
    explore.add_argument("--no-open", action="store_true", help="do not open a browser")
    paper.add(commands, CATALOGUE)
    return parser


def _recipe_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", metavar="RECIPE", help="a name from `eqprop recipes`, or a file")
    command.add_argument("--seeds", type=int, metavar="N", help="number of networks per setting")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="replace a field of the recipe, with or without its table: rule.free_steps=30, "
        "beta=0.3, train_samples=5000; rule=ep, data=mnist and nudging=centred mean rule.name, "
        "data.name and nudging.kind",
    )


def _data_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--data",
        metavar="DIR",
        help="folder of the data files (default: that of the run, EQPROP_DATA, the cache, …)",
    )


def _device_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")


def _arithmetic_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tf32", action="store_true", help="use TF32 on a GPU: faster, less exact"
    )
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="what convolutions multiply: float32 exactly, float16 or bfloat16 (faster on a GPU, "
        "less exact). Default: float32, on a GPU as TF32",
    )


def _load_recipe(options: argparse.Namespace, **more: Any) -> Recipe:
    overrides = dict(recipes.parse_override(text) for text in options.set)
    overrides |= {key: value for key, value in more.items() if value is not None}
    return recipes.load(options.recipe, overrides)


def _load_data(recipe: Recipe, folder: str | None) -> Dataset:
    return fitting(datasets.load(recipe.data.name, folder), recipe)


def _recipes(options: argparse.Namespace) -> int:
    width = max(len(name) for name in recipes.names())
    for name in recipes.names():
        print(f"{name:{width}}  {printable(recipes.load(name).description)}")
    return OK


def _train(options: argparse.Namespace) -> int:
    recipe = _load_recipe(options, epochs=options.epochs, seeds=options.seeds)
    check_device(options.device)
    precision = Arithmetic(options.precision, options.tf32).set_up()
    folder = RunFolder(_out_folder(options, recipe))
    folder.check(recipe, options.resume)
    data = _load_data(recipe, options.data or (folder.data_folder() if options.resume else None))
    if not options.out:
        say(f"in {folder.path}", sys.stdout)
    try:
        done = runs.train(
            recipe,
            data,
            folder.path,
            device=options.device,
            resume=options.resume,
            engine=options.engine,
            threads=options.threads,
            precision=precision,
            angles_every=options.angles_every,
        )
    except Interrupted as stopped:
        print(f"{stopped}. To go on: {_resume_command(options, folder)}")
        return INTERRUPTED
    picture = _drawn(lambda: figures.curves(folder))
    summary = done.summary
    split = recipe.data.measured
    found = {setting["label"]: setting[f"{split}_error"] for setting in summary["settings"]}
    lines = {
        label: f"{split} error {error_text(error)} over {error['members']} network(s)"
        for label, error in found.items()
    }
    _print_settings(lines, f"{summary['epochs']} epochs, {summary['wall_seconds']:.0f} s")
    print(picture)
    if summary["frozen"]:
        print(
            f"{len(summary['frozen'])} member(s) became non-finite and were frozen: "
            f"see {folder.path / 'summary.json'}"
        )
        return MEMBER_NON_FINITE
    return OK


def _out_folder(options: argparse.Namespace, recipe: Recipe) -> Path:
    if options.out:
        return Path(options.out)
    given = Path(options.recipe)
    if options.resume and given.name == "recipe.toml":
        return given.parent
    base = Path("runs") / recipe.folder_name
    numbered = [base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 1000))]
    taken = [path for path in numbered if path.exists()]
    if options.resume:
        known = [path for path in taken if RunFolder(path).begun]
        same = [path for path in known if not RunFolder(path).recipe().differences(recipe)]
        return (same or taken or [base])[-1]
    return next(path for path in numbered if path not in taken)


def _resume_command(options: argparse.Namespace, folder: RunFolder) -> str:
    words = ["eqprop", "train", str(folder.recipe_file), "--out", str(folder.path), "--resume"]
    for name, default in RESUMED.items():
        value = getattr(options, name)
        if value != default:
            words += [f"--{name}", str(value)]
    words += Arithmetic(options.precision, options.tf32).words
    if options.angles_every:
        words += ["--angles-every", str(options.angles_every)]
    return shlex.join(words)


def _drawn(draw: Callable[[], Path]) -> str:
    """Draw the curves; return a line about them. A failure does not stop the command."""
    try:
        return f"curves: {draw()}"
    except (UserError, OSError) as error:
        return f"no curves: {error}"


def _print_settings(lines: dict[str, str], shared: str) -> None:
    """Print one line per setting, then the shared text; for one setting, all on one line."""
    if len(lines) == 1:
        print(*lines.values(), shared, sep=", ")
        return
    for label, line in lines.items():
        print(f"{label}: {line}")
    print(shared)


def _evaluated(options: argparse.Namespace, of: Run, **more: Any) -> Evaluation:
    """Test a run on the data of the options, by default its own; print a line if they differ."""
    assert of.folder is not None
    folder = RunFolder(of.folder)
    if of.net is None:
        return runs.evaluate(of)  # raises an error with the reason
    data = _load_data(of.recipe, options.data or folder.data_folder())
    if (other := folder.other_data(data)) is not None:
        print(f"these are other images than the run had: those to {other} differ")
    return runs.evaluate(of, data, device=options.device, threads=options.threads, **more)


def _evaluate(options: argparse.Namespace) -> int:
    check_device(options.device)
    of = runs.load(options.run)
    split = options.split
    result = _evaluated(options, of, split=split, free_steps=options.free_steps)
    for i, k in enumerate(of.living):
        member = of.members[k]
        print(
            f"member {k} (seed {member.seed}"
            + (f", angle {member.angle:g}" if not of.recipe.network.tied else "")
            + f"): {split} error {result.error[i]:.2f} %, loss {result.loss[i]:.5f}, "
            f"unsettled {100 * result.unsettled[i]:.1f} %"
        )
    errors = dict(zip(of.living, result.error.tolist(), strict=True))
    lines = {}
    for label, chosen in of.recipe.settings().items():
        lines[label] = f"{split} error {percent(Measured.of(map(errors.get, chosen)))}"
    _print_settings(lines, _weights(of))
    return OK


def _weights(of: Run) -> str:
    """Return the epoch of the weights, and whether the run has later epochs, as text."""
    done = of.summary["epochs"]
    if of.epoch >= done:
        return f"after {of.place}"
    return f"after {of.place} of {done}: later weights are not there (resume the run to get them)"


def _show(options: argparse.Namespace) -> int:
    if SearchFolder(options.run).begun:
        return search.show(options.run)
    check_device(options.device)
    if (table := tables.find(Path(options.run))) is not None:
        return listing.show(table, Path(options.run))
    folder = RunFolder.existing(options.run)
    recipe, metrics, summary = folder.recipe(), folder.metrics(), folder.summary()
    if not metrics:
        raise UserError(f"{folder.path}: no epoch is complete yet")
    print(printable(f"{recipe.name}: {recipe.description}"))
    if not folder.verified:
        print("unverified: the folder has no hashes of its metrics")
    if not summary["complete"]:
        print(f"not finished: {len(metrics)} of {recipe.epochs} epochs")
    split = recipe.data.measured
    print(f"{'epoch':>6} {'train error':>18} {f'{split} error':>18}  unsettled")
    for setting in summary["settings"]:
        if setting["label"]:
            print(setting["label"])
        _show_epochs(metrics, split, setting["members"])
    lines = {
        setting["label"]: _last_epochs(recipe, setting, summary["epochs"])
        for setting in summary["settings"]
    }
    _print_settings(lines, _time_and_place(summary))
    for entry in summary["frozen"]:
        print(f"member {entry['member']} was frozen in epoch {entry['epoch']}: {entry['place']}")
    for record in metrics:
        for member in record.get("pruned", ()):
            print(f"member {member} was pruned after epoch {record['epoch']}")
    tested: Evaluation | NothingToTest
    try:
        of = runs.load(folder.path)
        tested = _evaluated(options, of, split=split)
    except NothingToTest as error:
        tested = error
    try:
        print(figures.curves(folder))
        print(figures.health(folder))
        if isinstance(tested, NothingToTest):
            print(f"no confusion matrix: {tested}")
        else:
            picture = figures.confusion(folder, tested.confusion.sum(0))
            current = (of.epoch, of.minibatch) == (len(metrics), 0)
            print(picture if current else f"{picture} ({_weights(of)})")
    except figures.NoMatplotlib as error:
        print(f"no pictures: {error}")
    return OK


def _time_and_place(summary: dict[str, Any]) -> str:
    if "machine" not in summary:
        return "time unknown"
    machine = summary["machine"]
    return f"{summary['wall_seconds']:.0f} s on {machine.get('gpu') or machine['processor']}"


def _show_epochs(metrics: list[dict[str, Any]], split: str, chosen: list[int]) -> None:
    """Print errors and weight angles over time for the chosen members."""

    def at(record: dict[str, Any], key: str, name: str | None = None) -> torch.Tensor:
        return figures.series([record], key, name)[0, chosen]

    shown = [m for m in metrics if m["epoch"] in _milestones(len(metrics))]
    for record in shown:
        both = (at(record, key) for key in ("train_error", f"{split}_error"))
        train, measured = (percent(Measured.of(e.tolist())) for e in both)
        unsettled = 100 * at(record, "unsettled").nanmean()
        print(f"{record['epoch']:>6} {train:>18} {measured:>18}  {unsettled:.1f} %")
    for name in metrics[0].get("weight_angle") or {}:
        first, last = (at(m, "weight_angle", name).nanmean() for m in (metrics[0], metrics[-1]))
        print(f"weight angle of {name}: {first:.1f}° → {last:.1f}°")


def _last_epochs(recipe: Recipe, setting: dict[str, Any], epochs: int) -> str:
    _, measured, ten = errors(recipe)
    last = f"last epoch {error_text(setting[measured])}"
    return last if epochs < 10 else f"{last}, mean of the last ten {error_text(setting[ten])}"


def _milestones(epochs: int) -> set[int]:
    """Return at most ten epochs spread over the run, with the first and the last."""
    return {1 + round(i * (epochs - 1) / 9) for i in range(10)}


def _compare(options: argparse.Namespace) -> int:
    folders: list[RunFolder] = []
    listed: list[Callable[[bool], Iterator[tuple[str, str]]]] = []
    kinds: set[str] = set()
    for path in map(Path, options.runs):
        if (table := tables.find(path)) is not None:
            folders += table.folders
            kinds |= table.measured
            listed.append(partial(listing.compared, table, path))
        else:
            folders.append(RunFolder.existing(path))
            kinds.add(folders[-1].recipe().data.measured)
            listed.append(partial(_compared, folders[-1]))
    rows = [row for lines in listed for row in lines(len(kinds) > 1)]
    width = max(len(name) for name, _ in rows)
    measured = "error" if len(kinds) > 1 else f"{kinds.pop()} error"
    print(f"{'run':{width}}  epochs  {'train error':>16}  {measured:>16}  {'last ten':>16}  time")
    for name, cells in rows:
        print(f"{name:{width}}  {cells}")
    if not folders:
        print("no picture: the run folders of the table are not there")
        return OK
    try:
        print(figures.comparison(folders, Path(options.out)))
    except figures.NoMatplotlib as error:
        print(f"no picture: {error}")
    return OK


def _compared(folder: RunFolder, name_split: bool) -> Iterator[tuple[str, str]]:
    """Yield the name and the cells of each setting of a run; `name_split` adds the split."""
    summary, path = folder.summary(), printable(str(folder.path))
    epochs, recipe = summary["epochs"], folder.recipe()
    path += f" ({recipe.data.measured})" * name_split
    if not summary["complete"]:
        yield path, f"{epochs:>6}  not finished"
        return
    time = f"{summary['wall_seconds']:.0f} s" if "wall_seconds" in summary else "unknown"
    for setting in summary["settings"]:
        cells = [error_text(setting[key]) for key in errors(recipe)]
        if epochs < 10:
            cells[2] = "-"
        yield (
            f"{path}, {setting['label']}" if setting["label"] else path,
            f"{epochs:>6}  "
            + "  ".join(f"{cell:>16}" for cell in cells)
            + f"  {time}{'' if folder.verified else ' (unverified)'}",
        )


def _check(options: argparse.Namespace) -> int:
    recipe = _load_recipe(options, seeds=1 if options.seeds is None else options.seeds)
    data = _load_data(recipe, options.data)
    for member in recipe.members():
        order = torch.randperm(len(data.train), generator=generator(member.seed, "check"))
        x, y = data.train.batch(order[: recipe.batch], torch.float64)
        print(check(recipe, member, x, y))
        print()
    return OK


def _explore(options: argparse.Namespace) -> int:
    out = Path(options.out)
    added = explorer.write(out, options.run)
    print(f"{out}: {added} network(s) of {options.run}" if options.run else out)
    if not options.no_open and not webbrowser.open(out.resolve().as_uri()):
        print("no browser was found: open the file in one")
    return OK


if __name__ == "__main__":
    sys.exit(main())
