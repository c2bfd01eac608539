"""Progress of a run: a bar, one line per epoch, TensorBoard logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

from eqprop.measured import Measured
from eqprop.runs.folder import RunFolder
from eqprop.runs.training import Watcher


class Progress(Watcher):
    """Shows a bar and one line per epoch on a terminal.

    With a folder, it prints one line per epoch elsewhere, too, and writes TensorBoard logs if
    TensorBoard is installed.
    """

    def __init__(
        self, folder: RunFolder | None, epochs: int, first_epoch: int, measured: str = "test"
    ) -> None:
        self._epochs, self._measured = epochs, measured
        self._bar: tqdm[Any] | None = None
        self._terminal = sys.stderr.isatty()
        self._silent = folder is None and not self._terminal
        self._log = None if folder is None else _tensorboard(folder, first_epoch)
        self._started, self._first = time.perf_counter(), first_epoch

    def minibatch(self, epoch: int, done: int, of: int, train_error: float) -> None:
        if not self._terminal:
            return
        if self._bar is None:
            self._bar = tqdm(
                total=of,
                initial=done - 1,
                desc=f"epoch {epoch}/{self._epochs}",
                unit="minibatch",
                leave=False,
                dynamic_ncols=True,
            )
        self._bar.set_postfix_str(f"train error {train_error:.2f} %", refresh=False)
        self._bar.update(done - self._bar.n)

    def epoch(self, record: dict[str, Any], seconds: float) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        done = record["epoch"]
        per_epoch = (time.perf_counter() - self._started) / (done - self._first)
        left = per_epoch * (self._epochs - done)
        train, measured, unsettled = (
            Measured.of(record.get(key, ())).mean
            for key in ("train_error", f"{self._measured}_error", "unsettled")
        )
        self.say(
            f"epoch {done}/{self._epochs}: train error {train:.2f} %, "
            f"{self._measured} error {measured:.2f} %, unsettled {100 * unsettled:.1f} % | "
            f"{per_epoch:.1f} s per epoch, {clock(left)} left"
        )
        self._write_log(_scalars(record), done)

    def non_finite(self, entry: dict[str, Any]) -> None:
        self.say(f"member {entry['member']} (seed {entry['seed']}) is frozen: {entry['reason']}")

    def angles(self, record: dict[str, Any]) -> None:
        known = ((f"angle to BPTT/{i}", a) for i, a in enumerate(record["angle"]) if a is not None)
        self._write_log(known, record["minibatch"])

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        with self._logging() as log:
            if log is not None:
                log.close()

    def _write_log(self, scalars: Iterable[tuple[str, float]], step: int) -> None:
        with self._logging() as log:
            if log is not None:
                for tag, value in scalars:
                    log.add_scalar(tag, value, step)
                log.flush()

    @contextmanager
    def _logging(self) -> Iterator[Any]:
        """Yield the log. A log that cannot be written does not stop the run."""
        try:
            yield self._log
        except OSError as error:
            self._log = None
            self.say(f"no more TensorBoard logs: {error}")

    def say(self, line: str) -> None:
        if not self._silent:
            say(line, sys.stderr if self._terminal else sys.stdout)


def say(line: str, file: TextIO) -> None:
    try:
        tqdm.write(line, file=file)
        file.flush()
    except OSError:  # the reader has gone: do not stop the run
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    except RuntimeError:  # a signal came during another line, and its handler may not use `file`
        with suppress(OSError):
            os.write(file.fileno(), f"{line}\n".encode())


def printable(text: str) -> str:
    """Return the text on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _tensorboard(folder: RunFolder, first_epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no TensorBoard logs: the package tensorboard is not installed", file=sys.stderr)
        return None
    return SummaryWriter(str(folder.path / "tensorboard"), purge_step=first_epoch + 1)


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if key in ("epoch", "frozen", "pruned"):
            continue
        for name, members in value.items() if isinstance(value, dict) else (("", value),):
            for i, number in enumerate(members):
                if number is not None:
                    yield "/".join(part for part in (key, name, str(i)) if part), number


def clock(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
