"""A seeded campaign of faults against the command line: kills, damaged files, bad inputs.

    python -m tests.faults [--seed N] [--kills 100] [--damages 300] [--inputs 300] [--out FILE]

Oracle: the same run, never disturbed. A run that is killed and resumed must end with the same
metrics, to the byte. A damaged folder, or a bad input, must be answered with the numbers of the
undamaged run, or with a line that says what is wrong: never with a traceback, a crash, a hang, or
other numbers without a word. Prints a table, writes it to FILE (default: results/faults.json), and
exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot  # noqa: F401 (once, not in each process)
import torch
import torch.utils.tensorboard

import eqprop
from eqprop import cli
from eqprop.runs import machine

PATIENCE = 60.0  # seconds for one command
ALLOWED = {0, 2, 3, 130}
TRAIN = ["train", "recipe.toml", "--data", "data", "--out", "run", "--threads", "1"]
RECIPE = """
layers = [49, 8, 10]
tied = true
rule = "continual-ep"
free_steps = 6
nudged_steps = 3
beta = 0.5
random_sign = true
learning_rates = [0.02, 0.01]
epochs = 4
seeds = 2
batch = 10
data = "digits"
"""


# ---- one command in a process of its own ----


@dataclass(frozen=True)
class Outcome:
    code: int | None  # None: killed at its limit; negative: a signal
    out: str
    err: str


def start(folder: Path, work: Callable[[], int]) -> int:
    """Fork: the child works in `folder` and writes to files beside it."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.chdir(folder)
        for number, name in ((1, "stdout.txt"), (2, "stderr.txt")):
            to = os.open(folder.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(to, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = work()
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def finish(folder: Path, child: int, limit: float, stop: int = signal.SIGKILL) -> Outcome:
    """Wait; send `stop` at the limit."""
    end, stopped = time.monotonic() + limit, False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if not stopped and time.monotonic() > end:
            os.kill(child, stop)
            stopped = True
        time.sleep(0.002)
    said = (
        (folder.parent / name).read_text(errors="replace") for name in ("stdout.txt", "stderr.txt")
    )
    return Outcome(None if stopped else os.waitstatus_to_exitcode(status), *said)


def command(folder: Path, *words: str) -> Outcome:
    return finish(folder, start(folder, lambda: cli.main(list(words))), PATIENCE)


def complaint(outcome: Outcome) -> str | None:
    """What no command may do, whatever it is given."""
    if outcome.code is None:
        return f"still running after {PATIENCE:g} s"
    if outcome.code not in ALLOWED:
        last = (outcome.err.strip().splitlines() or ["nothing said"])[-1]
        return f"exit code {outcome.code}: {last[:200]}"
    if "Traceback (most recent call last)" in outcome.out + outcome.err:
        return "a traceback"
    if outcome.code == 2 and not outcome.err.strip():
        return "exit code 2 without a word"
    return None


# ---- what is kept ----


@dataclass
class Tally:
    """How often each kind of fault was tried, and what failed."""

    tried: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: list[dict[str, str]] = field(default_factory=list)

    def count(self, kind: str, wrong: str | None, what: str = "") -> None:
        self.tried[kind] += 1
        if wrong:
            self.failed.append({"kind": kind, "what": what, "wrong": wrong})
            print(f"FAILED  {kind}: {what}: {wrong}", flush=True)

    def rows(self) -> list[dict[str, Any]]:
        wrong = collections.Counter(it["kind"] for it in self.failed)
        return [{"fault": k, "tried": n, "failed": wrong[k]} for k, n in sorted(self.tried.items())]


# ---- the run that nothing happens to ----


def write_idx(file: Path, shape: tuple[int, ...], content: bytes) -> None:
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    file.write_bytes(head + content)


def make_workplace(folder: Path, chance: random.Random) -> None:
    """A recipe, and a data set of 7 × 7 pixels in which each class lights pixels of its own."""
    data = folder / "data"
    data.mkdir(parents=True)
    for stem, n in (("train", 200), ("t10k", 60)):
        labels = bytes(chance.randrange(10) for _ in range(n))
        images = bytearray(chance.randrange(60) for _ in range(49 * n))
        for k, label in enumerate(labels):
            for pixel in range(4 * label, 4 * label + 4):
                images[49 * k + pixel] = 255
        write_idx(data / f"{stem}-images-idx3-ubyte", (n, 7, 7), bytes(images))
        write_idx(data / f"{stem}-labels-idx1-ubyte", (n,), labels)
    (folder / "recipe.toml").write_text(RECIPE)


def metrics(folder: Path) -> bytes:
    file = folder / "run" / "metrics.jsonl"
    return file.read_bytes() if file.is_file() else b""


# ---- kills ----


def kill_runs(base: Path, straight: Path, kills: int, chance: random.Random, tally: Tally) -> None:
    """Train with SIGKILL at random moments until it is done; then compare."""
    seconds = time_of(lambda: command(fresh(base, base.parent / "timed"), *TRAIN))
    done = runs = 0
    while done < kills:
        folder = fresh(base, base.parent / f"killed-{runs}")
        runs += 1
        for _ in range(1000):
            begun = (folder / "run").exists()
            words = [*TRAIN, *(["--resume"] if begun and chance.random() < 0.9 else [])]
            child = start(folder, lambda words=words: cli.main(words))  # type: ignore[misc]
            outcome = finish(folder, child, chance.uniform(0, 1.3 * seconds))
            if outcome.code is None:
                done += 1
                tally.count("kill -9", None)
                continue
            if outcome.code == 2 and "--resume" not in words:
                continue  # a folder that is in use asks for --resume
            wrong = complaint(outcome)
            if wrong is None and outcome.code == 2:
                again = command(folder, *TRAIN)  # nothing to resume: a fresh start must work
                wrong = None if again.code == 0 else f"neither resumes nor starts: {outcome.err}"
            if wrong is None and metrics(folder) != metrics(straight):
                wrong = "other metrics than the run that was never stopped"
            tally.count("run finished after kills", wrong, f"run {runs}, {done} kills so far")
            break
        shutil.rmtree(folder)


def time_of(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def fresh(base: Path, folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(base, folder, symlinks=True))


# ---- damaged files ----


def _truncate(file: Path, chance: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content) or 1)])


