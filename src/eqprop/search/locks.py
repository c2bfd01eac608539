"""File locks between processes, also on machines that share a file system."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from eqprop.runs import UserError


class FileLock:
    """An exclusive lock on a file. It ends with the process, even if that is killed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock and return True. Without `wait`, return False if another holds it."""
        try:
            import fcntl
        except ImportError:
            raise UserError("a search needs file locks, which Windows lacks: use WSL") from None
        descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
