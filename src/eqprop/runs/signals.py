"""Signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP from a closed terminal."""

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
    """Catch signals while the body runs: the first requests a stop, the second stops at once.

    Only the main thread can catch signals. In other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:  # a closed terminal takes no output
            for descriptor in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        if watcher.stop_requested:
            raise KeyboardInterrupt
        watcher.stop_requested = True
        watcher.say("stopping after this minibatch; once more to stop at once")

    caught = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        caught.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
