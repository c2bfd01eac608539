"""Progress of a sweep: a table of all tasks that updates in place, or plain lines."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from eqprop.measured import Measured
from eqprop.runs.folder import RunFolder
from eqprop.runs.progress import clock, printable, say
from eqprop.runs.training import Watcher
from eqprop.sweeps.tasks import Task
from eqprop.sweeps.worker import Ended, State

RIGHT = (1, 3, 4, 5, 6)  # columns of numbers


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return lines of aligned cells. `right` lists the columns to align right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{'>' if i in right else '<'}{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


class Board(Watcher):
    """Shows the tasks of a sweep. Ctrl-C sets `stop_requested`, as for a run."""

    def __init__(self, tasks: Sequence[Task], folders: dict[str, RunFolder]) -> None:
        self._tasks, self._folders = tasks, folders
        self._ended: dict[str, Ended] = {}
        self._seconds: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._running: set[str] = set()
        self._terminal = sys.stderr.isatty()
        self._drawn = 0

    def already(self, name: str) -> None:
        """Mark a task that was done before the sweep started."""
        self._ended[name] = Ended(State.DONE)

    def running(self, names: set[str]) -> None:
        """Set the tasks that run now. The others wait or have ended."""
        now = time.monotonic()
        for name in names - self._running:
            self._since.setdefault(name, now)
            if not self._terminal:
                self.say(f"{name}: running")
        self._running = names
        self.draw()

    def ended(self, name: str, how: Ended) -> None:
        self._ended[name] = how
        self._seconds[name] = time.monotonic() - self._since.get(name, time.monotonic())
        if not self._terminal:
            self.say(f"{name}: {how.state.value}{self._remark(name)}")

    def draw(self) -> None:
        """Draw the table in place of the last one."""
        if not self._terminal:
            return
        size = shutil.get_terminal_size()
        states = Counter(self._state(task.name) for task in self._tasks)
        shown = sorted(self._tasks, key=lambda task: self._state(task.name) in ("done", "waiting"))
        measured = " or ".join(sorted({task.recipe.data.measured for task in self._tasks}))
        head = (
            "task",
            "networks",
            "state",
            "epoch",
            "train error",
            f"{measured} error",
            "time",
            "",
        )
        lines = table([head, *map(self._row, shown[: max(1, size.lines - 4)])], RIGHT)
        lines.append(", ".join(f"{n} {state}" for state, n in states.items()))
        self._clear()
        print("\n".join(line[: size.columns - 1] for line in lines), file=sys.stderr, flush=True)
        self._drawn = len(lines)

    def say(self, line: str) -> None:
        self._clear()
        say(printable(line), sys.stderr if self._terminal else sys.stdout)

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _state(self, name: str) -> str:
        if name in self._ended:
            return self._ended[name].state.value
        return "running" if name in self._running else "waiting"

    def _row(self, task: Task) -> tuple[str, ...]:
        name, record = task.name, self._folders[task.name].glimpse()
        message = self._ended[name].message if name in self._ended else ""
        seconds = self._seconds.get(name)
        if name in self._running:
            seconds = time.monotonic() - self._since[name]
        return (
            name,
            str(task.networks),
            self._state(name),
            f"{record['epoch'] if record else 0}/{task.recipe.epochs}",
            _error(record, "train_error"),
            _error(record, f"{task.recipe.data.measured}_error"),
            "" if seconds is None else clock(seconds),
            printable(message or task.label),
        )

    def _remark(self, name: str) -> str:
        ended = self._ended[name]
        if ended.state is not State.DONE:
            return f": {ended.message}" if ended.message else ""
        record = self._folders[name].glimpse()
        split = "validation" if record and "validation_error" in record else "test"
        error = _error(record, f"{split}_error")
        return f", {split} error {error}, {clock(self._seconds[name])}"


def _error(record: dict[str, Any] | None, key: str) -> str:
    known = Measured.of(record.get(key) or ()) if record else Measured.of(())
    return f"{known.mean:.2f} %" if known.n else ""
