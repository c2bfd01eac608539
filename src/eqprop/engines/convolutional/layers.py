"""How layers lie in memory: images with their channels last, everything else row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from eqprop.types import Shape


def empty_layer(members: int, batch: int, shape: Shape, like: Tensor) -> Tensor:
    """[members, batch, *shape], with the channels of an image last in memory."""
    if len(shape) != 3:
        return like.new_empty(members, batch, *shape)
    channels, height, width = shape
    return like.new_empty(members, batch, height, width, channels).movedim(-1, 2)


def flat(layer: Tensor) -> Tensor:
    """A layer as [members, batch, n] in the order of its memory, without a copy."""
    return (layer.movedim(2, -1) if layer.ndim == 5 else layer).flatten(2)


def memory_order(shape: Shape, device: torch.device) -> Tensor:
    """Which neuron of a layer, counted row by row, lies at each place of `flat`: [n]."""
    numbers = torch.arange(torch.Size(shape).numel(), device=device).reshape(shape)
    return (numbers.movedim(0, -1) if len(shape) == 3 else numbers).flatten()
