"""Read-outs: what a network answers, what that costs, and how it is nudged.

A read-out sees the state alone. It stands outside the dynamics: it pulls on the neurons only
while they are nudged, and has parameters of its own where it has to.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eqprop.costs import Cost, SquaredError, cost_gradient
from eqprop.initial import Init, as_init
from eqprop.seeds import generator
from eqprop.types import Gradients, Shape, State


class Readout(nn.Module, ABC):
    """What a network answers, and how it is nudged.

    A read-out of your own defines `width`, `output`, `loss` and `nudge`; with parameters, also
    `build` and `gradients`.
    """

    holomorphic = False  # nudge(s, y) is an analytic function of s

    def build(
        self,
        layers: Sequence[Shape],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """Get ready for a network with layers of these shapes; draw parameters, if any."""
        self.layers, self.ensemble = tuple(layers), ensemble

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers it answers with per sample."""

    @abstractmethod
    def output(self, s: State) -> Tensor:
        """The answer, [*ensemble, batch, width]; the largest number is the class."""

    @abstractmethod
    def loss(self, s: State, y: Tensor) -> Tensor:
        """ℓ(s, y), one value per sample, [*ensemble, batch]."""

    @abstractmethod
    def nudge(self, s: State, y: Tensor) -> dict[int, Tensor]:
        """∂ℓ/∂s of the layers that are nudged, by their number, for every sample."""

    def gradients(self, s: State, y: Tensor) -> Gradients:
        """∂ℓ/∂θ of its own parameters by name, mean over the batch."""
        return {}

    def target(self, y: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
        """y as [*, batch, width], also where it holds class indices. Raise if it does not fit."""
        return SquaredError().target(y, (*self.ensemble, batch, self.width), dtype)


class OutputLayer(Readout):
    """The last layer answers, and is nudged by the gradient of a cost.

    Args:
        cost: ℓ(output, y), one value per sample. Default: `SquaredError()`, as in the paper.
    """

    def __init__(self, cost: Cost = SquaredError()) -> None:  # noqa: B008 (frozen)
        super().__init__()
        self.cost = cost
        self.holomorphic = isinstance(cost, SquaredError)

    @property
    def width(self) -> int:
        return math.prod(self.layers[-1])

    def output(self, s: State) -> Tensor:
        axes = len(self.layers[-1])
        return s[-1] if axes == 1 else s[-1].flatten(-axes)

    def loss(self, s: State, y: Tensor) -> Tensor:
        return self.cost(self.output(s), y)

    def nudge(self, s: State, y: Tensor) -> dict[int, Tensor]:
        output = self.output(s)
        if isinstance(self.cost, SquaredError):
            gradient = output - self.cost.target(y, output.shape, output.dtype)
        else:
            gradient = cost_gradient(self.cost, output, y)
        return {len(s) - 1: gradient.reshape(s[-1].shape)}

    def target(self, y: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
        if isinstance(self.cost, SquaredError):
            return super().target(y, batch, dtype)
        return y  # what a cost of one's own takes is for that cost to say


class CrossEntropy(Readout):
    """A softmax read-out outside the dynamics: p = softmax(s W + b) of the last layer s, and
    ℓ = −log p of the class.

    It is nudged by ∂ℓ/∂s = (p − y) Wᵀ, and its own W and b learn by their local gradient
    sᵀ (p − y) at the free state.

    Args:
        classes: how many.
        bias: whether it has one. Default True.
        init: how weights are drawn: "glorot" (default), "fan_in", or a function.
    """

    weight: nn.Parameter  # [*ensemble, n, classes]
    bias: nn.Parameter | None  # [*ensemble, classes]
    holomorphic = True

    def __init__(self, classes: int, *, bias: bool = True, init: str | Init = "glorot") -> None:
        super().__init__()
        if type(classes) is not int or classes < 2:
            raise ValueError(f"classes must be an integer of 2 or more, not {classes!r}")
        self.classes, self.has_bias, self.init = classes, bias, as_init(init)

    def build(
        self,
        layers: Sequence[Shape],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        super().build(layers, ensemble, seeds, dtype)
        fans = (math.prod(layers[-1]), self.classes)
        sources = [generator(seed, "read-out weights") for seed in seeds]

        def drawn(*shape: int) -> nn.Parameter:
            members = torch.stack([self.init(shape, *fans, source) for source in sources])
            whole = members.reshape(*ensemble, *shape).to(dtype)
            return nn.Parameter(whole, requires_grad=False)

        self.weight = drawn(*fans)
        self.bias = drawn(self.classes) if self.has_bias else None

    @property
    def width(self) -> int:
        return self.classes

    def _read(self, s: State) -> Tensor:
        axes = len(self.layers[-1])
        return s[-1] if axes == 1 else s[-1].flatten(-axes)

    def _logits(self, s: State) -> Tensor:
        logits = self._read(s) @ self.weight.to(s[-1].dtype)
        return logits if self.bias is None else logits + self.bias.unsqueeze(-2)

    def output(self, s: State) -> Tensor:
        return torch.softmax(self._logits(s), -1)

    def _errors(self, s: State, y: Tensor) -> Tensor:
        """p − y, also of complex states."""
        logits = self._logits(s)
        powers = torch.exp(logits - logits.real.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True) - self.target(y, logits.shape[-2], s[-1].dtype)

    def loss(self, s: State, y: Tensor) -> Tensor:
        logits = self._logits(s)
        target = self.target(y, logits.shape[-2], logits.dtype)
        return -(torch.log_softmax(logits, -1) * target).sum(-1)

    def nudge(self, s: State, y: Tensor) -> dict[int, Tensor]:
        gradient = self._errors(s, y) @ self.weight.mT.to(s[-1].dtype)
        return {len(s) - 1: gradient.reshape(s[-1].shape)}

    def gradients(self, s: State, y: Tensor) -> Gradients:
        errors, batch = self._errors(s, y), s[-1].shape[len(self.ensemble)]
        found = {"weight": self._read(s).mT @ errors / batch}
        if self.bias is not None:
            found["bias"] = errors.sum(-2) / batch
        return found
