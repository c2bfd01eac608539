"""The command line in a process that starts at once: a fork of one that has imported it.

It is not for what a test says about the start or the end of the interpreter.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection

from eqprop.cli import main

PROCESSES = get_context("forkserver" if sys.platform == "linux" else "spawn")
PROCESSES.set_forkserver_preload(["eqprop.cli"])


def _work(words: list[str], folder: str, environment: dict[str, str], *ends: Connection) -> None:
    gc.freeze()  # a collection does not copy the pages of the process that this is a fork of
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, end in enumerate(ends, start=1):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))
    sys.exit(main(words))


class Command:
    """What tests use of `subprocess.Popen`, with text in pipes."""

    def __init__(self, words: list[str]) -> None:
        (out, theirs), (err, also_theirs) = (PROCESSES.Pipe(duplex=False) for _ in range(2))
        job = (words, os.getcwd(), dict(os.environ), theirs, also_theirs)
        self._process = PROCESSES.Process(target=_work, args=job)
        self._process.start()
        for end in (theirs, also_theirs):
            end.close()
        self.stdout, self._stderr = (os.fdopen(os.dup(end.fileno())) for end in (out, err))
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; it must not have said more than a pipe holds."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("eqprop", timeout)
        with self.stdout, self._stderr:
            return self.stdout.read(), self._stderr.read()
