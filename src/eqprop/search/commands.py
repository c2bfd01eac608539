"""`eqprop search`, and `eqprop show` for a search. Functions import Optuna when they need it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from eqprop import data as datasets
from eqprop.exits import INTERRUPTED, OK
from eqprop.runs import Interrupted, Recipe, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.figures import NoMatplotlib
from eqprop.runs.progress import say
from eqprop.runs.run import check_device
from eqprop.runs.summary import error_text
from eqprop.runs.training import fitting
from eqprop.search.folder import SearchFolder
from eqprop.search.objective import STATISTICS, Objective
from eqprop.search.pruners import PRUNERS

SHOWN = 10  # trials in the table of the best


def add(add_command: Callable[..., Any]) -> Any:
    """Add the command `search` and return it; the caller adds the options for recipe and data."""
    command = add_command(
        "search",
        run,
        "Search the fields of a recipe with Optuna for the smallest validation error.",
        epilog="Trials that differ only in β, angle and learning rates train as one ensemble. "
        "The same command resumes the search, or joins it from any machine that sees --out. At "
        "the end, the best setting trains once on the whole training set. Only that run uses the "
        "test set. See docs/search.md. Exit codes: 0 done, 2 invalid input, 130 stopped.",
    )
    command.add_argument(
        "--space",
        required=True,
        metavar="FILE",
        help="the fields to vary, as a TOML file or the name of a known space: "
        '"nudging.beta" = {low = 0.05, high = 1.0, log = true}',
    )
    command.add_argument(
        "--trials",
        required=True,
        type=int,
        metavar="N",
        help="number of settings to try, over all processes",
    )
    command.add_argument(
        "--batch",
        type=int,
        default=10,
        metavar="B",
        help="number of settings to propose at a time (default: 10)",
    )
    command.add_argument(
        "--objective",
        choices=[*STATISTICS],
        default="mean",
        help="statistic of the validation error over the seeds of a setting (default: mean)",
    )
    command.add_argument(
        "--last",
        type=int,
        default=3,
        metavar="EPOCHS",
        help="number of last epochs over which to average each error (default: 3)",
    )
    command.add_argument(
        "--pruner",
        choices=[*PRUNERS],
        default="median",
        help="rule that stops poor trials early (default: median)",
    )
    command.add_argument(
        "--sampler-seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of the proposals (default: 0)",
    )
    for name, what in (("seeds", "networks"), ("epochs", "epochs")):
        command.add_argument(
            f"--final-{name}",
            type=int,
            metavar="N",
            help=f"number of {what} in the final run of the best setting (default: the recipe's)",
        )
    command.add_argument(
        "--out", metavar="DIR", help="folder of the search (default: runs/RECIPE-search)"
    )
    return command


def _require_optuna() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError("a search needs Optuna: pip install 'eqprop[search]'") from None


def run(options: argparse.Namespace) -> int:
    _require_optuna()
    from eqprop.search import space
    from eqprop.search.plan import Plan
    from eqprop.search.progress import Line
    from eqprop.search.search import Search
    from eqprop.search.study import Trials

    for name in ("trials", "batch", "last"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} must be 1 or more, not {getattr(options, name)}")
    if not 0 <= options.sampler_seed < 2**31:
        raise UserError(f"--sampler-seed must lie in 0 to 2³¹ − 1, not {options.sampler_seed}")
    check_device(options.device)
    plan = Plan(
        recipe=_recipe(options),
        space=space.load(options.space),
        objective=Objective(options.objective, options.last),
        pruner=options.pruner,
        seed=options.sampler_seed,
    )
    plan.check()
    more = {"seeds": options.final_seeds, "epochs": options.final_epochs}
    more = {key: value for key, value in more.items() if value is not None}
    recipes.changed(plan.recipe, more)  # fail early
    data = datasets.load(plan.recipe.data.name, options.data)
    fitting(data, plan.recipe)
    folder = SearchFolder(options.out or Path("runs") / f"{plan.recipe.folder_name}-search")
    folder.check()
    how = {"device": options.device, "threads": options.threads}
    try:
        trials = Trials(folder, plan)
        say(f"in {folder.path}", sys.stdout)
        with closing(Line(trials, options.trials)) as line:
            search = Search(trials, data, how, line)
            search.run(options.trials, options.batch)
            final = search.final(**more)
    except (Interrupted, KeyboardInterrupt):
        print(f"stopped; what is done is kept. To go on: {_command(options, folder)}")
        return INTERRUPTED
    _print_trials(trials)
    if final is None:
        print(
            "other processes still work on this search; the last one trains the best setting. "
            "Where one was killed, the same command goes on"
        )
        return OK
    print(f"the best setting on the whole training set: {folder.best}")
    error = final.summary["test_error"]
    print(f"test error {error_text(error)} over {error['members']} network(s), in {final.folder}")
    return OK


def _recipe(options: argparse.Namespace) -> Recipe:
    given = dict(map(recipes.parse_override, options.set))
    if options.seeds is not None:
        given["seeds"] = options.seeds
    return recipes.load(options.recipe, given)


def _command(options: argparse.Namespace, folder: SearchFolder) -> str:
    """Return the command that resumes the search."""
    words = ["eqprop", "search", options.recipe, "--out", str(folder.path)]
    for given in options.set:
        words += ["--set", given]
    for name in (
        *("space", "trials", "batch", "objective", "last", "pruner", "sampler_seed"),
        *("final_seeds", "final_epochs", "seeds", "data", "device", "threads"),
    ):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _print_trials(trials: Any) -> None:
    """Print the number of trials per state, the best trials, and invalid ones."""
    known = trials.all()
    states = Counter(trial.state.name.lower() for trial in known)
    counts = ", ".join(f"{states[name]} {name}" for name in sorted(states))
    print(f"{len(known)} trials: {counts}")
    complete = [trial for trial in known if trial.state.name == "COMPLETE"]
    for trial in sorted(complete, key=lambda it: (it.value, it.number))[:SHOWN]:
        fields = ", ".join(
            f"{name} = {f'{value:.4g}' if isinstance(value, float) else value}"
            for name, value in trial.params.items()
        )
        print(f"{trial.number:>6}  {trial.value:6.2f} %  {fields}")
    for trial in known:
        if reason := trial.user_attrs.get("invalid"):
            print(f"trial {trial.number} could not be trained: {reason}")


def show(path: str) -> int:
    """Print the best trials of a search and draw Optuna's figures; return the exit code."""
    _require_optuna()
    from eqprop.search import figures
    from eqprop.search.study import Trials

    trials = Trials(SearchFolder(path))
    plan = trials.plan
    print(
        f"{plan.recipe.name}: {plan.objective.statistic} validation error of the last "
        f"{plan.objective.last} of {plan.recipe.epochs} epochs over {plan.recipe.seeds} seed(s)"
    )
    _print_trials(trials)
    for trial in trials.all():
        final = trials.folder.final(trial.number)
        if final.begun and (summary := final.summary())["complete"]:
            error = error_text(summary["test_error"])
            print(f"trial {trial.number} on the whole training set: test error {error}")
    try:
        for picture in figures.draw(trials):
            print(picture)
    except NoMatplotlib as error:
        print(f"no pictures: {error}")
    return OK
