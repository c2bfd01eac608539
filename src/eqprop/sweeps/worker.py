"""Train one task of a sweep in this process, and report how it ended.

`python -m eqprop.sweeps.worker` reads the job as one line of JSON from its input and trains it.
When its input ends, the process that started it is gone. It then saves and stops.
"""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import msgspec
import torch

from eqprop import data as datasets
from eqprop.dynamics import NonFinite
from eqprop.exits import INTERRUPTED, OK, USER_ERROR
from eqprop.memory import NotEnoughMemory
from eqprop.runs import Interrupted, Recipe, UserError, train
from eqprop.runs import recipe as recipes
from eqprop.runs.arithmetic import Arithmetic
from eqprop.runs.folder import RunFolder
from eqprop.runs.lock import InUse

PATIENCE = 60.0  # seconds to wait for a stopping process to release the folder


class State(enum.Enum):
    """How a task ended."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Ended:
    """How a task ended, and a message about it."""

    state: State
    message: str = ""


@dataclass(frozen=True)
class Job:
    """Everything that a worker needs.

    Args:
        recipe: the recipe as TOML.
        folder: the run folder.
        device: "cpu" or "cuda". Default "cpu".
        threads: number of threads of the engine. Default None: one per core.
        data: the folder of the data files. Default None: find it by the name of the data set.
        arithmetic: precision of its products. Default: as `eqprop train` without options.
    """

    recipe: str
    folder: str
    device: str = "cpu"
    threads: int | None = None
    data: str | None = None
    arithmetic: Arithmetic = field(default_factory=Arithmetic)


def run(job: Job) -> Ended:
    """Train a job from the latest state of its folder until it is done, fails or is stopped."""
    torch.set_num_threads(1)  # small tensors are faster on one thread; engines have their own
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            _train(job)
            return Ended(State.DONE)
        except InUse as error:
            if time.monotonic() > deadline:
                return Ended(State.FAILED, str(error))
            time.sleep(0.5)
        except (Interrupted, KeyboardInterrupt) as stopped:
            return Ended(State.STOPPED, str(stopped) or "stopped at once")
        except (UserError, datasets.DataError, NonFinite, NotEnoughMemory, OSError) as error:
            return Ended(State.FAILED, str(error))


def is_done(folder: RunFolder, recipe: Recipe) -> bool:
    """Return whether a run folder holds the complete and intact run of a recipe."""
    if not (folder.begun and folder.finished):
        return False
    try:
        there = folder.recipe()
        folder.metrics()
    except UserError:
        return False
    return there.epochs == recipe.epochs and not there.differences(recipe)


def _train(job: Job) -> None:
    recipe, folder = recipes.from_toml(job.recipe.encode(), job.folder), RunFolder(job.folder)
    if is_done(folder, recipe):  # by a worker that was lost before it reported
        return
    resume = folder.begun
    folder.check(recipe, resume)  # fail before loading data
    known = folder.data_folder() if resume else None
    here = known if known and os.path.isdir(known) else None  # may be on another machine
    place = job.data or here
    data = datasets.load(recipe.data.name, place)
    train(
        recipe,
        data,
        folder.path,
        device=job.device,
        resume=resume,
        threads=job.threads,
        precision=job.arithmetic.set_up(),
    )


def main() -> int:
    try:
        job = msgspec.json.decode(_line(), type=Job)
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
        ended = run(job)
    except KeyboardInterrupt:
        return INTERRUPTED
    if ended.state is State.FAILED:
        print(ended.message, file=sys.stderr)
    return {State.DONE: OK, State.FAILED: USER_ERROR, State.STOPPED: INTERRUPTED}[ended.state]


def _line() -> bytes:
    """Read the first line of the input, and leave the input open."""
    read = b""
    while not read.endswith(b"\n") and (more := os.read(0, 1 << 16)):
        read += more
    return read


def _stop_at_end_of_input() -> None:
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