def _flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes() or b"x")
    for _ in range(chance.choice((1, 1, 5))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(bytes(content))


def _edit_digit(file: Path, chance: random.Random) -> None:
    """Another number in a text file: valid, and wrong."""
    content = bytearray(file.read_bytes())
    digits = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if digits:
        at = chance.choice(digits)
        content[at] = 48 + (content[at] - 48 + chance.randrange(1, 10)) % 10
    file.write_bytes(bytes(content))


def _drop_line(file: Path, chance: random.Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    file.write_bytes(b"".join(lines))


def _repeat_line(file: Path, chance: random.Random) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines, chance.choice(lines)]))


def _noise(file: Path, chance: random.Random) -> None:
    file.write_bytes(chance.randbytes(chance.choice((1, 100, 10000))))


def _empty(file: Path, chance: random.Random) -> None:
    file.write_bytes(b"")


def _delete(file: Path, chance: random.Random) -> None:
    file.unlink()


def _directory(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path, chance: random.Random) -> None:
    """A link to a file outside that must stay as it is."""
    outside = file.parent / "outside"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside.name)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "bits flipped": _flip,
    "a digit edited": _edit_digit,
    "a line dropped": _drop_line,
    "a line repeated": _repeat_line,
    "replaced by noise": _noise,
    "emptied": _empty,
    "deleted": _delete,
    "replaced by a folder": _directory,
    "replaced by a link": _link,
}
TEXT_ONLY = {"a digit edited", "a line dropped", "a line repeated"}
COMMANDS = {
    "resume": [*TRAIN, "--resume"],
    "resume for longer": [*TRAIN, "--resume", "--epochs", "5"],
    "evaluate": ["evaluate", "run", "--data", "data"],
    "show": ["show", "run", "--data", "data"],
    "compare": ["compare", "run", "--out", "compared.png"],
}


