"""What engines that compile their kernels on first use share."""

from __future__ import annotations

import os
import warnings
from pathlib import Path


class CannotBuild(RuntimeError):
    """Why there is no compiled kernel here."""


class SlowEngine(UserWarning):
    """A faster engine exists, but cannot be used here."""


def warn_slower(name: str, reason: CannotBuild, stacklevel: int) -> None:
    """Say that another engine takes the place of the one named."""
    message = f"the {name} is not available ({reason}): a slower one is used"
    warnings.warn(message, SlowEngine, stacklevel=stacklevel + 1)


def cache(name: str) -> Path:
    """Where the kernels of an engine are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "eqprop" / name
