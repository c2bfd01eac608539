"""Run tasks as processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from eqprop.exits import INTERRUPTED, OK
from eqprop.runs.progress import say
from eqprop.sweeps.sharing import shared_gpu
from eqprop.sweeps.worker import Ended, Job, State

WORKER = [sys.executable, "-m", "eqprop.sweeps.worker"]
LAST_SECONDS = 10.0  # time for workers to stop before they are killed


@dataclass
class _Running:
    name: str
    process: subprocess.Popen[bytes]


@dataclass
class Local:
    """Runs tasks on this machine, one process per task.

    Args:
        jobs: largest number of processes at a time.
        retries: number of restarts of a task whose process was killed.
        logs: folder for the output of the processes, one file per task.
        share_gpu: let the processes share a GPU through NVIDIA's multi-process service.
    """

    jobs: int
    retries: int
    logs: Path
    share_gpu: bool = False
    _waiting: deque[tuple[str, Job]] = field(default_factory=deque)
    _running: list[_Running] = field(default_factory=list)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)
    _stopping: bool = False
    _added: Mapping[str, str] = field(default_factory=dict)  # to the environment
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        if self.share_gpu:
            added = self._open.enter_context(shared_gpu())
            if added is None:
                say("no NVIDIA multi-process service here: processes take turns", sys.stdout)
            self._added = added or {}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the remaining processes at once."""
        for running in self._running:
            running.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + LAST_SECONDS
        for running in self._running:
            try:
                running.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
            _close(running.process)
        self._open.close()

    def submit(self, name: str, job: Job) -> None:
        self._jobs[name] = job
        self._waiting.append((name, job))
        self._start()

    @property
    def lacking(self) -> None:
        """None: tasks wait for no resources."""

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def running(self) -> set[str]:
        return {running.name for running in self._running}

    def stop(self) -> None:
        """Tell the tasks to save and stop, and start no more."""
        self._stopping = True
        for running in self._running:
            running.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        """Wait at most this long for a task to end; return the tasks that have ended."""
        deadline = time.monotonic() + seconds
        while True:
            ended = [*self._stopped(), *self._ended()]
            if ended or time.monotonic() >= deadline:
                return ended
            time.sleep(0.05)

    def _stopped(self) -> list[tuple[str, Ended]]:
        """Return the waiting tasks that will not start, because the sweep is stopping."""
        if not self._stopping:
            return []
        names = [name for name, _ in self._waiting]
        self._waiting.clear()
        return [(name, Ended(State.STOPPED, "not started")) for name in names]

    def _ended(self) -> list[tuple[str, Ended]]:
        found = []
        for running in [it for it in self._running if it.process.poll() is not None]:
            self._running.remove(running)
            _close(running.process)
            ended = self._verdict(running.name, running.process.returncode)
            if ended is None:
                self._waiting.append((running.name, self._jobs[running.name]))
            else:
                found.append((running.name, ended))
        self._start()
        return found

    def _verdict(self, name: str, code: int) -> Ended | None:
        """Return how the task of a process with this exit code ended; None: restart the task."""
        if code == OK:
            return Ended(State.DONE)
        if code == INTERRUPTED or (code < 0 and self._stopping):
            return Ended(State.STOPPED)
        if code > 0:
            return Ended(State.FAILED, self._last_line(name))
        self._lost[name] = self._lost.get(name, 0) + 1
        if self._lost[name] <= self.retries:
            return None
        killed = signal.Signals(-code).name
        return Ended(State.FAILED, f"its process was ended by {killed} {self._lost[name]} times")

    def _last_line(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "nothing was said")

    def _log(self, name: str) -> Path:
        return self.logs / f"{name}.txt"

    def _start(self) -> None:
        while self._waiting and len(self._running) < self.jobs and not self._stopping:
            name, job = self._waiting.popleft()
            with self._log(name).open("ab") as log:
                process = subprocess.Popen(
                    WORKER,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=os.environ | self._added,
                    start_new_session=True,  # Ctrl-C reaches only the driver
                )
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has died; its exit code will say so
                process.stdin.write(msgspec.json.encode(job) + b"\n")
                process.stdin.flush()  # stays open: its end means that the driver is gone
            self._running.append(_Running(name, process))


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
