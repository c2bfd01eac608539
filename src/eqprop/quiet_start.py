"""Ctrl-C while the command line is still importing ends it without a traceback.

Imported before anything large. In any other program it does nothing.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

STOPPED = 130


def over() -> None:
    """From here on the command line answers Ctrl-C itself."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(number: int, frame: FrameType | None) -> None:
    os._exit(STOPPED)


def _is_command_line() -> bool:
    """Whether this process is `eqprop ...` or `python -m eqprop ...`."""
    if sys.argv[:1] == ["-m"]:
        words = sys.orig_argv
        return words[words.index("-m") + 1 :][:1] == ["eqprop"]
    return Path(sys.argv[0] if sys.argv else "").name == "eqprop"


if _is_command_line() and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, _stop)
