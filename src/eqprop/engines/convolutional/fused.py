"""The windows of a layer as one kernel, written in Triton, for GPUs."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eqprop.engines.convolutional.layers import Neurons, Placed, Product, unit
from eqprop.engines.convolutional.windows import Windows
from eqprop.engines.layered import ACTIVATIONS

BLOCK = 512  # numbers per program; from 256 to 2048 the time is the same


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    convolved, bias, back, nudge, drive, post, operand, spread, winners,
    convolved_0, back_0, post_0, winners_0,
    n, samples_0, channels, rows, columns, height, width,
    SIZE: tl.constexpr, SIGMA: tl.constexpr, BIAS: tl.constexpr, BACK: tl.constexpr,
    NUDGE: tl.constexpr, POOLS: tl.constexpr, DRIVES: tl.constexpr, MOVES: tl.constexpr,
    COPIES: tl.constexpr, SPREADS: tl.constexpr, FROM: tl.constexpr, BACK_FROM: tl.constexpr,
    POST_FROM: tl.constexpr, ROUNDS: tl.constexpr, UNIT: tl.constexpr, BACK_UNIT: tl.constexpr,
    RELAXATION: tl.constexpr, BOUNDED: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Drive, move and spread `n` neurons, channels last.

    `rows` × `columns` are the layer, `height` × `width` what was convolved. `winners` are numbers
    of positions within a window. What ends in 0 is the origin, of `samples_0` samples. The flags in
    capitals say which parts of the work are asked for, and which tensors are measured from it.
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
    sample_0 = sample % samples_0
    e_0 = ((sample_0 * rows + row) * columns + column) * channels + channel
    first_0 = ((sample_0 * height + row * SIZE) * width + column * SIZE) * channels + channel
    if FROM and SIZE > 1:
        winner_0 = tl.load(winners_0 + e_0, inside).to(tl.int32)
        at_0 = first_0 + ((winner_0 // SIZE) * width + winner_0 % SIZE) * channels
        largest_0 = tl.load(convolved_0 + at_0, inside)
    if POOLS:
        value = tl.full([BLOCK], 0, real)
        winner = tl.zeros([BLOCK], tl.int32)
        for k in tl.static_range(0, SIZE * SIZE):
            at = ((k // SIZE) * width + k % SIZE) * channels
            other = tl.load(convolved + first + at, inside).to(real)
            if FROM:
                other_0 = tl.load(convolved_0 + first_0 + at, inside)
                other = other_0.to(real) + UNIT * other
                if ROUNDS and SIZE > 1:
                    lost = (other_0 == largest_0) & (winner_0 != k)
                    other = tl.where(lost, float("-inf"), other)
            wins = (other > value) | (other != other)  # NaN wins, as in max_pool2d
            if k == 0:
                value = other
            else:
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
            value += BACK_UNIT * tl.load(back + e, inside).to(real)
            if BACK_FROM:
                value += tl.load(back_0 + e_0, inside).to(real)
        if SIGMA == 0:
            value = 1 / (1 + tl.exp(2 - 4 * value))
        elif SIGMA == 1:
            value = 2 / (1 + tl.exp(-2 * value)) - 1
        elif SIGMA == 2:  # written so that NaN stays NaN
            value = tl.where(value < 0, 0.0, tl.where(value > 1, 1.0, value)).to(real)
        if RELAXATION != 1:
            value = (1 - RELAXATION) * tl.load(post + e, inside) + RELAXATION * value
            if BOUNDED:
                value = tl.where(value < LOW, LOW, tl.where(value > HIGH, HIGH, value)).to(real)
        if NUDGE:
            value -= tl.load(nudge + e, inside)
        tl.store(post + e, value, inside)
        if COPIES:
            copied = value
            if POST_FROM:
                copied = (value - tl.load(post_0 + e_0, inside)) / UNIT
            tl.store(operand + e, copied.to(operand.dtype.element_ty), inside)
    elif SPREADS:
        value = tl.load(post + e, inside)
    if SPREADS:
        if FROM:
            value_0 = tl.load(post_0 + e_0, inside)
        for k in tl.static_range(0, SIZE * SIZE):
            there = tl.where(winner == k, value, 0.0)
            if FROM:
                there = (there - tl.where(winner_0 == k, value_0, 0.0)) / UNIT
            at = first + ((k // SIZE) * width + k % SIZE) * channels
            tl.store(spread + at, there.to(spread.dtype.element_ty), inside)


class FusedWindows(Windows):
    """`Windows` on a GPU. What it convolves, moves and spreads lies with its channels last."""

    _counted = torch.int16  # as the kernel counts: within a window

    def pool(self, i: int, convolved: Product, bias: Tensor | None, post: Neurons) -> None:
        self._launch(i, convolved, bias, None, None, post, drives=True, moves=False)

    def turn(
        self,
        i: int,
        convolved: Product,
        bias: Tensor | None,
        back: Product | None,
        nudge: Tensor | None,
        post: Neurons,
    ) -> None:
        self._launch(i, convolved, bias, back, nudge, post)

    def move(self, i: int, back: Product | None, nudge: Tensor | None, post: Neurons) -> None:
        self._launch(i, Product(self.drive[i]), None, back, nudge, post, size=1)

    def _place(self, i: int, placed: Placed, less: Placed | None, whole: Tensor) -> None:
        values = _channels_last(placed.values[i])
        there = None if less is None else less.values[i]
        layer = Neurons(values, values, there)
        here = Product(whole, None if less is None else whole)  # their shape alone matters
        self._launch(
            i, here, None, None, None, layer, spread=whole, placed=(placed, less),
            pools=False, moves=False,
        )  # fmt: skip

    def _launch(
        self,
        i: int,
        convolved: Product,
        bias: Tensor | None,
        back: Product | None,
        nudge: Tensor | None,
        post: Neurons,
        *,
        size: int | None = None,
        spread: Tensor | None = None,
        placed: tuple[Placed, Placed | None] | None = None,
        pools: bool = True,
        drives: bool = False,
        moves: bool = True,
    ) -> None:
        size = self.size if size is None else size
        value, operand = post.value, post.operand
        unused: Any = value  # a kernel takes a pointer for each tensor, read or not

        def image(it: Tensor | None) -> Tensor:
            return unused if it is None else _channels_last(it)

        came = Product(unused) if back is None else back
        if placed is None:
            won, won_0 = self.winners, None if self.origin is None else self.origin.winners
        else:
            won, won_0 = (None if it is None else it.winners for it in placed)
        batch, channels, rows, columns = value.shape
        low, high = self.advance.bounds or (0.0, 0.0)
        _kernel[(triton.cdiv(value.numel(), BLOCK),)](
            image(convolved.moved), unused if bias is None else bias, image(came.moved),
            image(nudge), self.drive[i], value, operand,
            self.spread[i] if spread is None else spread,
            unused if won is None else won[i],
            image(convolved.origin), image(came.origin), image(post.origin),
            unused if won_0 is None else won_0[i],
            value.numel(), batch if post.origin is None else len(post.origin), channels, rows,
            columns, *convolved.moved.shape[2:],
            SIZE=size, SIGMA=ACTIVATIONS[self.advance.sigma], BIAS=bias is not None,
            BACK=back is not None, NUDGE=nudge is not None, POOLS=pools, DRIVES=drives,
            MOVES=moves, COPIES=operand is not value, SPREADS=size > 1,
            FROM=convolved.origin is not None, BACK_FROM=came.origin is not None,
            POST_FROM=post.origin is not None, ROUNDS=self._rounds,
            UNIT=unit(operand.dtype), BACK_UNIT=came.unit,
            RELAXATION=self.advance.relaxation, BOUNDED=self.advance.bounds is not None,
            LOW=low, HIGH=high, BLOCK=BLOCK,
        )  # fmt: skip


def _channels_last(image: Tensor) -> Tensor:
    """Return an image [batch, channels, height, width] with its channels last in memory."""
    return image.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
