"""Atomic writes that follow no symbolic link, and JSON that may be damaged."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from eqprop.runs.recipe import UserError


def parse_json(text: bytes) -> Any:
    """Parse JSON; return None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_json(file: Path) -> Any:
    return parse_json(file.read_bytes())


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def link_error(file: Path) -> str:
    return f"{file}: is a symbolic link: a run writes to its own folder only; replace it by a file"


def write(file: Path, content: bytes, flags: int) -> None:
    """Write to a file and flush it to the disk. Follow no symbolic link; name the file in errors.

    `flags` are further flags of `os.open`.
    """
    try:
        access = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags
        with open(os.open(file, access, 0o666), "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(link_error(file)) from None
        raise OSError(error.errno, error.strerror, str(file)) from None


def write_beside(file: Path, content: bytes) -> Path:
    """Write the content to FILE.new and return its path. If that fails, remove FILE.new."""
    new = file.with_name(f"{file.name}.new")
    try:
        write(new, content, os.O_TRUNC)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return new


def write_whole(file: Path, content: bytes) -> None:
    """Write a file atomically."""
    new = write_beside(file, content)
    try:
        os.replace(new, file)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from None