def damage_files(
    straight: Path, longer: Path, damages: int, chance: random.Random, tally: Tally
) -> None:
    expected = {
        name: command(fresh(straight, straight.parent / "undamaged"), *words)
        for name, words in COMMANDS.items()
    }
    for name, outcome in expected.items():
        assert outcome.code == 0, (name, outcome)
    files = [
        path.relative_to(straight)
        for top in ("run", "data")
        for path in sorted((straight / top).rglob("*"))
        if path.is_file() and "tensorboard" not in path.parts and path.suffix != ".png"
    ]
    for k in range(damages):
        kind, name = chance.choice(sorted(DAMAGES)), chance.choice(sorted(COMMANDS))
        text = [f for f in files if f.suffix in (".jsonl", ".json", ".toml")]
        file = chance.choice(text if kind in TEXT_ONLY else files)
        folder = fresh(straight, straight.parent / "damaged")
        DAMAGES[kind](folder / file, random.Random(chance.random()))
        outcome = command(folder, *COMMANDS[name])
        wrong = complaint(outcome) or silent(name, outcome, expected[name], folder, longer)
        tally.count(f"file {kind}", wrong, f"case {k}: {file}, then {name}")


SAID = (
    "other images",
    "not finished",
    "damaged",
    "unverified",
    "weights are not there",
)  # words about it


def silent(
    name: str, outcome: Outcome, expected: Outcome, folder: Path, longer: Path
) -> str | None:
    """Other numbers than those of the undamaged run, without a word about it."""
    if outcome.code != 0 or outcome.err.strip() or any(word in outcome.out for word in SAID):
        return None
    if name.startswith("resume"):
        reference = longer if "longer" in name else longer.parent / "straight"
        return None if metrics(folder) == metrics(reference) else "other metrics, and exit code 0"
    same = numbers(outcome.out) == numbers(expected.out)
    return None if same else f"other numbers, and exit code 0: {outcome.out[:200]!r}"


def numbers(text: str) -> list[str]:
    """The lines with numbers in them, without times."""
    lines = (line for line in text.splitlines() if any(map(str.isdigit, line)))
    return [line for line in lines if not any(word in line for word in (" s", "minute", "wall"))]


# ---- bad inputs ----


def bad_inputs(base: Path, count: int, chance: random.Random, tally: Tally) -> None:
    kinds = {
        "bad field": _bad_field,
        "bad words": _bad_words,
        "bad recipe file": _bad_recipe,
        "bad data": _bad_data,
        "bad call": _bad_call,
    }
    for k in range(count):
        kind = sorted(kinds)[k % len(kinds)]
        folder = fresh(base, base.parent / "given")
        what, outcome = kinds[kind](folder, chance)
        tally.count(kind, complaint(outcome), f"case {k}: {what[:150]}")


FIELDS = (
    *("layers", "tied", "rule", "free_steps", "nudged_steps", "learning_rates", "epochs", "time"),
    *("dt", "slope", "activation", "bias", "init", "angle", "beta", "random_sign", "in_turn"),
    *("tolerance", "rescale", "update_slope", "frozen", "batch", "seeds", "seed", "data"),
    *("train_samples", "test_samples", "name", "description", "nonsense"),
)
VALUES = (
    *("-1", "0", "1", "3", "1.5", "1e400", "-1e-300", "nan", "inf", "true", "false", "none", ""),
    *("4294967311", "99999999999999999999", "1000000000", "'x'", "[]", "[1,2]", "0,0", "1,1;2,2"),
    *(
        "784,512,10",
        "49,8,10",
        "49,1000000000,10",
        "∞",
        "../x",
        "/",
        "$x$",
        "\x1b[31mred",
        "a" * 5000,
    ),
    *("{}", "[[[[1]]]]", ",", ";", "=", "own", "continual-vf", "real-time", "0.1,0.1", "90,90"),
)


