"""Convolutions with max pooling. The drive on the layer before goes through the pooled maxima."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, max_pool2d
from torch.nn.grad import conv2d_weight

from eqprop.initial import Init
from eqprop.synapses.synapses import Synapses
from eqprop.types import Gradients, Shape


class Conv2d(Synapses):
    """A convolution between two layers of shape (channels, height, width), or from the input.

    The drive on `post` is pool(conv(pre) + bias), φ = Σ post · pool(conv(pre) + bias), and the
    drive on `pre` is ∂φ/∂pre. It goes back through the positions of the pooled maxima, the first
    one on a tie. Untied synapses use the `backward_weight` at the same positions.

    Args:
        pre: name of the layer before, or "input".
        post: name of the layer after.
        kernel: height and width of the kernel.
        stride: stride of the kernel. Default 1.
        padding: zeros on each side of the layer before. Default 0.
        pool: height and width of the max-pooling windows. Default 1: no pooling.
        tied: whether both directions share one weight (default True; EP, C-EP). If not, there is a
            separate `backward_weight` (VF, C-VF).
        bias: whether each channel of the layer after has a bias. Default False.
        init: distribution of the weights: "glorot" (default), "fan_in", or a function (shape,
            fan_in, fan_out, generator) -> tensor.
        angle: angle Ψ in degrees between forward and backward weights, untied only; a number, or
            one per member. Default 0.
        shared_update: untied only: both weights get the sum of both updates, as one tied weight
            would. With weight decay they align (Kolen and Pollack). Default False.
    """

    # weight and backward_weight [*ensemble, out, in, kernel, kernel], bias [*ensemble, out]

    def __init__(
        self,
        pre: str,
        post: str,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        pool: int = 1,
        tied: bool = True,
        bias: bool = False,
        init: str | Init = "glorot",
        angle: float | Sequence[float] = 0.0,
        shared_update: bool = False,
    ) -> None:
        super().__init__(
            pre, post, tied=tied, bias=bias, init=init, angle=angle, shared_update=shared_update
        )
        self.kernel, self.stride, self.padding, self.pool = kernel, stride, padding, pool
        for name, value, least in (
            ("kernel", kernel, 1),
            ("stride", stride, 1),
            ("padding", padding, 0),
            ("pool", pool, 1),
        ):
            if type(value) is not int or value < least:
                raise ValueError(
                    f"synapse {self.name}: {name} must be an integer of {least} or more, "
                    f"not {value!r}"
                )
        if self.within:
            raise ValueError(f"synapse {self.name}: a convolution joins two different layers")
        self.holomorphic = pool == 1

    def convolved(self, pre: Shape) -> tuple[int, int]:
        """Return height and width before pooling."""
        height, width = ((n + 2 * self.padding - self.kernel) // self.stride + 1 for n in pre[1:])
        return height, width

    def pooled(self, pre: Shape) -> tuple[int, int]:
        """Return height and width after pooling, from a layer of this shape."""
        height, width = (n // self.pool for n in self.convolved(pre))
        return height, width

    @property
    def left_out(self) -> list[int]:
        """The rows and columns at the end of the layer before that no kernel reaches."""
        shape, convolved = self.ends[0][1:], self.convolved(self.ends[0])
        return [
            n - ((m - 1) * self.stride - 2 * self.padding + self.kernel)
            for n, m in zip(shape, convolved, strict=True)
        ]

    def weight_shape(self, pre: Shape, post: Shape) -> Shape:
        if len(pre) != 3 or len(post) != 3:
            raise ValueError(
                f"synapse {self.name}: a convolution joins layers of shape (channels, height, "
                f"width), not {pre} and {post}"
            )
        pooled = self.pooled(pre)
        if pooled != post[1:] or min(pooled) < 1:
            raise ValueError(
                f"synapse {self.name}: from {pre[1:]} this convolution makes {pooled}, but layer "
                f"{self.post!r} is {post[1:]}: change the layer, or kernel, stride, padding, pool"
            )
        return post[0], pre[0], self.kernel, self.kernel

    def fans(self, pre: Shape, post: Shape) -> tuple[int, int]:
        return pre[0] * self.kernel**2, post[0] * self.kernel**2

    def bias_size(self, post: Shape) -> int:
        return post[0]

    # Folded: the members of an ensemble are groups of channels, [batch, members·channels, height,
    # width].

    @property
    def _members(self) -> int:
        return math.prod(self.ensemble)

    def _fold(self, value: Tensor) -> Tensor:
        """Fold [*ensemble, batch, channels, height, width]. Without the ensemble axes, all members
        get the same values.
        """
        if not self.ensemble:
            return value
        whole = value.expand(*self.ensemble, *value.shape[-4:])
        side_by_side = whole.reshape(self._members, *value.shape[-4:]).transpose(0, 1)
        return side_by_side.flatten(1, 2)

    def _unfold(self, value: Tensor) -> Tensor:
        if not self.ensemble:
            return value
        batch, _, height, width = value.shape
        apart = value.reshape(batch, self._members, -1, height, width).transpose(0, 1)
        return apart.reshape(*self.ensemble, *apart.shape[1:])

    def _kernels(self, weight: Tensor) -> Tensor:
        return weight.reshape(-1, *weight.shape[-3:])

    def _forward(self, pre: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the drive on `post`, folded, and the positions of the pooled maxima."""
        bias = None if self.bias is None else self.bias.flatten()
        drive = conv2d(
            self._fold(pre),
            self._kernels(self.weight),
            bias,
            self.stride,
            self.padding,
            groups=self._members,
        )
        if self.pool == 1:
            return drive, None
        pooled, winners = max_pool2d(drive, self.pool, return_indices=True)
        return pooled, winners

    def _spread(self, post: Tensor, winners: Tensor | None) -> Tensor:
        """Put the values of `post`, folded, at the pooled maxima, and zeros elsewhere."""
        post = self._fold(post)
        if winners is None:
            return post
        height, width = self.convolved(self.ends[0])
        flat = post.new_zeros(*post.shape[:2], height * width)
        spread = flat.scatter(-1, winners.flatten(2), post.flatten(2))
        return spread.reshape(*post.shape[:2], height, width)

    def drives(self, pre: Tensor, post: Tensor | None) -> tuple[Tensor | None, Tensor]:
        on_post, winners = self._forward(pre)
        if post is None or self.from_input:
            return None, self._unfold(on_post)
        back = self.weight if self.backward_weight is None else self.backward_weight
        on_pre = conv_transpose2d(
            self._spread(post, winners),
            self._kernels(back),
            None,
            self.stride,
            self.padding,
            self.left_out,
            groups=self._members,
        )
        return self._unfold(on_pre), self._unfold(on_post)

    def phi_gradient(self, pre: Tensor, post: Tensor) -> Gradients:
        self._require_tied()
        spread = self._spread(post, self._forward(pre)[1])
        return self._named(self._weight_gradient(pre, spread), None, post)

    def vector_field_gradient(
        self, pre: Tensor, post: Tensor, d_pre: Tensor | None, d_post: Tensor
    ) -> Gradients:
        winners = self._forward(pre)[1]
        forward = self._weight_gradient(pre, self._spread(d_post, winners))
        if d_pre is None:
            return self._named(forward, None, d_post)
        backward = self._weight_gradient(d_pre, self._spread(post, winners))
        if self.tied:
            return self._named(forward + backward, None, d_post)
        return self._named(forward, backward, d_post)

    def _weight_gradient(self, pre: Tensor, spread: Tensor) -> Tensor:
        """Return ∂/∂W of Σ spread · conv(pre), summed over the batch."""
        kernels = self._kernels(self.weight).shape

        def gradient(pre: Tensor, spread: Tensor) -> Tensor:
            found: Tensor = conv2d_weight(
                pre, kernels, spread, self.stride, self.padding, groups=self._members
            )
            return found

        return _bilinear(gradient, self._fold(pre), spread).reshape(self.weight.shape)

    def _named(self, weight: Tensor, backward: Tensor | None, post: Tensor) -> Gradients:
        gradients = {"weight": weight}  # in the order of named_parameters()
        if self.bias is not None:
            gradients["bias"] = post.sum((-4, -2, -1))
        if backward is not None:
            gradients["backward_weight"] = backward
            if self.shared_update:
                gradients |= self._shared(weight, backward)
        return gradients


def _bilinear(product: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Apply a bilinear product of real tensors to complex ones, without conjugation."""
    if not (a.is_complex() or b.is_complex()):
        return product(a, b)
    a, b = a + 0j, b + 0j
    real = product(a.real, b.real) - product(a.imag, b.imag)
    return torch.complex(real, product(a.real, b.imag) + product(a.imag, b.real))
