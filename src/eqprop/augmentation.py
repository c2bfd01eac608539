"""Augmentation: images shifted and mirrored at random, anew for each network and epoch.

What is drawn depends on the seed of a network and the number of the epoch alone. So nothing has to
be remembered between epochs, and a run that resumes goes on with the same images.
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
    """How the images to train on vary.

    Args:
        shift: the most pixels that an image moves up or down, and left or right. What comes in at
            the border is 0, before any normalisation. Default 0.
        flip: mirror half of the images, left to right. Default False.
    """

    shift: int = 0
    flip: bool = False

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
        """The samples of one epoch, as networks with these seeds see them.

        Its `batch` takes an index [len(seeds), batch].
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
        return Augmented(**plain, shifts=shifts, flips=flips)


@dataclass(frozen=True, eq=False, kw_only=True)
class Augmented(Split):
    """Samples of which each member of an ensemble sees others.

    Args:
        shifts: by how many pixels an image moves down and right, [members, n, 2].
        flips: whether it is mirrored, [members, n].
    """

    shifts: Tensor
    flips: Tensor

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
        found = found * inside[..., None, :, :]
        return found.reshape(*index.shape, *channels, height, width)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