def _bad_field(folder: Path, chance: random.Random) -> tuple[str, Outcome]:
    words = list(TRAIN)
    for _ in range(chance.choice((1, 1, 2))):
        words += ["--set", f"{chance.choice(FIELDS)}={chance.choice(VALUES)}"]
    words += ["--set", "train_samples=20"] if chance.random() < 0.5 else []
    return " ".join(words[len(TRAIN) :]), command(folder, *words)


def _bad_words(folder: Path, chance: random.Random) -> tuple[str, Outcome]:
    pool = (
        *("train", "evaluate", "show", "compare", "check", "recipes", "paper", "list", "run"),
        *("report", "c-ep-1h", "nothing", "run", "recipe.toml", "data", "--resume", "--epochs"),
        *("--seeds", "--threads", "--set", "--out", "--data", "--device", "cuda", "--results"),
        *("-1", "0", "1", "100000", "x", "", "..", "/dev/null", "--engine", "persistent"),
    )
    words = chance.sample(pool, chance.randrange(6))
    words += ["--data", "data"] if "train" in words else []
    return " ".join(words), command(folder, *words)


def _bad_recipe(folder: Path, chance: random.Random) -> tuple[str, Outcome]:
    file = folder / "recipe.toml"
    kind = chance.choice(("noise", "nested", "cut", "digit", "flip", "latin", "huge", "twice"))
    text = file.read_text()
    if kind == "noise":
        file.write_bytes(chance.randbytes(200))
    elif kind == "nested":
        file.write_text(text + "x = " + "[" * 20000 + "]" * 20000)
    elif kind == "latin":
        file.write_bytes(text.encode() + 'description = "\xe9"\n'.encode("latin-1"))
    elif kind == "huge":
        file.write_text(text.replace("seeds = 2", "seeds = 100000000"))
    elif kind == "twice":
        file.write_text(text + text)
    else:
        {"cut": _truncate, "digit": _edit_digit, "flip": _flip}[kind](file, chance)
    return f"recipe {kind}", command(folder, *TRAIN, "--epochs", "1")


def _bad_data(folder: Path, chance: random.Random) -> tuple[str, Outcome]:
    file = chance.choice(sorted((folder / "data").iterdir()))
    kind = chance.choice([name for name in sorted(DAMAGES) if name not in TEXT_ONLY])
    DAMAGES[kind](file, chance)
    return f"{file.name} {kind}", command(folder, *TRAIN, "--epochs", "1")


def _bad_call(folder: Path, chance: random.Random) -> tuple[str, Outcome]:
    """A call of the library with one wrong thing: it works, or an error says what is wrong."""
    name = chance.choice(sorted(CALLS))
    number = chance.random()

    def work() -> int:
        try:
            CALLS[name](random.Random(number))
        except (ValueError, TypeError, IndexError, eqprop.NonFinite) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2 if str(error).strip() else 1
        return 0

    return name, finish(folder, start(folder, work), PATIENCE)


def _net(**more: Any) -> eqprop.Network:
    return eqprop.layered(6, 5, 3, **{"dtype": torch.float64, **more})


RULE = {"beta": 0.5, "free_steps": 4, "nudged_steps": 2}
WRONG: tuple[Any, ...] = (
    *(None, True, "x", -1, 0, 1.5, float("nan"), float("inf"), 2**31, 2**63, (), [], {}, object()),
    *(torch.zeros(0), torch.full((3,), float("nan")), torch.ones(2, 2), torch.nn.Linear(2, 2)),
)


def _wrong(chance: random.Random) -> Any:
    return chance.choice(WRONG)


