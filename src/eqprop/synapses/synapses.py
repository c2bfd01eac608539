"""The interface of synapses. They join two layers and see only these two.

Synapses turn what their two layers transmit into a drive on each, add a share φ to the primitive
function, and compute their update from the states of both layers. So the signatures enforce
locality in space. Your own synapses define `weight_shape`, `fans` and `drives`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eqprop.initial import Init, angle_between, as_init, flip_signs
from eqprop.seeds import generator
from eqprop.types import Gradients, Shape

INPUT = "input"


class Synapses(nn.Module, ABC):
    """Connections from the layer `pre` to the layer `post`, and back.

    Args:
        pre: name of the layer before, or "input".
        post: name of the layer after.
        tied: whether both directions share one weight (default True; EP, C-EP). If not, there is a
            separate `backward_weight` (VF, C-VF).
        bias: whether the layer after has a bias. Default False.
        init: distribution of the weights: "glorot" (default), "fan_in", or a function (shape,
            fan_in, fan_out, generator) -> tensor.
        angle: angle Ψ in degrees between forward and backward weights, untied only; a number, or
            one per member. The backward weight is the forward weight, each sign flipped with
            probability ½(1 − cos Ψ). Default 0.
        shared_update: untied only: both weights get the sum of both updates, as one tied weight
            would. With weight decay they align (Kolen and Pollack). Default False.
    """

    weight: nn.Parameter  # [*ensemble, *weight_shape]
    bias: nn.Parameter | None  # [*ensemble, n_bias]
    backward_weight: nn.Parameter | None  # shaped like reverse(weight)
    ends: tuple[Shape, Shape]  # shapes of the two layers
    ensemble: tuple[int, ...]
    holomorphic = True  # whether the drives are analytic functions of what the layers transmit

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
    ) -> None:
        super().__init__()
        self.pre, self.post, self.tied = pre, post, tied
        self.within = pre == post
        self.has_bias, self.init, self.initial_angle = bias, as_init(init), angle
        self.shared_update = shared_update
        if post == INPUT:
            raise ValueError(f"synapse {self.name}: the input cannot receive synapses")
        if self._angles(1) != [0.0] and (tied or self.within or self.from_input):
            raise ValueError(
                f"synapse {self.name}: angle needs untied weights between two layers of neurons"
            )
        if shared_update and not self.untied:
            raise ValueError(
                f"synapse {self.name}: shared_update needs untied weights between two layers"
            )

    @property
    def name(self) -> str:
        return f"{self.pre}→{self.post}"

    @property
    def from_input(self) -> bool:
        return self.pre == INPUT

    @property
    def untied(self) -> bool:
        """Whether there is a separate backward weight."""
        return not (self.tied or self.within or self.from_input)

    # to be defined by each kind of synapse

    @abstractmethod
    def weight_shape(self, pre: Shape, post: Shape) -> Shape:
        """Return the shape of one member's weight between layers of these shapes; raise if they do
        not fit.
        """

    @abstractmethod
    def fans(self, pre: Shape, post: Shape) -> tuple[int, int]:
        """Return (fan_in, fan_out): connections per neuron of `post` and per neuron of `pre`."""

    @abstractmethod
    def drives(self, pre: Tensor, post: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Return the drives (on_pre, on_post), each [*ensemble, batch, *shape].

        `on_pre` is None if nothing goes back: from the input, within one layer, or if `post` is
        None.

        Args:
            pre: what the layer before transmits, [*ensemble, batch, *shape].
            post: what the layer after transmits. None: no drive on `pre` is needed.
        """

    def bias_size(self, post: Shape) -> int:
        """Return the number of biases per member."""
        return math.prod(post)

    def reverse(self, weight: Tensor) -> Tensor:
        """Rearrange a forward weight as a backward weight. The function is its own inverse."""
        return weight

    def drawn(self, weight: Tensor) -> Tensor:
        """Adjust one member's weight after it is drawn."""
        return weight

    # derived

    def size(self, pre: Shape, post: Shape) -> int:
        """Return the number of parameters per member."""
        weights = math.prod(self.weight_shape(pre, post)) * (2 if self.untied else 1)
        return weights + (self.bias_size(post) if self.has_bias else 0)

    def build(
        self,
        ends: tuple[Shape, Shape],
        ensemble: tuple[int, ...],
        seeds: Sequence[int],
        key: str,
        dtype: torch.dtype,
    ) -> None:
        """Allocate and draw the parameters, those of each member from its seed and `key`."""
        if "weight" in self._parameters:
            raise ValueError(f"synapse {self.name} belongs to a network already: make a new one")
        angles = self._angles(len(seeds))
        if len(angles) != len(seeds):
            raise ValueError(
                f"synapse {self.name}: angle has {len(angles)} entries, "
                f"but the ensemble has {len(seeds)} member(s)"
            )
        self.ends, self.ensemble = ends, ensemble
        shape, fans, n_bias = self.weight_shape(*ends), self.fans(*ends), self.bias_size(ends[1])

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*ensemble, *shape, dtype=dtype), requires_grad=False)

        self.weight = parameter(*shape)
        self.bias = parameter(n_bias) if self.has_bias else None
        backward = self.reverse(torch.empty(shape, device="meta")).shape
        self.backward_weight = parameter(*backward) if self.untied else None
        for i, (seed, angle) in enumerate(zip(seeds, angles, strict=True)):
            source = generator(seed, f"{key} weights")
            weight = self.drawn(self._draw(shape, fans, source))
            self.weight.view(-1, *shape)[i] = weight
            if self.bias is not None:
                self.bias.view(-1, n_bias)[i] = self._draw((n_bias,), fans, source)
            if self.backward_weight is not None:
                flips = generator(seed, f"{key} sign flips")
                flipped = flip_signs(weight, angle, flips)
                self.backward_weight.view(-1, *backward)[i] = self.reverse(flipped)

    def _angles(self, members: int) -> list[float]:
        given = self.initial_angle
        angles = list(given) if isinstance(given, Sequence) else [float(given)] * members
        if not all(0 <= a <= 180 for a in angles):
            raise ValueError(f"synapse {self.name}: angle must lie in [0, 180] degrees: {given}")
        return angles

    def _draw(self, shape: Shape, fans: tuple[int, int], source: torch.Generator) -> Tensor:
        value = self.init(shape, *fans, source)
        if tuple(value.shape) != shape:
            raise ValueError(
                f"synapse {self.name}: init returned {list(value.shape)}, but must return "
                f"{list(shape)}"
            )
        return value

    def angle(self) -> Tensor:
        """Return Ψ between forward and backward weights in degrees, [*ensemble]; 0 if tied."""
        if self.backward_weight is None:
            return torch.zeros(self.ensemble, dtype=self.weight.dtype)
        back = self.reverse(self.backward_weight)
        a, b = (w.reshape(*self.ensemble, 1, -1) for w in (self.weight, back))
        return angle_between(a, b)

    def phi(self, pre: Tensor, post: Tensor) -> Tensor:
        """Return φ = post · (drive on post), its share of Φ, one value per sample. Tied only."""
        self._require_tied()
        return self._per_sample(post * self.drives(pre, None if self.from_input else post)[1])

    def phi_gradient(self, pre: Tensor, post: Tensor) -> Gradients:
        """Return ∂φ/∂θ, summed over the batch. Tied only."""
        self._require_tied()

        def phi(theta: Gradients) -> Tensor:
            value: Tensor = torch.func.functional_call(self, theta, (pre, post))
            return value.sum()

        found: Gradients = torch.func.grad(phi)(dict(self.named_parameters()))
        return found

    def vector_field_gradient(
        self, pre: Tensor, post: Tensor, d_pre: Tensor | None, d_post: Tensor
    ) -> Gradients:
        """Return (∂drive/∂θ)ᵀ·d for changes d of both layers, summed over the batch.

        `d_pre` is None for the input, which does not move.
        """

        def moved(theta: Gradients) -> Tensor:
            on_pre, on_post = torch.func.functional_call(
                self, theta, (pre, None if self.from_input else post), {"drives": True}
            )
            total: Tensor = (d_post * on_post).sum()
            if on_pre is not None and d_pre is not None:
                total = total + (d_pre * on_pre).sum()
            return total

        found: Gradients = torch.func.grad(moved)(dict(self.named_parameters()))
        if self.shared_update:
            found |= self._shared(found["weight"], found["backward_weight"])
        return found

    def _shared(self, forward: Tensor, backward: Tensor) -> Gradients:
        """Return the gradients of both weights under `shared_update`."""
        total = forward + self.reverse(backward)
        return {"weight": total, "backward_weight": self.reverse(total)}

    def forward(
        self, pre: Tensor, post: Tensor | None, drives: bool = False
    ) -> Tensor | tuple[Tensor | None, Tensor]:
        """Return φ(pre, post), or the drives, for `torch.func.functional_call`."""
        if drives:
            return self.drives(pre, post)
        assert post is not None
        return self.phi(pre, post)

    def _per_sample(self, value: Tensor) -> Tensor:
        """Sum over the neurons of `post`; return [*ensemble, batch]."""
        return value.flatten(-len(self.ends[1])).sum(-1)

    def _require_tied(self) -> None:
        if not (self.tied or self.from_input):
            raise ValueError(
                f"synapse {self.name} is untied, so the network has no primitive function Φ: "
                "use VF or ContinualVF, or tie it"
            )

    def extra_repr(self) -> str:
        tying = "" if self.from_input else ", tied" if self.tied else ", untied"
        return f"{self.name}{tying}{', bias' if self.has_bias else ''}"
