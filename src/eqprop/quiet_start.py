"""End the command line without a traceback if Ctrl-C comes while it is still importing.

Import this module before the large ones. In any other program it does nothing.
"""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

STOPPED = 130


def over() -> None:
    """Restore Python's own Ctrl-C handler: from here on the command line handles it."""
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
