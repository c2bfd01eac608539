"""What a learning rule may ask of a model: F(x, s, θ), ∂Φ/∂θ and ∂F/∂θ. Nothing else.

The state s is explicit: a tuple of one tensor [*ensemble, batch, n] a layer, input → output.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eqprop.update_slope import UpdateSlope

State = tuple[Tensor, ...]
Parameters = dict[str, Tensor]  # by name, as in named_parameters()
Held = dict[int, Tensor]  # the drive on each layer that the input alone gives
Gradients = dict[str, Tensor]  # one for each parameter, uphill on the loss


class Model(nn.Module, ABC):
    """A convergent recurrent network with static input: s_{t+1} = F(x, s_t, θ).

    Parameters do not require grad: gradients come from the learning rules.
    """

    layer_names: tuple[str, ...]
    layer_sizes: tuple[int, ...]
    input_size: int | None  # None: any width
    ensemble: tuple[int, ...]
    seeds: tuple[int, ...]  # one a member
    nudge_scale: float  # ε of the nudge: s' = F − β ε ∂ℓ/∂s

    @abstractmethod
    def forward(
        self, x: Tensor, s: State, layers: Sequence[int] | None = None, held: Held | None = None
    ) -> State:
        """F(x, s, θ). With `layers`, only those move and the others stay as they are.

        `held` is what `hold(x)` computed for the same x and θ.
        """

    @abstractmethod
    def hold(self, x: Tensor) -> Held:
        """What of F depends on x and θ alone, to be computed once while both are constant."""

    @abstractmethod
    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        """∂Φ/∂θ at (x, s, θ), mean over the batch. An error where the model has no Φ."""

    @abstractmethod
    def vector_field_gradient(
        self, x: Tensor, s: State, ds: State, update_slope: str = UpdateSlope.NONE
    ) -> Gradients:
        """(∂F/∂θ)ᵀ·ds at (x, s, θ), mean over the batch.

        `update_slope` says which σ′ of a discrete-time network it carries.
        """

    def check_update_slope(self, update_slope: str) -> None:
        """Raise where the model has no σ′ to choose."""
        if update_slope != UpdateSlope.NONE:
            raise ValueError(
                f"update_slope '{update_slope}' needs a Network in discrete time: "
                f"a {type(self).__name__} derives ∂F/∂θ exactly; leave it at 'none'"
            )

    @abstractmethod
    def split(self) -> tuple[tuple[int, ...], ...]:
        """Two groups of layers that see only each other. An error where there is no such split."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    def initial_state(self, x: Tensor) -> State:
        """s_0 = 0, as in all algorithms of the paper."""
        return tuple(
            torch.zeros(*self.ensemble, x.shape[-2], n, dtype=self.dtype, device=x.device)
            for n in self.layer_sizes
        )

    def output(self, s: State) -> Tensor:
        return s[-1]

    def check_input(self, x: Tensor) -> None:
        _check_batch("x", x, self)
        if self.input_size is not None and x.shape[-1] != self.input_size:
            raise ValueError(
                f"x has width {x.shape[-1]}, but the network has {self.input_size} inputs"
            )

    def check_state(self, x: Tensor, s: State) -> None:
        n = len(self.layer_names)
        if not isinstance(s, tuple) or len(s) != n:
            found = f"{len(s)} of them" if isinstance(s, tuple) else type(s).__name__
            raise ValueError(f"state must be a tuple of {n} tensors, one a layer, not {found}")
        for name, size, layer in zip(self.layer_names, self.layer_sizes, s, strict=True):
            expected = [*self.ensemble, x.shape[-2], size]
            if list(layer.shape) != expected or layer.dtype != self.dtype:
                raise ValueError(
                    f"state of {name!r} is {list(layer.shape)} of {layer.dtype}, "
                    f"but must be {expected} of {self.dtype}"
                )

    def check_target(self, x: Tensor, y: Tensor) -> None:
        if not isinstance(y, Tensor):
            raise ValueError(f"y must be a tensor, not {type(y).__name__}")
        if not y.is_floating_point():
            _check_device("y", y, self)
            return
        _check_batch("y", y, self)
        if y.shape[-2] != x.shape[-2]:
            raise ValueError(f"y has {y.shape[-2]} samples, but x has {x.shape[-2]}")


def _check_batch(name: str, value: Tensor, model: Model) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, not {type(value).__name__}")
    leading = tuple(value.shape[:-2])
    if value.ndim < 2 or leading not in ((), model.ensemble):
        members = f" or {[*model.ensemble, 'batch', 'n']}" if model.ensemble else ""
        raise ValueError(
            f"{name} has shape {list(value.shape)}, but must be ['batch', 'n']{members}"
        )
    if value.shape[-2] == 0:
        raise ValueError(f"{name} has no samples: its batch is empty")
    if value.dtype != model.dtype:
        raise ValueError(
            f"{name} is {value.dtype}, but the model is {model.dtype}: "
            f"convert it with {name}.to({model.dtype})"
        )
    _check_device(name, value, model)
    # one number tells, unless the sum itself overflows
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


def mean_over_batch(summed: Gradients, batch: int) -> Gradients:
    """The one place where per-sample gradients, summed over the batch, become their mean."""
    return {name: gradient / batch for name, gradient in summed.items()}


def per_member(value: float | Tensor, like: Tensor, ensemble: tuple[int, ...]) -> float | Tensor:
    """A value a member, shaped so that it multiplies `like` of shape [*ensemble, ...]."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    return value.reshape(*ensemble, *(1 for _ in range(like.ndim - len(ensemble)))).to(like)


def vjp(model: Model, x: Tensor, s: State, cotangent: State) -> tuple[State, Gradients]:
    """(∂F/∂s)ᵀ·cotangent for every sample, and (∂F/∂θ)ᵀ·cotangent as mean over the batch."""
    theta = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    s = tuple(layer.detach().requires_grad_() for layer in s)
    with torch.enable_grad():
        s_next = torch.func.functional_call(model, theta, (x, s))
    pulled = torch.autograd.grad(
        s_next, (*s, *theta.values()), cotangent, allow_unused=True, materialize_grads=True
    )
    gradients = dict(zip(theta, pulled[len(s) :], strict=True))
    return pulled[: len(s)], mean_over_batch(gradients, s[-1].shape[-2])
