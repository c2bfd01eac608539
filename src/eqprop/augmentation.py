"""Augmentation: random shifts and mirror images, drawn again per network and epoch.

The draw depends only on the seed of a network and the number of the epoch. So a run keeps no state
between epochs, and a resumed run continues with the same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eqprop.seeds import generator
from eqprop.splits import Split


@dataclass(frozen=True)
class Augmentation:
    """Random changes to the training images.

    Args:
        shift: the largest shift in pixels, both vertically and horizontally. Default 0.
        flip: whether to mirror half of the images, left to right. Default False.
        edge: whether pixels that enter at the border repeat those at the edge. Default False: they
            are 0 before normalisation.
    """

    shift: int = 0
    flip: bool = False
    edge: bool = False

    def __bool__(self) -> bool:
        return self.shift > 0 or self.flip

    def check(self, image_shape: Sequence[int]) -> None:
        """Raise unless images have a height and a width."""
        if self and len(image_shape) < 2:
            raise ValueError(
                f"shift and flip need images with a height and a width, not {list(image_shape)}: "
                "give the network's input its shape, such as input = [1, 28, 28]"
            )

    def draw(self, split: Split, seeds: Sequence[int], epoch: int) -> Split:
        """Return the samples of one epoch as networks with these seeds see them.

        The `batch` method of the result takes an index [len(seeds), batch].
        """
        if not self:
            return split
        n, by_seed = len(split), {}
        for seed in set(seeds):
            source = generator(seed, f"augmentation of epoch {epoch}")
            shifts = torch.randint(-self.shift, self.shift + 1, (n, 2), generator=source)
            flips = torch.randint(2, (n,), generator=source).bool() & self.flip
            by_seed[seed] = shifts, flips
        shifts, flips = (
            torch.stack([by_seed[seed][k] for seed in seeds]).to(split.images.device)
            for k in (0, 1)
        )
        plain = {field.name: getattr(split, field.name) for field in fields(split)}
        return Augmented(**plain, shifts=shifts, flips=flips, edge=self.edge)


@dataclass(frozen=True, eq=False, kw_only=True)
class Augmented(Split):
    """Samples that differ per member of an ensemble.

    Args:
        shifts: pixels by which each image moves down and right, [members, n, 2].
        flips: whether each image is mirrored, [members, n].
        edge: whether pixels that enter at the border repeat those at the edge. Else they are 0.
    """

    shifts: Tensor
    flips: Tensor
    edge: bool

    @property
    def plain_bytes(self) -> bool:
        return False

    def pixels(self, index: Tensor) -> Tensor:
        member = torch.arange(len(self.shifts), device=index.device)[:, None]
        down, right = self.shifts[member, index].unbind(-1)  # [members, batch]
        *channels, height, width = self.images.shape[1:]
        rows = torch.arange(height, device=index.device) - down[..., None]
        columns = torch.arange(width, device=index.device) - right[..., None]
        inside = _within(rows, height)[..., :, None] & _within(columns, width)[..., None, :]
        columns = torch.where(self.flips[member, index][..., None], width - 1 - columns, columns)
        rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        flat = self.images.reshape(len(self.images), -1, height, width)  # one axis of channels
        channel = torch.arange(flat.shape[1], device=index.device)
        found = flat[
            index[..., None, None, None],
            channel[:, None, None],
            rows[..., None, :, None],
            columns[..., None, None, :],
        ]
        if not self.edge:
            found = found * inside[..., None, :, :]
        return found.reshape(*index.shape, *channels, height, width)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
