"""Signals that stop a run: Ctrl-C, SIGTERM, and SIGHUP from a closed terminal."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from eqprop.runs.training import Watcher

MOMENT = 0.1  # seconds: `timeout` sends its signal to the process and to its group


@contextmanager
def stopping(watcher: Watcher) -> Iterator[None]:
    """Catch signals while the body runs: the first requests a stop, the second stops at once.

    Two signals within a moment are one. Only the main thread can catch signals. In other threads
    this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked = -math.inf
    terminals = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP:  # a closed terminal takes no output
            for descriptor in terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        if time.monotonic() - asked < MOMENT:
            return
        if watcher.stop_requested:
            raise KeyboardInterrupt
        asked = time.monotonic()
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
