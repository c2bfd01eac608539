"""The common part of engines that compile their kernels on first use."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path


class CannotBuild(RuntimeError):
    """A kernel cannot be compiled or run here. The message gives the reason."""


class SlowEngine(UserWarning):
    """A faster engine exists, but cannot be used here."""


def warn_slower(name: str, reason: CannotBuild, stacklevel: int) -> None:
    """Warn that a slower engine replaces the one named."""
    message = f"the {name} is not available ({reason}): a slower one is used"
    warnings.warn(message, SlowEngine, stacklevel=stacklevel + 1)


class Cache:
    """The folder with the compiled kernels of an engine.

    File names end with the SHA-256 of the content, so a damaged file is never loaded.
    """

    def __init__(self, engine: str) -> None:
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.folder = Path(root).expanduser() / "eqprop" / engine

    def find(self, key: str, suffix: str) -> Path | None:
        """Return the intact file for this key, or None. Delete damaged files."""
        for file in sorted(self.folder.glob(f"{key}-*{suffix}")):
            with contextlib.suppress(OSError):
                if file.name == _name(key, file.read_bytes(), suffix):
                    return file
                file.unlink()
        return None

    def store(self, key: str, suffix: str, content: bytes) -> Path:
        """Write a file atomically; return its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / _name(key, content, suffix)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            unfinished = Path(folder) / file.name
            unfinished.write_bytes(content)
            os.replace(unfinished, file)
        return file


def _name(key: str, content: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
