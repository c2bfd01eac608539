"""The interface between learning rules and models: F(x, s, θ), ∂Φ/∂θ and ∂F/∂θ.

The state s is explicit: a tuple of one tensor [*ensemble, batch, *shape] per layer, input → output.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from eqprop.readouts import Readout
from eqprop.types import Gradients, Held, Shape, State
from eqprop.update_slope import UpdateSlope


class Model(nn.Module, ABC):
    """A convergent recurrent network with static input: s_{t+1} = F(x, s_t, θ).

    Parameters do not require grad: gradients come from the learning rules.
    """

    layer_names: tuple[str, ...]
    layer_shapes: tuple[Shape, ...]
    input_shape: Shape | None  # None: one axis of any width
    ensemble: tuple[int, ...]
    seeds: tuple[int, ...]  # one per member
    readout: Readout  # its output, its loss and its nudge
    nudge_scale: float  # ε of the nudge: s' = F − β ε ∂ℓ/∂s

    @abstractmethod
    def forward(
        self, x: Tensor, s: State, layers: Sequence[int] | None = None, held: Held | None = None
    ) -> State:
        """Return the next state F(x, s, θ).

        Args:
            x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
            s: the state, one tensor [*ensemble, batch, *shape] per layer.
            layers: numbers of the layers that move; the others keep their state. Default None: all.
            held: `hold(x)` for the same x and θ. Default None: compute it.
        """

    @abstractmethod
    def hold(self, x: Tensor) -> Held:
        """Return the part of F that depends on x and θ alone. Reuse it while both are constant."""

    @abstractmethod
    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        """Return ∂Φ/∂θ at (x, s, θ), mean over the batch. Raise if the model has no Φ."""

    @abstractmethod
    def vector_field_gradient(
        self, x: Tensor, s: State, ds: State, update_slope: str = UpdateSlope.NONE
    ) -> Gradients:
        """Return (∂F/∂θ)ᵀ·ds at (x, s, θ), mean over the batch.

        `update_slope` chooses the factor σ′ of a discrete-time network.
        """

    def check_update_slope(self, update_slope: str) -> None:
        """Raise if the model does not support this `update_slope`."""
        if update_slope != UpdateSlope.NONE:
            raise ValueError(
                f"update_slope '{update_slope}' needs a Network in discrete time: "
                f"a {type(self).__name__} derives ∂F/∂θ exactly; leave it at 'none'"
            )

    @abstractmethod
    def split(self) -> tuple[tuple[int, ...], ...]:
        """Return groups of layers with no synapse inside a group. Raise if there are none."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """The number of neurons per layer."""
        return tuple(math.prod(shape) for shape in self.layer_shapes)

    @property
    def input_size(self) -> int | None:
        """The number of inputs per sample; None: any."""
        return None if self.input_shape is None else math.prod(self.input_shape)

    def batch(self, x: Tensor) -> int:
        """Return the number of samples in the inputs x."""
        return x.shape[-1 - self._input_axes]

    @property
    def _input_axes(self) -> int:
        return 1 if self.input_shape is None else len(self.input_shape)

    def initial_state(self, x: Tensor) -> State:
        """Return s_0 = 0, as in all algorithms of the paper."""
        leading = (*self.ensemble, self.batch(x))
        return tuple(
            torch.zeros(*leading, *shape, dtype=self.dtype, device=x.device)
            for shape in self.layer_shapes
        )

    def output(self, s: State) -> Tensor:
        """Return the output of the read-out, [*ensemble, batch, n]."""
        return self.readout.output(s)

    def parameter_groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the parameter names that share one entry of a list of learning rates, input to
        output. Empty if the model has no such order.
        """
        return ()

    def check_holomorphic(self) -> None:
        """Raise unless F and the read-out are analytic functions of the state."""
        raise ValueError(
            f"Holomorphic needs a Network: a {type(self).__name__} is differentiated by autograd, "
            "which conjugates complex numbers; use Centred"
        )

    def check_nudged(self, layer: int) -> None:
        """Raise if the model cannot nudge the layer with this number."""

    def check_input(self, x: Tensor) -> None:
        expected = self.input_shape
        names = ("n",) if expected is None or len(expected) == 1 else expected
        _check_batch("x", x, names, self)
        if expected is not None and tuple(x.shape[-len(expected) :]) != expected:
            if len(expected) == 1:
                found = f"width {x.shape[-1]}, but the network has {expected[0]} inputs"
            else:
                found = f"samples {list(x.shape[-len(expected) :])}, but they must be {expected}"
            raise ValueError(f"x has {found}")

    def check_state(self, x: Tensor, s: State) -> None:
        n = len(self.layer_names)
        if not isinstance(s, tuple) or len(s) != n:
            found = f"{len(s)} of them" if isinstance(s, tuple) else type(s).__name__
            raise ValueError(f"state must be a tuple of {n} tensors, one per layer, not {found}")
        for name, shape, layer in zip(self.layer_names, self.layer_shapes, s, strict=True):
            expected = [*self.ensemble, self.batch(x), *shape]
            if list(layer.shape) != expected or layer.dtype != self.dtype:
                raise ValueError(
                    f"state of {name!r} is {list(layer.shape)} of {layer.dtype}, "
                    f"but must be {expected} of {self.dtype}"
                )

    def check_target(self, x: Tensor, y: Tensor) -> None:
        _check_tensor("y", y)
        if not y.is_floating_point():
            _check_device("y", y, self)
            return
        _check_batch("y", y, ("n",), self)
        if y.shape[-2] != self.batch(x):
            raise ValueError(f"y has {y.shape[-2]} samples, but x has {self.batch(x)}")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(value).__name__}")


