"""A lock on a folder, for one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eqprop.runs.files import link_error
from eqprop.runs.recipe import UserError


class InUse(UserError):
    """Another process holds the folder."""


@contextmanager
def held(path: Path, work: str) -> Iterator[None]:
    """Lock a folder while the body runs; raise `InUse` if another process holds the lock.

    It locks the folder and a file in it: the file can be deleted, and some network file systems
    cannot lock a folder. The lock ends with the process.

    Args:
        path: the folder. It is created if it does not exist.
        work: what the holder does, for the error message: "training in this folder".
    """
    try:
        import fcntl
    except ImportError:
        raise UserError("run folders need file locks, which Windows lacks: use WSL") from None
    path.mkdir(parents=True, exist_ok=True)
    file = path / ".lock"
    if file.is_symlink():
        raise UserError(link_error(file))
    descriptors = [os.open(path, os.O_RDONLY)]
    try:
        descriptors.append(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666))
        for descriptor in descriptors:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(descriptors[1], 100).decode(errors="replace") or "unknown"
                raise InUse(
                    f"{path}: another process ({holder}) is {work}: "
                    "wait for it, or choose another --out"
                ) from None
            except OSError:
                if descriptor == descriptors[1]:
                    raise
        os.truncate(descriptors[1], 0)
        os.write(descriptors[1], f"pid {os.getpid()}".encode())
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
