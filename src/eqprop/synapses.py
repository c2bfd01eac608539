"""Synapses: the only place where weights live, and all that a weight may see.

A synapse joins two layers. It turns what one end transmits into a drive on the other, holds
its own share φ of the primitive function, and forms its update from the states of its two
ends alone: locality in space is in the signatures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from eqprop import memory
from eqprop.model import Gradients
from eqprop.seeds import generator

INPUT = "input"
DRAWING = 3 * 8  # bytes per weight while one member is drawn: some float64 in between

Init = Callable[[tuple[int, ...], int, int, torch.Generator], Tensor]


def _uniform(bound: float, shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=source, dtype=torch.float64) - 1) * bound


def glorot(shape: tuple[int, ...], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Weights uniform in ±√(6/(fan_in + fan_out)), biases zero: the paper's text."""
    if len(shape) == 1:
        return torch.zeros(shape, dtype=torch.float64)
    return _uniform(math.sqrt(6 / (fan_in + fan_out)), shape, source)


def fan_in(shape: tuple[int, ...], fan_in: int, fan_out: int, source: torch.Generator) -> Tensor:
    """Weights and biases uniform in ±1/√fan_in: the authors' code."""
    return _uniform(1 / math.sqrt(fan_in), shape, source)


INITS: dict[str, Init] = {"glorot": glorot, "fan_in": fan_in}


def as_init(choice: str | Init) -> Init:
    if callable(choice):
        return choice
    if choice not in INITS:
        raise ValueError(
            f"init {choice!r} is unknown: choose one of {', '.join(INITS)}, or pass a function"
        )
    return INITS[choice]


class Synapses(nn.Module, ABC):
    """Connections from the layer `pre` to the layer `post`, and back."""

    pre: str
    post: str
    tied: bool
    weight: nn.Parameter

    @property
    def name(self) -> str:
        return f"{self.pre}→{self.post}"

    @property
    def from_input(self) -> bool:
        return self.pre == INPUT

    @abstractmethod
    def build(
        self,
        sizes: tuple[int, int],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        key: str,
        dtype: torch.dtype,
    ) -> None:
        """Allocate and draw the parameters, each member's from its own seed and `key`."""

    @abstractmethod
    def forward_drive(self, pre: Tensor) -> Tensor:
        """The drive on `post` by what `pre` transmits."""

    @abstractmethod
    def backward_drive(self, post: Tensor) -> Tensor:
        """The drive on `pre` by what `post` transmits."""

    @abstractmethod
    def angle(self) -> Tensor:
        """Ψ between forward and backward weights in degrees, [*ensemble]; 0 where tied."""

    @abstractmethod
    def phi(self, pre: Tensor, post: Tensor) -> Tensor:
        """This synapse's share of Φ, a value a sample. Tied synapses only."""

    @abstractmethod
    def phi_gradient(self, pre: Tensor, post: Tensor) -> Gradients:
        """∂φ/∂θ, summed over the batch. Tied synapses only."""

    @abstractmethod
    def vector_field_gradient(
        self, pre: Tensor, post: Tensor, d_pre: Tensor | None, d_post: Tensor
    ) -> Gradients:
        """(∂drive/∂θ)ᵀ·d for changes d at both ends, summed over the batch.

        `d_pre` is None for the input, which does not move.
        """