def _check_batch(name: str, value: Tensor, sample: Sequence[int | str], model: Model) -> None:
    """Raise unless `value` is a valid batch whose samples have as many axes as `sample`.

    One batch may serve all members, or each member may have its own.
    """
    _check_tensor(name, value)
    axes = len(sample)
    leading = tuple(value.shape[: -1 - axes])
    if value.ndim < 1 + axes or leading not in ((), model.ensemble):
        members = f" or {[*model.ensemble, 'batch', *sample]}" if model.ensemble else ""
        raise ValueError(
            f"{name} has shape {list(value.shape)}, but must be {['batch', *sample]}{members}"
        )
    if value.shape[-1 - axes] == 0:
        raise ValueError(f"{name} has no samples: its batch is empty")
    if value.dtype != model.dtype:
        raise ValueError(
            f"{name} is {value.dtype}, but the model is {model.dtype}: "
            f"convert it with {name}.to({model.dtype})"
        )
    _check_device(name, value, model)
    # the sum is the cheap check; it may overflow although every value is finite
    if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} contains NaN or infinite values")


def _check_device(name: str, value: Tensor, model: Model) -> None:
    device = next(model.parameters()).device
    if value.device != device:
        raise ValueError(
            f"{name} is on {value.device}, but the model on {device}: "
            f"move it with {name}.to({str(device)!r})"
        )


def check_ensemble(ensemble: int | Sequence[int]) -> tuple[int, ...]:
    shape = tuple(ensemble) if isinstance(ensemble, Sequence) else (ensemble,)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape):
        raise ValueError(f"ensemble must hold positive integers, not {ensemble!r}")
    return shape


def as_shape(name: str, size: int | Sequence[int]) -> Shape:
    """Return the shape of a layer, from a shape or a number of neurons."""
    shape = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    if not shape or not all(type(n) is int and n > 0 for n in shape):
        raise ValueError(
            f"layer {name!r}: size must be a positive integer, not {size!r}, or a shape of them"
        )
    return shape


def mean_over_batch(summed: Gradients, batch: int) -> Gradients:
    """Divide gradients that are summed over the batch by its size. Nothing else does."""
    return {name: gradient / batch for name, gradient in summed.items()}


Number = TypeVar("Number", float, complex)


def per_member(value: Number | Tensor, like: Tensor, ensemble: tuple[int, ...]) -> Number | Tensor:
    """Reshape one value per member so that it broadcasts against `like`, [*ensemble, ...]."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return beside(value.reshape(ensemble), like).to(like)


def complex_copy(model: Model) -> Model:
    """Return a copy with complex parameters."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data + 0j
    return copied


def beside(members: Tensor, like: Tensor) -> Tensor:
    """Reshape [*ensemble] to [*ensemble, 1, …], with as many axes as `like`."""
    return members.reshape(*members.shape, *(1 for _ in range(like.ndim - members.ndim)))


def vjp(model: Model, x: Tensor, s: State, cotangent: State) -> tuple[State, Gradients]:
    """Return (∂F/∂s)ᵀ·cotangent per sample and (∂F/∂θ)ᵀ·cotangent, mean over the batch."""
    theta = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    s = tuple(layer.detach().requires_grad_() for layer in s)
    with torch.enable_grad():
        s_next = torch.func.functional_call(model, theta, (x, s))
    pulled = torch.autograd.grad(
        s_next, (*s, *theta.values()), cotangent, allow_unused=True, materialize_grads=True
    )
    gradients = dict(zip(theta, pulled[len(s) :], strict=True))
    return pulled[: len(s)], mean_over_batch(gradients, model.batch(x))
