"""What engines that compile their kernels on first use share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
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


class Cache:
    """Where the kernels of an engine are kept.

    The name of a file ends with the SHA-256 of its content: a damaged one is never loaded.
    """

    def __init__(self, engine: str) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.folder = Path(root).expanduser() / "eqprop" / engine

    def find(self, key: str, suffix: str) -> Path | None:
        """The whole file for this key, or None. Damaged ones are deleted."""
        for file in sorted(self.folder.glob(f"{key}-*{suffix}")):
            with contextlib.suppress(OSError):
                if file.name == _name(key, file.read_bytes(), suffix):
                    return file
                file.unlink()
        return None

    def store(self, key: str, suffix: str, content: bytes) -> Path:
        """Write a file whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / _name(key, content, suffix)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            unfinished = Path(folder) / file.name
            unfinished.write_bytes(content)
            os.replace(unfinished, file)
        return file


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