class Dense(Synapses):
    """All-to-all synapses between two layers, from the input, or within one layer.

    Within one layer (`pre == post`) tied means that the block is symmetric, untied that each of
    its n(n−1) connections is free.

    Args:
        pre: the name of the layer before, or "input".
        post: the name of the layer after.
        tied: one weight read in both directions (default True; EP, C-EP). Untied: a
            `backward_weight` of its own (VF, C-VF).
        bias: whether the layer after gets one. Default False.
        init: how weights are drawn: "glorot" (default), "fan_in", or a function (shape, fan_in,
            fan_out, generator) -> tensor.
        angle: Ψ in degrees between forward and backward weights, untied only; a number, or one per
            member. The backward weight is the transposed forward weight, each sign flipped with
            probability ½(1 − cos Ψ). Default 0.
        self_loops: within one layer, whether neurons feed themselves. Default False.
    """

    weight: nn.Parameter  # [*ensemble, n_pre, n_post]
    backward_weight: nn.Parameter | None  # [*ensemble, n_post, n_pre]
    bias: nn.Parameter | None  # [*ensemble, n_post]
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
        self_loops: bool = False,
    ) -> None:
        super().__init__()
        self.pre, self.post, self.tied = pre, post, tied
        self.within = pre == post
        self.has_bias, self.init, self.self_loops = bias, as_init(init), self_loops
        self.initial_angle = angle
        if post == INPUT:
            raise ValueError(f"synapse {self.name}: the input cannot receive synapses")
        if self_loops and not self.within:
            raise ValueError(f"synapse {self.name}: self_loops need pre and post to be one layer")
        if self._angles(1) != [0.0] and (tied or self.within or self.from_input):
            raise ValueError(
                f"synapse {self.name}: angle needs untied weights between two layers of neurons"
            )

    def _angles(self, members: int) -> list[float]:
        given = self.initial_angle
        angles = list(given) if isinstance(given, Sequence) else [float(given)] * members
        if not all(0 <= a <= 180 for a in angles):
            raise ValueError(f"synapse {self.name}: angle must lie in [0, 180] degrees: {given}")
        return angles

    def build(
        self,
        sizes: tuple[int, int],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        key: str,
        dtype: torch.dtype,
    ) -> None:
        if "weight" in self._parameters:
            raise ValueError(f"synapse {self.name} belongs to a network already: make a new one")
        n_pre, n_post = sizes
        angles = self._angles(len(seeds))
        if len(angles) != len(seeds):
            raise ValueError(
                f"synapse {self.name}: angle has {len(angles)} entries, "
                f"but the ensemble has {len(seeds)} member(s)"
            )
        untied = not (self.tied or self.within or self.from_input)
        kept = len(seeds) * (n_pre * n_post * (2 if untied else 1) + n_post) * dtype.itemsize
        memory.require(kept + DRAWING * n_pre * n_post, f"synapse {self.name}")
        exists = None
        if self.within:
            exists = torch.ones(n_pre, n_pre) if self.self_loops else 1 - torch.eye(n_pre)
        self.register_buffer("block_mask", exists if exists is None else exists.to(dtype))

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*ensemble, *shape, dtype=dtype), requires_grad=False)

        self.weight = parameter(n_pre, n_post)
        self.bias = parameter(n_post) if self.has_bias else None
        self.backward_weight = parameter(n_post, n_pre) if untied else None
        for i, (seed, angle) in enumerate(zip(seeds, angles, strict=True)):
            source = generator(seed, f"{key} weights")
            weight = self._drawn((n_pre, n_post), sizes, source)
            if self.within and self.tied:
                weight = weight.triu() + weight.triu(1).mT
            if exists is not None:
                weight = weight * exists
            self.weight.view(-1, n_pre, n_post)[i] = weight
            if self.bias is not None:
                self.bias.view(-1, n_post)[i] = self._drawn((n_post,), sizes, source)
            if self.backward_weight is not None:
                flips = generator(seed, f"{key} sign flips")
                self.backward_weight.view(-1, n_post, n_pre)[i] = _flip_signs(
                    weight, angle, flips
                ).mT

    def _drawn(
        self, shape: tuple[int, ...], sizes: tuple[int, int], source: torch.Generator
    ) -> Tensor:
        value = self.init(shape, *sizes, source)
        if tuple(value.shape) != shape:
            raise ValueError(
                f"synapse {self.name}: init returned {list(value.shape)}, but must return "
                f"{list(shape)}"
            )
        return value

    def _block(self) -> Tensor:
        """The weight as the dynamics read it: within a layer masked, and symmetric if tied."""
        if self.block_mask is None:
            return self.weight
        weight = self.weight * self.block_mask
        return 0.5 * (weight + weight.mT) if self.tied else weight

    def forward_drive(self, pre: Tensor) -> Tensor:
        drive = pre @ self._block()
        return drive if self.bias is None else drive + self.bias.unsqueeze(-2)

    def backward_drive(self, post: Tensor) -> Tensor:
        return post @ (self.weight.mT if self.backward_weight is None else self.backward_weight)

    def phi(self, pre: Tensor, post: Tensor) -> Tensor:
        self._require_tied()
        phi = ((pre @ self._block()) * post).sum(-1)
        if self.within:
            phi = 0.5 * phi
        return phi if self.bias is None else phi + (self.bias.unsqueeze(-2) * post).sum(-1)

    def phi_gradient(self, pre: Tensor, post: Tensor) -> Gradients:
        self._require_tied()
        product = pre.mT @ post
        if self.block_mask is not None:
            product = 0.5 * product * self.block_mask
        return self._named(product, None, post)

    def vector_field_gradient(
        self, pre: Tensor, post: Tensor, d_pre: Tensor | None, d_post: Tensor
    ) -> Gradients:
        forward = pre.mT @ d_post
        if self.block_mask is not None:
            forward = forward * self.block_mask
            if self.tied:
                forward = 0.5 * (forward + forward.mT)
            return self._named(forward, None, d_post)
        if d_pre is None:
            return self._named(forward, None, d_post)
        backward = post.mT @ d_pre
        if self.tied:
            return self._named(forward + backward.mT, None, d_post)
        return self._named(forward, backward, d_post)

    def _named(self, weight: Tensor, backward: Tensor | None, post: Tensor) -> Gradients:
        gradients = {"weight": weight}  # in the order of named_parameters()
        if self.bias is not None:
            gradients["bias"] = post.sum(-2)
        if backward is not None:
            gradients["backward_weight"] = backward
        return gradients

    def _require_tied(self) -> None:
        if not (self.tied or self.from_input):
            raise ValueError(
                f"synapse {self.name} is untied, so the network has no primitive function Φ: "
                "use VF or ContinualVF, or tie it"
            )

    def angle(self) -> Tensor:
        """κ between forward and backward weights in degrees, [*ensemble]: the measured Ψ."""
        if self.backward_weight is None:
            return torch.zeros(self.weight.shape[:-2], dtype=self.weight.dtype)
        return angle_between(self.weight, self.backward_weight.mT)

    def extra_repr(self) -> str:
        tying = "" if self.from_input else ", tied" if self.tied else ", untied"
        return f"{self.name}{tying}{', bias' if self.has_bias else ''}"


def _flip_signs(weight: Tensor, angle: float, source: torch.Generator) -> Tensor:
    p = 0.5 * (1 - math.cos(math.radians(angle)))
    flips = torch.rand(weight.shape, generator=source, dtype=torch.float64) < p
    return torch.where(flips, -weight, weight)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """arccos(Tr(a·bᵀ) / (‖a‖ ‖b‖)) over the last two axes, in degrees.

    0 where both are zero, 90 where one is.
    """
    norm_a, norm_b = a.norm(dim=(-2, -1)), b.norm(dim=(-2, -1))
    cosine = (a * b).sum((-2, -1)) / (norm_a * norm_b)
    degrees = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
    degrees = torch.where((norm_a == 0) | (norm_b == 0), 90.0, degrees)
    return torch.where((norm_a == 0) & (norm_b == 0), 0.0, degrees)
