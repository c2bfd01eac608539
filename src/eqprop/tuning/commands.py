"""`eqprop tune`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from eqprop import data as datasets
from eqprop.exits import INTERRUPTED, OK
from eqprop.runs import Interrupted, UserError
from eqprop.runs import recipe as recipes
from eqprop.runs.run import check_device
from eqprop.tuning import given
from eqprop.tuning.choices import Balance, Choices
from eqprop.tuning.procedure import tune

DEFAULT = Choices()
WORDS = {
    "settled": "step 1: residual at which the free phase has converged",
    "decayed": "step 2: share of ∇ that may come after step K",
    "margin": "steps 1 and 2: factor on the measured T and K",
    "signs": "step 3: largest difference of the share of equal signs from the best",
    "epochs": "steps 5 to 7: number of epochs per short run",
    "seeds": "number of networks per setting, starting at the recipe's seed",
    "shrink": "step 7: factor on T or K at each trial",
    "rise": "step 7: number of standard errors above which an error has risen",
}
RANGES = {"free_steps": "T", "nudged_steps": "K", "beta": "β", "rates": "the largest learning rate"}


def add(commands: Any) -> None:
    """Add the command `tune`."""
    help = (
        "Find T, K, β and learning rates by the procedure of the paper's appendix F.1, and write "
        "a recipe."
    )
    parser = commands.add_parser(
        "tune",
        help=help,
        description=f"{help} RECIPE gives layers, activation, rule and data. Its T, K, β and "
        "learning rates are ignored and may be missing. There are seven steps, each with one or "
        "two lines and a figure: 1. T, from the number of steps until the free phase converges; "
        "2. K, from the number of steps until the gradient ∇(t) of BPTT has decayed; 3. β, the "
        "largest at which updates and gradients have equal signs; 4. the ratio of the learning "
        "rates, inverse to the gradients of the layers; 5. their scale, and 6. β, by the train "
        "error of short runs; 7. T and K, decreased until that error rises. No step uses test "
        "samples.",
        epilog="OUT holds tuned.toml, an ordinary recipe (eqprop train OUT/tuned.toml), tune.json "
        "with all measurements, one figure per step, and the short runs in trials/. After Ctrl-C, "
        "the same command continues. Start with: eqprop tune ep-1h --set train_samples=6000. Exit "
        "codes: 0 done, 2 invalid input, 130 stopped.",
    )
    parser.set_defaults(command=_tune)
    parser.add_argument("recipe", metavar="RECIPE", help="a name from `eqprop recipes`, or a file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="replace a field of the recipe: rule=continual-ep, layers=784,256,10",
    )
    parser.add_argument("--out", metavar="DIR", help="output folder (default: runs/tune-RECIPE)")
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data files (default: EQPROP_DATA, the cache)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="number of CPU threads (default: one per core)"
    )
    left_open = parser.add_argument_group("choices that the appendix leaves open")
    for name, words in WORDS.items():
        default = getattr(DEFAULT, name)
        left_open.add_argument(
            f"--{name}",
            type=type(default),
            default=default,
            metavar="N" if isinstance(default, int) else "X",
            help=f"{words} (default: {default:g})",
        )
    left_open.add_argument(
        "--balance",
        type=Balance,
        choices=tuple(Balance),
        default=DEFAULT.balance,
        help="step 4: magnitude of a layer's gradient, its norm or the root mean square of its "
        f"entries (default: {DEFAULT.balance})",
    )
    ranges = parser.add_argument_group("ranges, by default those of the appendix")
    for name, letter in RANGES.items():
        low, high = getattr(DEFAULT, name)
        ranges.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="LOW,HIGH",
            help=f"range of {letter} (default: {low:g},{high:g})",
        )


def _choices(options: argparse.Namespace) -> Choices:
    given = {name: getattr(options, name) for name in (*WORDS, "balance")}
    for name in RANGES:
        text = getattr(options, name)
        if text is not None:
            given[name] = _range(name, text)
    return Choices(**given)


def _range(name: str, text: str) -> tuple[Any, Any]:
    kind = type(getattr(DEFAULT, name)[0])
    try:
        low, high = map(kind, text.split(","))
    except ValueError:
        option = f"--{name.replace('_', '-')}"
        raise UserError(f"{option} {text!r}: write it as LOW,HIGH, for example 2,100") from None
    return low, high


def _tune(options: argparse.Namespace) -> int:
    choices = _choices(options)
    check_device(options.device)
    overrides = dict(recipes.parse_override(text) for text in options.set)
    recipe = given.load(options.recipe, overrides)
    out = Path(options.out or f"runs/tune-{recipe.folder_name}")
    data = datasets.load(recipe.data.name, options.data)
    how = {"device": options.device, "threads": options.threads}
    try:
        done = tune(recipe, data, out, choices, **how, say=_say)
    except Interrupted as stopped:
        print(f"{stopped}. To go on: {_command(options)}")
        return INTERRUPTED
    print(f"{done.folder / 'tuned.toml'}, {done.record['seconds']:.0f} s")
    print(f"To train it: {shlex.join(['eqprop', 'train', str(done.folder / 'tuned.toml')])}")
    return OK


def _say(line: str) -> None:
    print(line, flush=True)


def _command(options: argparse.Namespace) -> str:
    """Return the command that the user gave."""
    words = ["eqprop", "tune", options.recipe]
    for text in options.set:
        words += ["--set", text]
    plain = {
        "out": None,
        "data": None,
        "device": "cpu",
        "threads": None,
        "balance": DEFAULT.balance,
    }
    plain |= {name: getattr(DEFAULT, name) for name in WORDS} | dict.fromkeys(RANGES)
    for name, default in plain.items():
        value = getattr(options, name)
        if value != default:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
