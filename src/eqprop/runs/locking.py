"""Exclusive locks on files."""

from __future__ import annotations

from typing import IO, Any

from eqprop.runs.recipe import UserError


def lock(file: IO[Any]) -> None:
    """Lock an open file until it is closed. Raises `BlockingIOError` if another process has it."""
    try:
        import fcntl
    except ImportError:
        raise UserError(
            "run folders need file locks (fcntl), which Windows lacks: use WSL, the Windows "
            "Subsystem for Linux"
        ) from None
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
