"""All-to-all synapses."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from eqprop.initial import Init
from eqprop.synapses.synapses import Synapses
from eqprop.types import Gradients, Shape


class Dense(Synapses):
    """All-to-all synapses between two layers, from the input, or within one layer.

    Layers of any shape are flattened. Within one layer (`pre == post`) a tied weight is symmetric;
    in an untied one each of the n(n−1) connections is free.

    Args:
        pre: name of the layer before, or "input".
        post: name of the layer after.
        tied: whether both directions share one weight (default True; EP, C-EP). If not, there is a
            separate `backward_weight` (VF, C-VF).
        bias: whether the layer after has a bias. Default False.
        init: distribution of the weights: "glorot" (default), "fan_in", or a function (shape,
            fan_in, fan_out, generator) -> tensor.
        angle: angle Ψ in degrees between forward and backward weights, untied only; a number, or
            one per member. The backward weight is the transposed forward weight, each sign flipped
            with probability ½(1 − cos Ψ). Default 0.
        shared_update: untied only: both weights get the sum of both updates, as one tied weight
            would. With weight decay they align (Kolen and Pollack). Default False.
        self_loops: within one layer: whether neurons connect to themselves. Default False.
    """

    # weight [*ensemble, n_pre, n_post], backward_weight [*ensemble, n_post, n_pre]
    block_mask: Tensor | None  # [n, n], within one layer: which connections exist

    def __init__(
        self,
        pre: str,
        post: str,
        *,
        tied: bool = True,
        bias: bool = False,
        init: str | Init = "glorot",
        angle: float | Sequence[float] = 0.0,
        shared_update: bool = False,
        self_loops: bool = False,
    ) -> None:
        super().__init__(
            pre, post, tied=tied, bias=bias, init=init, angle=angle, shared_update=shared_update
        )
        self.self_loops = self_loops
        self.register_buffer("block_mask", None)
        if self_loops and not self.within:
            raise ValueError(f"synapse {self.name}: self_loops need pre and post to be one layer")

    def weight_shape(self, pre: Shape, post: Shape) -> Shape:
        return math.prod(pre), math.prod(post)

    def fans(self, pre: Shape, post: Shape) -> tuple[int, int]:
        return math.prod(pre), math.prod(post)

    def reverse(self, weight: Tensor) -> Tensor:
        return weight.mT

    def drawn(self, weight: Tensor) -> Tensor:
        if not self.within:
            return weight
        n = len(weight)
        exists = torch.ones(n, n) if self.self_loops else 1 - torch.eye(n)
        self.block_mask = exists.to(self.weight.dtype)
        if self.tied:
            weight = weight.triu() + weight.triu(1).mT
        return weight * exists

    def _flat(self, rate: Tensor, end: int) -> Tensor:
        axes = len(self.ends[end])
        return rate if axes == 1 else rate.flatten(-axes)

    def _shaped(self, drive: Tensor, end: int) -> Tensor:
        shape = self.ends[end]
        return drive if len(shape) == 1 else drive.unflatten(-1, shape)

    def _block(self) -> Tensor:
        """Return the weight that the dynamics use: masked within a layer, symmetric if tied."""
        if self.block_mask is None:
            return self.weight
        weight = self.weight * self.block_mask
        return 0.5 * (weight + weight.mT) if self.tied else weight

    def drives(self, pre: Tensor, post: Tensor | None) -> tuple[Tensor | None, Tensor]:
        on_post = self._flat(pre, 0) @ self._block()
        if self.bias is not None:
            on_post = on_post + self.bias.unsqueeze(-2)
        on_pre = None
        if post is not None and not (self.within or self.from_input):
            back = self.weight.mT if self.backward_weight is None else self.backward_weight
            on_pre = self._shaped(self._flat(post, 1) @ back, 0)
        return on_pre, self._shaped(on_post, 1)

    def phi(self, pre: Tensor, post: Tensor) -> Tensor:
        self._require_tied()
        pre, post = self._flat(pre, 0), self._flat(post, 1)
        phi = ((pre @ self._block()) * post).sum(-1)
        if self.within:
            phi = 0.5 * phi
        return phi if self.bias is None else phi + (self.bias.unsqueeze(-2) * post).sum(-1)

    def phi_gradient(self, pre: Tensor, post: Tensor) -> Gradients:
        self._require_tied()
        pre, post = self._flat(pre, 0), self._flat(post, 1)
        product = pre.mT @ post
        if self.block_mask is not None:
            product = 0.5 * product * self.block_mask
        return self._named(product, None, post)

    def vector_field_gradient(
        self, pre: Tensor, post: Tensor, d_pre: Tensor | None, d_post: Tensor
    ) -> Gradients:
        d_post = self._flat(d_post, 1)
        forward = self._flat(pre, 0).mT @ d_post
        if self.block_mask is not None:
            forward = forward * self.block_mask
            if self.tied:
                forward = 0.5 * (forward + forward.mT)
            return self._named(forward, None, d_post)
        if d_pre is None:
            return self._named(forward, None, d_post)
        backward = self._flat(post, 1).mT @ self._flat(d_pre, 0)
        if self.tied:
            return self._named(forward + backward.mT, None, d_post)
        return self._named(forward, backward, d_post)

    def _named(self, weight: Tensor, backward: Tensor | None, post: Tensor) -> Gradients:
        gradients = {"weight": weight}  # in the order of named_parameters()
        if self.bias is not None:
            gradients["bias"] = post.sum(-2)
        if backward is not None:
            gradients["backward_weight"] = backward
            if self.shared_update:
                gradients |= self._shared(weight, backward)
        return gradients
