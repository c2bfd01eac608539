"""Models from a user's function: Φ(x, s, θ) as `Primitive`, F(x, s, θ) as `VectorField`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from eqprop.model import Model, as_shape, check_ensemble, mean_over_batch, vjp
from eqprop.readouts import OutputLayer
from eqprop.seeds import member_seeds
from eqprop.types import Gradients, Held, Parameters, State
from eqprop.update_slope import UpdateSlope

Phi = Callable[[Tensor, State, Parameters], Tensor]
Field = Callable[[Tensor, State, Parameters], State]


class _UserModel(Model):
    """A model from a function of (x, s, θ), with parameters and layers by name."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        layers: Mapping[str, int | Sequence[int]],
        inputs: int | Sequence[int] | None,
        ensemble: int | Sequence[int],
    ) -> None:
        super().__init__()
        if not parameters or not layers:
            raise ValueError("parameters and layers must each have at least one entry")
        self.ensemble = check_ensemble(ensemble)
        self.seeds = member_seeds(0, self.ensemble)
        self.layer_names = tuple(layers)
        self.layer_shapes = tuple(as_shape(name, size) for name, size in layers.items())
        self.input_shape = None if inputs is None else as_shape("input", inputs)
        self.nudge_scale = 1.0
        self.readout = OutputLayer()
        first = next(iter(parameters.values()))
        for name, value in parameters.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"parameter {name!r} must be a tensor, not {type(value).__name__}")
            if value.dtype != first.dtype or not value.is_floating_point():
                raise ValueError(
                    f"parameter {name!r} is {value.dtype}: all must share one floating-point type"
                )
            if tuple(value.shape[: len(self.ensemble)]) != self.ensemble:
                raise ValueError(
                    f"parameter {name!r} has shape {list(value.shape)}, "
                    f"but must start with the ensemble {list(self.ensemble)}"
                )
            own = nn.Parameter(value.detach().clone(), requires_grad=False)
            self.register_parameter(name, own)
        self.readout.build(self.layer_shapes, self.ensemble, self.seeds, self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @abstractmethod
    def transition(self, x: Tensor, s: State, theta: Parameters) -> State: ...

    def forward(
        self, x: Tensor, s: State, layers: Sequence[int] | None = None, held: Held | None = None
    ) -> State:
        if layers is not None:
            self.split()
        return self.transition(x, s, dict(self.named_parameters()))

    def hold(self, x: Tensor) -> Held:
        return {}

    def vector_field_gradient(
        self, x: Tensor, s: State, ds: State, update_slope: str = UpdateSlope.NONE
    ) -> Gradients:
        self.check_update_slope(update_slope)
        return vjp(self, x, s, ds)[1]

    def split(self) -> tuple[tuple[int, ...], ...]:
        raise ValueError("in_turn needs a Network: a function does not tell which layers it joins")


class Primitive(_UserModel):
    """A model with F = ∂Φ/∂s, for a function Φ(x, s, θ) in plain PyTorch.

    F, ∂Φ/∂θ and ∂F/∂θ are derived with `torch.func` and autograd.

    Args:
        phi: Φ(x, s, theta). s is a tuple of tensors [*ensemble, batch, *shape], one per entry of
            `layers`; theta is {name: parameter}. It returns one value per sample,
            [*ensemble, batch].
        parameters: {name: initial value}, each [*ensemble, ...].
        layers: {name: number of neurons, or a shape}; the last is the output.
        inputs: the width of x, or its shape. Default None: any width.
        ensemble: number of networks, or a shape. Default (): one network, without an ensemble axis.
    """

    def __init__(
        self,
        phi: Phi,
        *,
        parameters: Mapping[str, Tensor],
        layers: Mapping[str, int | Sequence[int]],
        inputs: int | Sequence[int] | None = None,
        ensemble: int | Sequence[int] = (),
    ) -> None:
        super().__init__(parameters, layers, inputs, ensemble)
        self._phi = phi

    def phi(self, x: Tensor, s: State) -> Tensor:
        """Return Φ(x, s, θ), one value per sample."""
        return self._checked(x, s, dict(self.named_parameters()))

    def _checked(self, x: Tensor, s: State, theta: Parameters) -> Tensor:
        value = self._phi(x, s, theta)
        expected = s[-1].shape[: len(self.ensemble) + 1]
        if value.shape != expected:
            raise ValueError(
                f"phi must return one value per sample, shape {list(expected)}, "
                f"not {list(value.shape)}"
            )
        return value

    def transition(self, x: Tensor, s: State, theta: Parameters) -> State:
        f: State = torch.func.grad(lambda s: self._checked(x, s, theta).sum())(s)
        return f

    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        theta = {name: p.detach() for name, p in self.named_parameters()}
        summed: Gradients = torch.func.grad(lambda theta: self._checked(x, s, theta).sum())(theta)
        return mean_over_batch(summed, self.batch(x))


class VectorField(_UserModel):
    """A model from a transition function F(x, s, θ), which need not derive from any Φ.

    Vector-field rules, BPTT and RBP apply; EP and C-EP do not.

    Args:
        f: F(x, s, theta). s is a tuple of tensors [*ensemble, batch, *shape], one per entry of
            `layers`; theta is {name: parameter}. It returns the next state, shaped like s.
        parameters: {name: initial value}, each [*ensemble, ...].
        layers: {name: number of neurons, or a shape}; the last is the output.
        inputs: the width of x, or its shape. Default None: any width.
        ensemble: number of networks, or a shape. Default (): one network, without an ensemble axis.
    """

    def __init__(
        self,
        f: Field,
        *,
        parameters: Mapping[str, Tensor],
        layers: Mapping[str, int | Sequence[int]],
        inputs: int | Sequence[int] | None = None,
        ensemble: int | Sequence[int] = (),
    ) -> None:
        super().__init__(parameters, layers, inputs, ensemble)
        self._f = f

    def transition(self, x: Tensor, s: State, theta: Parameters) -> State:
        s_next = self._f(x, s, theta)
        self.check_state(x, s_next)
        return s_next

    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        raise ValueError("a VectorField has no primitive function Φ: use VF or ContinualVF")


def _toy_phi(x: Tensor, s: State, theta: Parameters) -> Tensor:
    return 0.25 * (s[0][..., 0] + theta["theta"]) ** 2


def toy_model(theta: float = 1.0, dtype: torch.dtype = torch.float64) -> Primitive:
    """Return the scalar model of appendix C: Φ = ¼(s + θ)², so F = ½(s + θ) and s_* = θ.

    Its loss is ½s²: `SquaredError` with y = 0. It ignores x.

    Args:
        theta: the initial θ. Default 1.
        dtype: type of θ. Default float64.
    """
    return Primitive(
        _toy_phi, parameters={"theta": torch.tensor(theta, dtype=dtype)}, layers={"s": 1}
    )
