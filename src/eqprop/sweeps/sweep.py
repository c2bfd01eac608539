"""A sweep and its folder: run the tasks that are not done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from eqprop.runs.arithmetic import Arithmetic
from eqprop.runs.files import write_whole
from eqprop.runs.folder import RunFolder
from eqprop.runs.lock import held
from eqprop.runs.recipe import UserError
from eqprop.runs.signals import stopping
from eqprop.sweeps.board import Board
from eqprop.sweeps.tasks import Task
from eqprop.sweeps.worker import Ended, Job, State, is_done

REFRESH = 0.5  # seconds between two updates of the board


class Place(Protocol):
    """Runs tasks, on this machine or a cluster."""

    def submit(self, name: str, job: Job) -> None:
        """Add a task."""

    @property
    def lacking(self) -> str | None:
        """The resources that tasks must wait for; None if there are enough."""

    @property
    def busy(self) -> bool:
        """Whether a task has not ended yet."""

    @property
    def running(self) -> set[str]:
        """The tasks that are known to run now."""

    def stop(self) -> None:
        """Tell the tasks to save and stop, and start no more."""

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        """Wait at most this long for a task to end; return the tasks that have ended."""


@dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep.

    sweep.toml       the sweep file
    tasks/NAME       one run folder per task
    logs/NAME.txt    the output of a local process
    table.parquet    one row per network, derived from the run folders
    """

    path: Path

    @property
    def is_one(self) -> bool:
        return self.tasks.is_dir()

    @property
    def tasks(self) -> Path:
        return self.path / "tasks"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def of(self, task: Task) -> RunFolder:
        return RunFolder(self.tasks / task.name)

    def job(
        self,
        task: Task,
        device: str,
        threads: int | None,
        data: str | None,
        arithmetic: Arithmetic,
    ) -> Job:
        data = None if data is None else str(Path(data).absolute())
        folder = str(self.of(task).path.absolute())
        return Job(task.recipe.to_toml(), folder, device, threads, data, arithmetic)

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise if the folder holds something else. Change nothing."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path}: is a file: choose another --out")
        expected = {task.name for task in tasks}
        there = {it.name for it in self.tasks.iterdir()} if self.is_one else set()
        if there - expected:
            raise UserError(
                f"{self.path}: holds another sweep (its task {min(there - expected)} is not one "
                "of this): choose another --out, or give file and --pack as they were"
            )
        if not self.is_one and self.path.is_dir() and RunFolder(self.path).begun:
            raise UserError(f"{self.path}: is the folder of a run: choose another --out")
        for task in tasks:
            folder = self.of(task)
            if folder.begun:
                folder.check(task.recipe, resume=True)

    def run(
        self,
        tasks: Sequence[Task],
        place: AbstractContextManager[Place],
        jobs: Mapping[str, Job],
        content: bytes,
    ) -> dict[str, Ended]:
        """Run every task that is not done; return how each task ended, by name.

        Args:
            tasks: all tasks of the sweep.
            place: runs them.
            jobs: {name of a task: job}.
            content: content of the sweep file, saved with the results.
        """
        self.check(tasks)
        with held(self.path, "running a sweep in this folder"):
            self.check(tasks)
            write_whole(self.path / "sweep.toml", content)
            self.tasks.mkdir(exist_ok=True)
            board = Board(tasks, {task.name: self.of(task) for task in tasks})
            results = {task.name: Ended(State.DONE) for task in tasks if self._has(task)}
            for name in results:
                board.already(name)
            if results:
                board.say(f"{len(results)} of {len(tasks)} tasks are done already")
            todo = {task.name: task for task in tasks if task.name not in results}
            if todo:
                with place as there, stopping(board):
                    if there.lacking is not None:
                        board.say(f"no machine has {there.lacking}: tasks wait until one does")
                    for name in todo:
                        there.submit(name, jobs[name])
                    for name, ended in _ends(there, board):
                        # A finished folder is the result, however its worker ended.
                        results[name] = Ended(State.DONE) if self._has(todo[name]) else ended
                        board.ended(name, results[name])
            return results

    def _has(self, task: Task) -> bool:
        return is_done(self.of(task), task.recipe)


def _ends(place: Place, board: Board) -> Iterator[tuple[str, Ended]]:
    """Yield each task as it ends. Stop all tasks if the board requests it."""
    told = False
    while place.busy:
        board.running(place.running)
        yield from place.wait(REFRESH)
        if board.stop_requested and not told:
            told = True
            place.stop()
    board.running(set())
