"""Read-outs: the output of a network, its loss, and how the loss nudges the neurons.

A read-out sees only the state. It is not part of the dynamics: it acts on the neurons only in the
nudged phase. It may have parameters.
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
    """The output of a network, its loss and its nudge.

    Your own read-out defines `width`, `output`, `loss` and `nudge`; with parameters, also `build`
    and `gradients`.
    """

    holomorphic = False  # whether nudge(s, y) is an analytic function of s

    def build(
        self,
        layers: Sequence[Shape],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """Prepare for a network with layers of these shapes; draw the parameters, if any."""
        self.layers, self.ensemble = tuple(layers), ensemble

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of outputs per sample."""

    @abstractmethod
    def output(self, s: State) -> Tensor:
        """Return the output, [*ensemble, batch, width]; its largest entry is the class."""

    @abstractmethod
    def loss(self, s: State, y: Tensor) -> Tensor:
        """Return ℓ(s, y), one value per sample, [*ensemble, batch]."""

    @abstractmethod
    def nudge(self, s: State, y: Tensor) -> dict[int, Tensor]:
        """Return ∂ℓ/∂s per sample, {layer number: tensor}, for the layers that are nudged."""

    def gradients(self, s: State, y: Tensor) -> Gradients:
        """Return ∂ℓ/∂θ of the read-out's parameters by name, mean over the batch."""
        return {}

    def target(self, y: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
        """Return y as [*, batch, width]; y may be class indices. Raise if it does not fit."""
        return SquaredError().target(y, (*self.ensemble, batch, self.width), dtype)


class OutputLayer(Readout):
    """The last layer is the output. The gradient of a cost nudges it.

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
        return y  # only the user's cost knows which targets it takes


class CrossEntropy(Readout):
    """A softmax read-out of the last layer s: p = softmax(s W + b), ℓ = −log p of the class.

    It is not part of the dynamics. It nudges s by ∂ℓ/∂s = (p − y) Wᵀ. W and b learn with their
    local gradient sᵀ (p − y) at the free state.

    Args:
        classes: number of classes.
        bias: whether it has b. Default True.
        init: distribution of the weights: "glorot" (default), "fan_in", or a function.
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
        """Return p − y; the state may be complex."""
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
