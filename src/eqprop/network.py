"""Networks: layers of neurons joined by synapses, in discrete or real time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from eqprop import memory
from eqprop.activations import IDENTITY, Activation, Elementwise, as_activation
from eqprop.colouring import colours
from eqprop.model import Model, as_shape, check_ensemble, mean_over_batch
from eqprop.readouts import OutputLayer, Readout
from eqprop.seeds import member_seeds
from eqprop.synapses import INPUT, Dense, Init, Synapses
from eqprop.timesteps import Discrete, RealTime, Timesteps
from eqprop.types import Gradients, Held, Shape, State
from eqprop.update_slope import UpdateSlope

DRAWING = 3 * 8  # bytes per weight while one member is drawn: float64 intermediates


@dataclass(frozen=True)
class Input:
    """The static input x.

    Args:
        size: number of inputs per sample, or their shape, such as (channels, height, width).
        activation: function of x that the input transmits. Default: x itself. In real time the
            paper transmits σ(x).
    """

    size: int | Sequence[int]
    activation: Activation | str | Elementwise = IDENTITY

    def __post_init__(self) -> None:
        as_shape(INPUT, self.size)
        as_activation(self.activation)

    @property
    def shape(self) -> Shape:
        return as_shape(INPUT, self.size)


@dataclass(frozen=True)
class Layer:
    """Neurons that share an activation. The last layer of a network is its output.

    Args:
        name: the name by which synapses refer to it; not "input".
        size: number of neurons, or their shape, such as (channels, height, width).
        activation: σ: "sigmoid", "tanh", "hard_sigmoid", "identity", an `Activation`, or any
            elementwise function. Default None: the activation of the network.
    """

    name: str
    size: int | Sequence[int]
    activation: Activation | str | Elementwise | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name == INPUT:
            raise ValueError(f"layer name {self.name!r} is reserved or empty")
        as_shape(self.name, self.size)
        if self.activation is not None:
            as_activation(self.activation)

    @property
    def shape(self) -> Shape:
        return as_shape(self.name, self.size)


class Network(Model):
    """A recurrent network with transition function F(x, s, θ): layers joined by synapses.

    Any topology is possible. A network is a `torch.nn.Module`. Parameters are [*ensemble, ...],
    states [*ensemble, batch, *shape].

    Args:
        layers: the `Input`, then one or more `Layer`s; the last is the output.
        synapses: `Dense(...)`, `Conv2d(...)` and others; each names the layers that it joins.
        time: `Discrete()` (default), `Discrete(relaxation)`, or `RealTime(dt)`.
        activation: σ of the layers without an activation. Default "sigmoid".
        readout: output, loss and nudge of the network: `OutputLayer()` (default: squared error on
            the last layer), `CrossEntropy(classes)`, or your own `Readout`.
        ensemble: number of networks, or a shape. Default (): one network, without an ensemble axis.
        seed: seed of the initial weights and of the signs of β. Member i has seed + i; or give one
            seed per member. Default 0.
        dtype: type of the parameters. Default float32.
    """

    synapses: Sequence[Synapses]
    edges: tuple[tuple[int | None, int], ...]  # layers (pre, post) per synapse; None: the input

    def __init__(
        self,
        layers: Sequence[Input | Layer],
        synapses: Sequence[Synapses],
        *,
        time: Timesteps = Discrete(),  # noqa: B008 (frozen)
        activation: Activation | str | Elementwise = "sigmoid",
        readout: Readout | None = None,
        ensemble: int | Sequence[int] = (),
        seed: int | Sequence[int] = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not layers or not isinstance(layers[0], Input):
            raise ValueError("layers must start with an Input")
        self.input = layers[0]
        self.layers = tuple(layer for layer in layers if isinstance(layer, Layer))
        if len(self.layers) != len(layers) - 1 or not self.layers:
            raise ValueError("layers must hold one Layer or more after the Input, and nothing else")
        if not isinstance(time, Timesteps):
            raise ValueError(f"time must be Discrete() or RealTime(dt=...), not {time!r}")
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise ValueError(f"dtype must be a floating-point type of torch, not {dtype!r}")
        self.time = time
        self.ensemble = check_ensemble(ensemble)
        self.seeds = member_seeds(seed, self.ensemble)
        self.layer_names = tuple(layer.name for layer in self.layers)
        self.layer_shapes = tuple(layer.shape for layer in self.layers)
        self.input_shape = self.input.shape
        self.nudge_scale = time.epsilon
        self.input_activation = as_activation(self.input.activation)
        self.activations = tuple(
            as_activation(activation if layer.activation is None else layer.activation)
            for layer in self.layers
        )
        self.edges = self._connect(synapses, dtype)
        self.synapses = nn.ModuleList(synapses)  # type: ignore[assignment]
        self.readout = OutputLayer() if readout is None else readout
        if not isinstance(self.readout, Readout):
            raise ValueError(f"readout must be CrossEntropy(...) or another, not {readout!r}")
        self.readout.build(self.layer_shapes, self.ensemble, self.seeds, dtype)

    def _connect(
        self, synapses: Sequence[Synapses], dtype: torch.dtype
    ) -> tuple[tuple[int | None, int], ...]:
        """Build the synapses; return the layer numbers (pre, post) of each, None for the input."""
        index = {name: i for i, name in enumerate(self.layer_names)}
        if len(index) != len(self.layers):
            raise ValueError(f"layer names must differ: {', '.join(self.layer_names)}")
        shapes = {INPUT: self.input.shape, **{layer.name: layer.shape for layer in self.layers}}
        ends: list[tuple[int | None, int]] = []
        for synapse in synapses:
            if not isinstance(synapse, Synapses):
                raise ValueError(f"synapses must be Dense(...), not {type(synapse).__name__}")
            for end in (synapse.pre, synapse.post):
                if end not in shapes:
                    raise ValueError(
                        f"synapse {synapse.name}: no layer {end!r} among {', '.join(shapes)}"
                    )
            ends.append((index.get(synapse.pre), index[synapse.post]))
        for i, name in enumerate(self.layer_names):
            if not any(i in end for end in ends):
                raise ValueError(f"layer {name!r} has no synapses")
        joined = [(shapes[synapse.pre], shapes[synapse.post]) for synapse in synapses]
        sizes = [synapse.size(*pair) for synapse, pair in zip(synapses, joined, strict=True)]
        kept = dtype.itemsize * len(self.seeds) * sum(sizes)
        memory.require(kept + DRAWING * max(sizes), "the network")
        for k, (synapse, pair) in enumerate(zip(synapses, joined, strict=True)):
            synapse.build(pair, self.ensemble, self.seeds, f"synapse {k}", dtype)
        return tuple(ends)

    @property
    def input_size(self) -> int:
        """The number of inputs per sample."""
        return math.prod(self.input.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.synapses[0].weight.dtype

    @property
    def tied(self) -> bool:
        """Whether all synapses between layers use one weight in both directions."""
        return all(s.tied for s in self.synapses if not s.from_input)

    def forward(
        self, x: Tensor, s: State, layers: Sequence[int] | None = None, held: Held | None = None
    ) -> State:
        moving = range(len(s)) if layers is None else layers
        drives = self._drives(self._rates(s), self.hold(x) if held is None else held, moving)
        s_next = list(s)
        for i in moving:
            s_next[i] = self.time.advance(self.activations[i], s[i], drives[i], self._is_output(i))
        return tuple(s_next)

    def hold(self, x: Tensor) -> Held:
        x = self.input_activation(x)
        held: Held = {}
        for synapse, (pre, post) in zip(self.synapses, self.edges, strict=True):
            if pre is None:
                _add(held, post, synapse.drives(x, None)[1])
        return held

    def _rates(self, s: State) -> State:
        """Return what the neurons transmit."""
        return tuple(self.time.rate(sigma, v) for sigma, v in zip(self.activations, s, strict=True))

    def _is_output(self, i: int) -> bool:
        return i == len(self.layers) - 1

    def _drives(self, rates: State, held: Held, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the whole drive on each of these layers."""
        total = {i: held[i] for i in layers if i in held}
        for synapse, (pre, post) in zip(self.synapses, self.edges, strict=True):
            if pre is None or not (pre in layers or post in layers):
                continue
            back = rates[post] if pre in layers else None  # no drive on a layer that stays
            on_pre, on_post = synapse.drives(rates[pre], back)
            _add(total, post, on_post)
            if on_pre is not None:
                _add(total, pre, on_pre)
        return total

    def _joined(
        self, x: Tensor, s: State
    ) -> Iterator[tuple[str, Synapses, Tensor, Tensor, int | None, int]]:
        """Yield (name, synapse, rates of pre, rates of post, number of pre, number of post)."""
        x, rates = self.input_activation(x), self._rates(s)
        for k, (synapse, (pre, post)) in enumerate(zip(self.synapses, self.edges, strict=True)):
            yield f"synapses.{k}", synapse, x if pre is None else rates[pre], rates[post], pre, post

    def phi(self, x: Tensor, s: State) -> Tensor:
        """Return Φ(x, s, θ), one value per sample (Eqs. model-ep-phi, cep-realtime-phi).

        Synapses must be tied. Every synapse has the factor ε, also those from the input, where the
        paper prints none.
        """
        phi = sum(self.time.leak(layer.flatten(len(self.ensemble) + 1)) for layer in s)
        for _, synapse, pre, post, _, _ in self._joined(x, s):
            phi = phi + self.time.epsilon * synapse.phi(pre, post)
        return torch.as_tensor(phi)

    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        summed: Gradients = {}
        for name, synapse, pre, post, _, _ in self._joined(x, s):
            for field, gradient in synapse.phi_gradient(pre, post).items():
                summed[f"{name}.{field}"] = self.time.epsilon * gradient
        return mean_over_batch(summed, self.batch(x))

    def vector_field_gradient(
        self, x: Tensor, s: State, ds: State, update_slope: str = UpdateSlope.NONE
    ) -> Gradients:
        self.check_update_slope(update_slope)
        driven = self._pulled_back(x, s, ds, update_slope)
        summed: Gradients = {}
        for name, synapse, pre, post, i, j in self._joined(x, s):
            d_pre, d_post = None if i is None else driven[i], driven[j]
            if update_slope == UpdateSlope.OWN:
                on_pre, on_post = synapse.drives(pre, None if i is None else post)
                d_post = d_post * self.activations[j].slope(on_post)
                if i is not None and d_pre is not None and on_pre is not None:
                    d_pre = d_pre * self.activations[i].slope(on_pre)
            for field, gradient in synapse.vector_field_gradient(pre, post, d_pre, d_post).items():
                summed[f"{name}.{field}"] = gradient
        return mean_over_batch(summed, self.batch(x))

    def _pulled_back(self, x: Tensor, s: State, ds: State, update_slope: str) -> State:
        """Pull ds back to the drive of each layer. With slope "own" the caller adds σ′."""
        if update_slope == UpdateSlope.FULL:
            drives = self._drives(self._rates(s), self.hold(x), range(len(s)))
            return tuple(
                self.time.epsilon * sigma.slope(drives[i]) * ds[i]
                for i, sigma in enumerate(self.activations)
            )
        return tuple(
            self.time.gain(sigma, s[i], self._is_output(i)) * ds[i]
            for i, sigma in enumerate(self.activations)
        )

    def parameter_groups(self) -> tuple[tuple[str, ...], ...]:
        """Return the parameter names per synapse, input to output, then those of the read-out."""
        groups = [
            tuple(f"synapses.{k}.{field}" for field, _ in synapse.named_parameters())
            for k, synapse in enumerate(self.synapses)
        ]
        own = tuple(f"readout.{field}" for field, _ in self.readout.named_parameters())
        return (*groups, own) if own else tuple(groups)

    def check_holomorphic(self) -> None:
        if isinstance(self.time, Discrete) and self.time.relaxation != 1:
            raise ValueError(
                "Holomorphic needs analytic functions, but relaxation holds neurons within bounds: "
                "use Centred, or relaxation 1"
            )
        for name, sigma in zip(self.layer_names, self.activations, strict=True):
            if not sigma.holomorphic:
                raise ValueError(
                    f"Holomorphic needs analytic activations: {sigma.name!r} of layer {name!r} is "
                    "not known to be one; use Centred, or Activation(..., holomorphic=True)"
                )
        for part in (*self.synapses, self.readout):
            if not part.holomorphic:
                raise ValueError(f"Holomorphic needs analytic functions, but {part} is not one")

    def check_nudged(self, layer: int) -> None:
        sigma, output = self.activations[layer], self._is_output(layer)
        if isinstance(self.time, Discrete) and self.time.bounds(sigma, output) is not None:
            raise ValueError(
                f"relaxation holds layer {self.layer_names[layer]!r} within bounds, but the "
                "read-out nudges it: nudge the last layer alone, or use relaxation 1"
            )

    def check_update_slope(self, update_slope: str) -> None:
        if update_slope != UpdateSlope.NONE and not isinstance(self.time, Discrete):
            raise ValueError(
                f"update_slope '{update_slope}' needs discrete time: in real time the slope of "
                "RealTime says where σ′ stands; leave it at 'none'"
            )

    def saturation(self, s: State, margin: float) -> dict[str, Tensor]:
        """Return the share of saturated neurons per layer, {layer: [*ensemble]}.

        A neuron is saturated if σ is closer to a bound than `margin` times the width of its range.
        The share is 0 for an activation without bounds.
        """
        shares = {}
        for name, sigma, layer in zip(self.layer_names, self.activations, s, strict=True):
            value = layer if isinstance(self.time, Discrete) else sigma(layer)
            low, high = sigma.bounds or (-torch.inf, torch.inf)
            edge = margin * (high - low) if sigma.bounds else 0.0
            at_bound = (value < low + edge) | (value > high - edge)
            shares[name] = at_bound.double().flatten(len(self.ensemble)).mean(-1)
        return shares

    def is_chain(self) -> bool:
        """Return whether the network is a chain: flat layers, each joined to the next by `Dense`
        synapses, the input to the first layer.
        """
        flat = all(len(shape) == 1 for shape in (self.input.shape, *self.layer_shapes))
        dense = all(type(synapse) is Dense for synapse in self.synapses)  # no subclass
        in_a_row = list(self.edges) == [(None, 0), *pairwise(range(len(self.layers)))]
        return flat and dense and in_a_row

    def split(self) -> tuple[tuple[int, ...], ...]:
        """Return groups of layers with no synapse inside a group; the first has the first layer.

        A chain has two groups, the odd and the even depths.
        """
        for i, name in enumerate(self.layer_names):
            if (i, i) in self.edges:
                raise ValueError(
                    f"in_turn: layer {name!r} feeds itself, so its neurons cannot move one after "
                    "another as a layer; update the layers synchronously"
                )
        joined = [(pre, post) for pre, post in self.edges if pre is not None]
        return colours(len(self.layers), joined)

    def member(self, *index: int) -> Network:
        """Return one member of the ensemble as a single network with its own copy of θ."""
        inside = all(-n <= i < n for i, n in zip(index, self.ensemble, strict=False))
        if len(index) != len(self.ensemble) or not inside:
            raise ValueError(f"member {list(index)} is not in the ensemble {list(self.ensemble)}")
        flat = torch.arange(math.prod(self.ensemble)).reshape(self.ensemble)[index]
        return self._select(lambda p: p[index], (), (self.seeds[int(flat)],))

    def members(self, indices: Sequence[int]) -> Network:
        """Return some members of an ensemble with one axis as a new ensemble."""
        if len(self.ensemble) != 1:
            raise ValueError(f"members needs an ensemble with one axis, not {self.ensemble}")
        chosen = list(indices)
        if not all(0 <= i < self.ensemble[0] for i in chosen):
            raise ValueError(f"members {chosen} are not all in the ensemble {list(self.ensemble)}")
        seeds = tuple(self.seeds[i] for i in chosen)
        return self._select(lambda p: p[chosen], (len(chosen),), seeds)

    def _select(
        self,
        take: Callable[[Tensor], Tensor],
        ensemble: tuple[int, ...],
        seeds: tuple[int, ...],
    ) -> Network:
        chosen = copy.deepcopy(self)
        chosen.ensemble, chosen.seeds = ensemble, seeds
        for part in (*chosen.synapses, chosen.readout):
            part.ensemble = ensemble  # type: ignore[assignment]
            for field, parameter in list(part.named_parameters()):
                own = nn.Parameter(take(parameter).clone(), requires_grad=False)
                setattr(part, field, own)
        return chosen

    def extra_repr(self) -> str:
        chain = " → ".join(
            f"{name} {'×'.join(map(str, shape))}"
            for name, shape in zip(
                (INPUT, *self.layer_names), (self.input.shape, *self.layer_shapes), strict=True
            )
        )
        return f"{chain}; {self.time}; ensemble={self.ensemble}"


