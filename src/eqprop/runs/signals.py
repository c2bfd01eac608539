"""Signals that ask a run to stop: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from eqprop.runs.training import Watcher


@contextmanager
def stopping(watcher: Watcher) -> Iterator[None]:
    """The first signal asks the watcher's run to stop, the second stops it at once.

    Only the main thread can catch signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # a terminal that is gone takes no more output
            for descriptor in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        if watcher.stop_requested:
            raise KeyboardInterrupt
        watcher.stop_requested = True
        watcher.say("stopping after this minibatch; once more to stop at once")

    caught = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
        caught.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
