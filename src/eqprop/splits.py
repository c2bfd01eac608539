"""Data sets: training, test and validation samples."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import torch
import torch.utils.data
from torch import Tensor
from torch.nn.functional import one_hot


class DataError(ValueError):
    """A data set is missing or invalid. The message is one line with the problem and the remedy."""


@dataclass(frozen=True)
class Normalisation:
    """x ← (x − mean) / std, with one number per channel or one for all.

    The channels are the first axis of an image. A flattened image holds them one after another, so
    its normalisation is the same.

    Args:
        mean: the mean, one number per channel. A single number is read as a tuple of one.
        std: the standard deviation, as many numbers, each above 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            numbers = torch.as_tensor(getattr(self, name), dtype=torch.float64).flatten().tolist()
            if not numbers or not all(map(math.isfinite, numbers)):
                raise DataError(f"normalisation: {name} must hold finite numbers, not {numbers}")
            object.__setattr__(self, name, tuple(numbers))
        if len(self.mean) != len(self.std):
            raise DataError(
                f"normalisation: mean has {len(self.mean)} numbers, but std {len(self.std)}: "
                "give one of each per channel, or one for all"
            )
        if min(self.std) <= 0:
            raise DataError(f"normalisation: std must be above 0, not {min(self.std):g}")

    @classmethod
    def of(cls, split: Split, std: float = 1.0) -> Self:
        """Return the normalisation that gives each channel of a split mean 0 and a given std.

        Of flat images, all numbers together are one channel.
        """
        channels = split.image_shape[0] if len(split.image_shape) > 1 else 1
        plain = replace(split, normalisation=None)
        parts = []
        for index in torch.arange(len(split), device=split.images.device).split(500):
            x = plain.batch(index, torch.float64)[0].reshape(len(index), channels, -1)
            parts.append(torch.stack(torch.var_mean(x, dim=-1, correction=0)))
        variances, means = torch.cat(parts, dim=1)  # per image, [n, channels]
        mean = means.mean(0)
        spread = (variances + (means - mean) ** 2).mean(0).sqrt() / std
        # Nine digits: later digits depend on the machine, but fingerprints must not.
        return cls(*(tuple(float(f"{v:.9g}") for v in found.tolist()) for found in (mean, spread)))

    def __call__(self, x: Tensor, axes: int) -> Tensor:
        """Normalise images, which are the last `axes` axes of x; return the same shape."""
        mean, std = (_column(numbers, x.dtype, x.device) for numbers in (self.mean, self.std))
        channels = x.reshape(*x.shape[: x.ndim - axes], len(self.mean), -1)
        return ((channels - mean) / std).reshape(x.shape)