def _swap_parameter(chance: random.Random) -> None:
    net = _net()
    engine = eqprop.make_engine(net, eqprop.EP(**RULE), 0.1)
    weight = net.synapses[1].weight
    weight.data = chance.choice(
        (
            torch.zeros(2, 2, dtype=torch.float64),
            torch.zeros(3, 5, dtype=torch.float64).T,
            weight.data.float(),
            torch.zeros(0, dtype=torch.float64),
            torch.zeros(500, 300, dtype=torch.float64),
        )
    )
    engine.step(torch.rand(4, 6).double(), torch.rand(4, 3).double())


def _engine_step(chance: random.Random) -> None:
    given = [torch.rand(4, 6).double(), torch.rand(4, 3).double()]
    given[chance.randrange(2)] = _wrong(chance)
    eqprop.make_engine(_net(), eqprop.ContinualEP(**RULE), 0.1).step(*given)


def _rule(chance: random.Random) -> None:
    kind = chance.choice((eqprop.EP, eqprop.ContinualEP, eqprop.VF, eqprop.ContinualVF))
    arguments = {**RULE, chance.choice((*RULE, "tolerance")): _wrong(chance)}
    rule = kind(**arguments)
    if rule.free_steps + rule.nudged_steps < 1000:
        rates = eqprop.make_engine(_net(), rule, 0.1)
        rates.step(torch.rand(4, 6).double(), torch.rand(4, 3).double())


CALLS: dict[str, Callable[[random.Random], object]] = {
    "layered(size)": lambda c: eqprop.layered(4, _wrong(c), 3),
    "layered(ensemble)": lambda c: _net(ensemble=_wrong(c)),
    "layered(seed)": lambda c: _net(seed=_wrong(c)),
    "layered(activation)": lambda c: _net(activation=_wrong(c)),
    "layered(dtype)": lambda c: _net(dtype=_wrong(c)),
    "make_engine(model)": lambda c: eqprop.make_engine(_wrong(c), eqprop.EP(**RULE), 0.1),
    "make_engine(rule)": lambda c: eqprop.make_engine(_net(), _wrong(c), 0.1),
    "make_engine(rates)": lambda c: eqprop.make_engine(_net(), eqprop.EP(**RULE), _wrong(c)),
    "make_engine(kind)": lambda c: eqprop.make_engine(_net(), eqprop.EP(**RULE), 0.1, _wrong(c)),
    "a parameter replaced": _swap_parameter,
    "engine.step": _engine_step,
    "a rule": _rule,
    "relax(x)": lambda c: eqprop.relax(_net(), _wrong(c), 4),
    "relax(steps)": lambda c: eqprop.relax(_net(), torch.rand(2, 6).double(), c.choice(WRONG[:7])),
}


# ---- the campaign ----


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=300)
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("results/faults.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    chance, tally, begun = random.Random(options.seed), Tally(), time.monotonic()
    with workplace() as top:
        base = top / "base"
        make_workplace(base, chance)
        straight, longer = fresh(base, top / "straight"), fresh(base, top / "longer")
        assert command(straight, *TRAIN).code == 0
        assert command(longer, *TRAIN, "--epochs", "5").code == 0
        kill_runs(base, straight, options.kills, chance, tally)
        damage_files(straight, longer, options.damages, chance, tally)
        bad_inputs(base, options.inputs, chance, tally)
    rows = tally.rows()
    width = max(len(row["fault"]) for row in rows)
    print(f"\n{'fault':{width}}  tried  failed")
    for row in rows:
        print(f"{row['fault']:{width}}  {row['tried']:5}  {row['failed']:6}")
    print(f"{sum(tally.tried.values())} tried, {len(tally.failed)} failed")
    record = {
        "what": "faults tried against the command line and the library, and what failed",
        "command": f"python -m tests.faults --seed {options.seed} --kills {options.kills} "
        f"--damages {options.damages} --inputs {options.inputs}",
        "rows": rows,
        "failed": tally.failed,
        "seconds": round(time.monotonic() - begun),
        **machine.describe("cpu"),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
