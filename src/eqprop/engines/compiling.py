"""What engines that compile their kernels on first use share."""

from __future__ import annotations

import os
from pathlib import Path


class CannotBuild(RuntimeError):
    """Why there is no compiled kernel here."""


def cache(name: str) -> Path:
    """Where the kernels of an engine are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "eqprop" / name
