"""What a person sees of a run while it goes on, and how they stop it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from tqdm import tqdm

from eqprop.runs.folder import RunFolder


class Progress:
    """A bar on a terminal, a line an epoch elsewhere, and TensorBoard logs if it is installed."""

    def __init__(self, folder: RunFolder, epochs: int, first_epoch: int) -> None:
        self.stop_requested = False
        self._epochs = epochs
        self._bar: tqdm[Any] | None = None
        self._terminal = sys.stderr.isatty()
        self._log = _tensorboard(folder, first_epoch)
        self._started, self._first = time.perf_counter(), first_epoch

    @contextmanager
    def catching_signals(self) -> Iterator[None]:
        """The first Ctrl-C (or SIGTERM) asks the run to stop; the second stops it at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.stop_requested:
                os._exit(130)
            self.stop_requested = True
            self._say("stopping after this minibatch; once more to stop at once")

        before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.close()

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
        self._say(
            f"epoch {done}/{self._epochs}: train error {_mean(record['train_error'])}, "
            f"test error {_mean(record.get('test_error', []))}, "
            f"unsettled {100 * _average(record.get('unsettled', [])):.1f} % | "
            f"{per_epoch:.1f} s an epoch, {_clock(left)} left"
        )
        self._write_log(_scalars(record), done)

    def frozen(self, entry: dict[str, Any]) -> None:
        self._say(f"member {entry['member']} (seed {entry['seed']}) is frozen: {entry['reason']}")

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
        """A log is never worth failing a run for."""
        try:
            yield self._log
        except OSError as error:
            self._log = None
            self._say(f"no more TensorBoard logs: {error}")

    def _say(self, line: str) -> None:
        say(line, sys.stderr if self._terminal else sys.stdout)


def say(line: str, file: TextIO) -> None:
    try:
        tqdm.write(line, file=file)
        file.flush()
    except BrokenPipeError:  # nobody reads any more: no reason to stop
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def _tensorboard(folder: RunFolder, first_epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("no TensorBoard logs: the package tensorboard is not installed", file=sys.stderr)
        return None
    return SummaryWriter(str(folder.path / "tensorboard"), purge_step=first_epoch + 1)


def _scalars(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if key == "epoch":
            continue
        for name, members in value.items() if isinstance(value, dict) else (("", value),):
            for i, number in enumerate(members):
                if number is not None:
                    yield "/".join(part for part in (key, name, str(i)) if part), number


def _average(values: list[float | None]) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else float("nan")


def _mean(values: list[float | None]) -> str:
    return f"{_average(values):.2f} %"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
