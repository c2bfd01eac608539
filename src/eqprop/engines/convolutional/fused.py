"""The windows of a layer as one kernel, written in Triton, for GPUs."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eqprop.engines.convolutional.windows import Windows
from eqprop.engines.layered import ACTIVATIONS

BLOCK = 512  # numbers per program; from 256 to 2048 the time is the same


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    convolved, bias, back, nudge, drive, post, operand, spread, winners,
    n, channels, rows, columns, height, width,
    SIZE: tl.constexpr, SIGMA: tl.constexpr, BIAS: tl.constexpr, BACK: tl.constexpr,
    NUDGE: tl.constexpr, POOLS: tl.constexpr, DRIVES: tl.constexpr, MOVES: tl.constexpr,
    COPIES: tl.constexpr, SPREADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Drive, move and spread `n` neurons, channels last.

    `rows` × `columns` are the layer, `height` × `width` what was convolved. `winners` are numbers
    of positions within a window. The flags in capitals say which parts of the work are asked for.
    """
    real = post.dtype.element_ty
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < n
    channel = e % channels
    place = e // channels
    column = place % columns
    row = place // columns % rows
    sample = place // columns // rows
    first = ((sample * height + row * SIZE) * width + column * SIZE) * channels + channel
    if POOLS:
        value = tl.load(convolved + first, inside).to(real)
        winner = tl.zeros([BLOCK], tl.int32)
        for k in tl.static_range(1, SIZE * SIZE):
            at = first + ((k // SIZE) * width + k % SIZE) * channels
            other = tl.load(convolved + at, inside).to(real)
            wins = (other > value) | (other != other)  # NaN wins, as in max_pool2d
            value = tl.where(wins, other, value)
            winner = tl.where(wins, k, winner)
        if SIZE > 1:
            tl.store(winners + e, winner.to(winners.dtype.element_ty), inside)
    else:
        winner = tl.load(winners + e, inside)
    if BIAS:
        value += tl.load(bias + channel, inside)
    if DRIVES:
        tl.store(drive + e, value, inside)
    if MOVES:
        if BACK:
            value += tl.load(back + e, inside).to(real)
        if SIGMA == 0:
            value = 1 / (1 + tl.exp(2 - 4 * value))
        elif SIGMA == 1:
            value = 2 / (1 + tl.exp(-2 * value)) - 1
        elif SIGMA == 2:  # written so that NaN stays NaN
            value = tl.where(value < 0, 0.0, tl.where(value > 1, 1.0, value)).to(real)
        if NUDGE:
            value -= tl.load(nudge + e, inside)
        tl.store(post + e, value, inside)
        if COPIES:
            tl.store(operand + e, value.to(operand.dtype.element_ty), inside)
    elif SPREADS:
        value = tl.load(post + e, inside)
    if SPREADS:
        for k in tl.static_range(0, SIZE * SIZE):
            there = tl.where(winner == k, value, 0.0).to(spread.dtype.element_ty)
            tl.store(spread + first + ((k // SIZE) * width + k % SIZE) * channels, there, inside)


class FusedWindows(Windows):
    """`Windows` on a GPU. What it convolves, moves and spreads lies with its channels last."""

    _counted = torch.int16  # as the kernel counts: within a window

    def pool(self, i: int, convolved: Tensor, bias: Tensor | None, post: Tensor) -> None:
        self._launch(i, convolved, bias, None, None, post, post, drives=True, moves=False)

    def turn(
        self,
        i: int,
        convolved: Tensor,
        bias: Tensor | None,
        back: Tensor | None,
        nudge: Tensor | None,
        post: Tensor,
        operand: Tensor,
    ) -> None:
        self._launch(i, convolved, bias, back, nudge, post, operand)

    def move(
        self, i: int, back: Tensor | None, nudge: Tensor | None, post: Tensor, operand: Tensor
    ) -> None:
        drive = self.drive[i]
        self._launch(i, drive, None, back, nudge, post, operand, size=1)

    def _spread(self, i: int, post: Tensor, whole: Tensor) -> None:
        post = _channels_last(post)
        self._launch(i, whole, None, None, None, post, post, spread=whole, pools=False, moves=False)

    def _launch(
        self,
        i: int,
        convolved: Tensor,
        bias: Tensor | None,
        back: Tensor | None,
        nudge: Tensor | None,
        post: Tensor,
        operand: Tensor,
        *,
        size: int | None = None,
        spread: Tensor | None = None,
        pools: bool = True,
        drives: bool = False,
        moves: bool = True,
    ) -> None:
        size = self.size if size is None else size
        unused: Any = post  # a kernel takes a pointer for each tensor, read or not
        given = [unused if it is None else _channels_last(it) for it in (convolved, back, nudge)]
        convolved, *others = given
        _, channels, rows, columns = post.shape
        _kernel[(triton.cdiv(post.numel(), BLOCK),)](
            convolved, unused if bias is None else bias, *others, self.drive[i], post, operand,
            self.spread[i] if spread is None else spread,
            unused if self._winners is None else self._winners[i],
            post.numel(), channels, rows, columns, *convolved.shape[2:],
            SIZE=size, SIGMA=ACTIVATIONS[self.sigma], BIAS=bias is not None,
            BACK=back is not None, NUDGE=nudge is not None, POOLS=pools, DRIVES=drives,
            MOVES=moves, COPIES=operand is not post, SPREADS=size > 1, BLOCK=BLOCK,
        )  # fmt: skip


def _channels_last(image: Tensor) -> Tensor:
    """Return an image [batch, channels, height, width] with its channels last in memory."""
    return image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