@lru_cache(maxsize=16)
def _column(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one number per row. It is kept: a copy to a GPU waits for all that the GPU does."""
    with torch.inference_mode(False):  # others may need gradients
        return torch.tensor(numbers, dtype=dtype, device=device)[:, None]


@dataclass(frozen=True, eq=False)
class Split:
    """Images [n, *shape] and their labels [n], integers below `classes`.

    Args:
        images: bytes (uint8), read as pixels / 255, or floats, read unchanged.
        labels: integers. They are stored as bytes if there are at most 256 classes.
        classes: number of classes.
        normalisation: applied to the values read. Default None.
    """

    images: Tensor
    labels: Tensor
    classes: int
    normalisation: Normalisation | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.classes <= 256:
            object.__setattr__(self, "labels", self.labels.to(torch.uint8))

    def _check(self) -> None:
        for name, value in (("images", self.images), ("labels", self.labels)):
            if not isinstance(value, Tensor):
                raise DataError(f"{name} must be a tensor, not {type(value).__name__}")
        images, labels, classes = self.images, self.labels, self.classes
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise DataError(f"images must be uint8 or floats, not {images.dtype}")
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise DataError(f"labels must be integers, one class per image, not {labels.dtype}")
        if images.ndim < 2 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"images {list(images.shape)} and labels {list(labels.shape)} must have the "
                "shapes [n, *shape] and [n]"
            )
        if images.device != labels.device:
            raise DataError(f"images are on {images.device}, but labels on {labels.device}")
        if images.numel() == 0:
            raise DataError(f"images are empty: {list(images.shape)}")
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 1:
            raise DataError(f"classes must be a positive integer, not {classes!r}")
        if self.normalisation and images.shape[1] % len(self.normalisation.mean):
            raise DataError(
                f"normalisation has {len(self.normalisation.mean)} numbers, but images are "
                f"{list(self.image_shape)}: give one per channel (the first axis), or one for all"
            )
        if images.device.type == "meta":  # such tensors have no values
            return
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            raise DataError(f"labels hold class {wrong}, but there are {classes} classes")
        if images.is_floating_point() and not bool(torch.isfinite(images).all()):
            raise DataError("images contain NaN or infinite values")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Size and SHA-256 of the samples, as plain values. Reshaped images have the same."""
        sha256 = hashlib.sha256()
        for tensor in (self.images, self.labels):
            sha256.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        found = {
            "images": [len(self), math.prod(self.image_shape)],
            "dtype": str(self.images.dtype).removeprefix("torch."),
            "classes": self.classes,
            "sha256": sha256.hexdigest(),
        }
        if self.normalisation:
            found["normalisation"] = {
                "mean": list(self.normalisation.mean),
                "std": list(self.normalisation.std),
            }
        return found

    @property
    def plain_bytes(self) -> bool:
        """Whether images are bytes and x is exactly pixels / 255."""
        return self.images.dtype == torch.uint8 and self.normalisation is None

    def head(self, n: int) -> Self:
        """Return the first n samples."""
        if not 1 <= n <= len(self):
            raise DataError(f"{n} samples asked of {len(self)}: ask for 1 to {len(self)}")
        return self if n == len(self) else self._with(self.images[:n], self.labels[:n])

    def tail(self, n: int) -> Self:
        """Return the last n samples."""
        if not 1 <= n <= len(self):
            raise DataError(f"{n} samples asked of {len(self)}: ask for 1 to {len(self)}")
        return self._with(self.images[len(self) - n :], self.labels[len(self) - n :])

    def shaped(self, shape: tuple[int, ...]) -> Self:
        """Return the same samples as images [n, *shape], as a view if possible."""
        if shape == self.image_shape:
            return self
        here, there = math.prod(self.image_shape), math.prod(shape)
        if here != there:
            raise DataError(
                f"images {list(self.image_shape)} hold {here} numbers, but the network takes "
                f"{list(shape)}, {there} of them: choose other data or another network"
            )
        if len(self.image_shape) == len(shape) == 3 and 1 not in self.image_shape:  # not grey
            raise DataError(
                f"images are {list(self.image_shape)}, but the network takes {list(shape)}: give "
                "them as [n, channels, height, width], for example with x.movedim(-1, 1)"
            )
        return self._with(self.images.reshape(len(self), *shape), self.labels)

    def to(self, device: torch.device | str) -> Self:
        return self._with(self.images.to(device), self.labels.to(device))

    def _with(self, images: Tensor, labels: Tensor) -> Self:
        return replace(self, images=images, labels=labels)

    def pixels(self, index: Tensor) -> Tensor:
        """Return the stored images at `index` [*, batch]: [*, batch, *shape]."""
        return self.images[index]

    def batch(self, index: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Return inputs and one-hot targets of the samples at `index` [*, batch].

        They are x [*, batch, *shape] and y [*, batch, classes], of the given dtype.
        """
        x = self.pixels(index).to(dtype)
        if self.images.dtype == torch.uint8:
            x = x / 255
        if self.normalisation:
            x = self.normalisation(x, len(self.image_shape))
        y = one_hot(self.labels[index].long(), self.classes).to(dtype)
        return x, y


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples, with images of one shape.

    Args:
        name: name of the data set.
        train: training samples.
        test: test samples.
        folder: folder of the files, if the user gave it. Default None.
        validation: samples held out of the training samples. Default None.
    """

    name: str
    train: Split
    test: Split
    folder: str | None = None
    validation: Split | None = None

    def __post_init__(self) -> None:
        train, test = self.train.image_shape, self.test.image_shape
        if train != test:
            raise DataError(f"images to train on are {train}, but those to test on {test}")

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.train.image_shape

    @property
    def splits(self) -> dict[str, Split]:
        """The existing splits by name."""
        known = {"train": self.train, "test": self.test, "validation": self.validation}
        return {name: split for name, split in known.items() if split is not None}

    def _each(self, change: Callable[[Split], Split]) -> Self:
        changed: dict[str, Any] = {name: change(split) for name, split in self.splits.items()}
        return replace(self, **changed)

    def held_out(self, n: int) -> Self:
        """Return a data set whose last n training samples are the validation samples."""
        train = self.train
        return replace(self, train=train.head(len(train) - n), validation=train.tail(n))

    def shaped(self, shape: tuple[int, ...]) -> Self:
        return self._each(lambda split: split.shaped(shape))

    def normalised(self, by: Normalisation) -> Self:
        """Return all splits with one normalisation, for example `Normalisation.of(self.train)`."""
        return self._each(lambda split: replace(split, normalisation=by))

    def to(self, device: torch.device | str) -> Self:
        return self._each(lambda split: split.to(device))

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {name: split.fingerprint for name, split in self.splits.items()}


IN_MEMORY = "tensors"  # the name of a data set of tensors or arrays
Array = Tensor | np.ndarray[Any, Any]
Samples = Split | tuple[Array, Array] | torch.utils.data.Dataset[Any]


def dataset_of(
    given: Dataset | Samples | tuple[Samples, Samples], classes: int | None = None
) -> Dataset:
    """Return a data set of samples in memory.

    Samples are a Split, a pair (x, y) of arrays or tensors, or a `torch.utils.data.Dataset` of such
    pairs, which is read as a whole. x is [n, *shape] of uint8 (read as pixels / 255) or floats
    (read unchanged), y the classes [n].

    Args:
        given: a Dataset, a pair (train, test) of samples, or samples for both.
        classes: number of classes. Default None: the largest label + 1.
    """
    if isinstance(given, Dataset):
        return given
    both: Any = given
    train, test = both if _is_pair(both) and not _is_array(both[0]) else (both, both)
    parts = [_parts(train)]
    parts.append(parts[0] if test is train else _parts(test))
    if classes is None:
        classes = 1 + max(int(labels.max()) for _, labels, _ in parts)
    splits = [Split(images, labels, classes, by) for images, labels, by in parts]
    name = type(train).__name__ if isinstance(train, torch.utils.data.Dataset) else IN_MEMORY
    return Dataset(name, splits[0], splits[1])


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _parts(samples: Any) -> tuple[Tensor, Tensor, Normalisation | None]:
    """Return images [n, *shape], labels [n] and the normalisation or None."""
    if isinstance(samples, Split):
        return samples.images, samples.labels, samples.normalisation
    if isinstance(samples, torch.utils.data.Dataset):
        samples = _read(samples)
    if not _is_pair(samples) or not _is_array(samples[0]):
        raise DataError(
            "data must be a name, a folder, a Dataset, a pair (x, y) of tensors or a pair "
            f"(train, test) of those, not {type(samples).__name__}"
        )
    try:
        images, labels = torch.as_tensor(samples[0]), torch.as_tensor(samples[1])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"data: {str(error).splitlines()[0]}") from None
    if images.ndim < 2:
        raise DataError(f"images have shape {list(images.shape)}, but must be [n, *shape]")
    return images, labels, None


def _read(dataset: torch.utils.data.Dataset[Any]) -> tuple[Tensor, Tensor]:
    items: Iterable[Any] = (
        dataset
        if isinstance(dataset, torch.utils.data.IterableDataset)
        else (dataset[i] for i in range(_length(dataset)))
    )
    images, labels = [], []
    for number, item in enumerate(items):
        if not (isinstance(item, Sequence) and len(item) == 2 and _is_array(item[0])):
            raise DataError(
                f"item {number} of {type(dataset).__name__} must be a pair (tensor, class): "
                "give it a transform that makes tensors of images"
            )
        images.append(torch.as_tensor(item[0]))
        labels.append(int(item[1]))
    if not images:
        raise DataError(f"{type(dataset).__name__} is empty")
    if len({(image.shape, image.dtype) for image in images}) > 1:
        raise DataError(f"{type(dataset).__name__}: its images differ in shape or dtype")
    return torch.stack(images), torch.tensor(labels)


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except TypeError:
        raise DataError(f"{type(dataset).__name__} has no length: give one that has") from None