def _add(total: dict[int, Tensor], layer: int, drive: Tensor) -> None:
    total[layer] = total[layer] + drive if layer in total else drive


def layered(
    *sizes: int,
    tied: bool = True,
    time: Timesteps = Discrete(),  # noqa: B008 (frozen)
    activation: str | Activation | Elementwise = "sigmoid",
    bias: bool = True,
    init: str | Init = "glorot",
    angle: float | Sequence[float] = 0.0,
    ensemble: int | Sequence[int] = (),
    seed: int | Sequence[int] = 0,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """Return the paper's network: a chain of dense layers.

    In real time the input transmits σ(x), as in the paper. Member i of an ensemble is exactly the
    network of seed `seed + i`.

    Args:
        sizes: numbers of neurons from input to output, two or more.
        tied: whether both directions share one weight (default True; EP, C-EP). If not, each
            synapse has a separate backward weight (VF, C-VF).
        time: `Discrete()` (default), `Discrete(relaxation)`, or `RealTime(dt)`.
        activation: σ of every layer: "sigmoid" (default), "tanh", "hard_sigmoid", "identity", an
            `Activation`, or any elementwise function.
        bias: whether neurons have a bias. Default True.
        init: distribution of the weights: "glorot" (default; the paper's text), "fan_in" (its
            code), or a function (shape, fan_in, fan_out, generator) -> tensor.
        angle: initial angle Ψ in degrees between forward and backward weights, 0 to 180, untied
            only; a number, or one per member. Default 0.
        ensemble: number of networks, or a shape. Default (): one network, without an ensemble axis.
        seed: seed of the first member, or one per member. Default 0.
        dtype: type of the parameters. Default float32.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes must have at least an input and an output, not {sizes}")
    hidden = len(sizes) - 2
    names = ["hidden"] if hidden == 1 else [f"hidden{i + 1}" for i in range(hidden)]
    chain = [INPUT, *names, "output"]
    transmits = activation if isinstance(time, RealTime) else IDENTITY
    if tied and angle != 0.0:
        raise ValueError("angle needs untied weights: pass tied=False")
    return Network(
        [
            Input(sizes[0], transmits),
            *(Layer(n, size, activation) for n, size in zip(chain[1:], sizes[1:], strict=True)),
        ],
        [
            Dense(pre, post, tied=tied, bias=bias, init=init, angle=0.0 if pre == INPUT else angle)
            for pre, post in pairwise(chain)
        ],
        time=time,
        ensemble=ensemble,
        seed=seed,
        dtype=dtype,
    )
