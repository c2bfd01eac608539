"""Networks: layers of neurons joined by synapses, in discrete or real time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from eqprop.activations import IDENTITY, Activation, Elementwise, as_activation
from eqprop.model import Gradients, Held, Model, State, check_ensemble, mean_over_batch
from eqprop.seeds import member_seeds
from eqprop.synapses import INPUT, Dense, Init, Synapses
from eqprop.timesteps import Discrete, RealTime, Timesteps
from eqprop.update_slope import UpdateSlope


@dataclass(frozen=True)
class Input:
    """The static input x.

    Args:
        size: how many numbers x has per sample.
        activation: what it transmits is this function of x. Default: x itself. In real time the
            paper transmits σ(x).
    """

    size: int
    activation: Activation | str | Elementwise = IDENTITY

    def __post_init__(self) -> None:
        _check_size(INPUT, self.size)
        as_activation(self.activation)


@dataclass(frozen=True)
class Layer:
    """Neurons that share an activation. The last layer of a network is its output.

    Args:
        name: what synapses call it; not "input".
        size: how many neurons it has.
        activation: σ: "sigmoid" (default), "tanh", "hard_sigmoid", "identity", an `Activation`, or
            any elementwise function.
    """

    name: str
    size: int
    activation: Activation | str | Elementwise = "sigmoid"

    def __post_init__(self) -> None:
        if not self.name or self.name == INPUT:
            raise ValueError(f"layer name {self.name!r} is reserved or empty")
        _check_size(self.name, self.size)
        as_activation(self.activation)


def _check_size(name: str, size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"layer {name!r}: size must be a positive integer, not {size!r}")


class Network(Model):
    """The transition function F(x, s, θ) of any topology of layers and synapses.

    A `torch.nn.Module`. Every parameter is [*ensemble, ...], every state [*ensemble, batch, n].

    Args:
        layers: the `Input`, then one `Layer` or more; the last is the output.
        synapses: `Dense(...)` and others, which name the layers that they join.
        time: `Discrete()` (default), or `RealTime(dt)`.
        ensemble: how many networks it holds, as a number or a shape. Default (): one, without an
            ensemble axis.
        seed: of the initial weights and of the signs of β. Member i has seed + i; or one per
            member. Default 0.
        dtype: of the parameters. Default float32.
    """

    synapses: Sequence[Synapses]

    def __init__(
        self,
        layers: Sequence[Input | Layer],
        synapses: Sequence[Synapses],
        *,
        time: Timesteps = Discrete(),  # noqa: B008 (frozen)
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
        self.layer_sizes = tuple(layer.size for layer in self.layers)
        self.input_size = self.input.size
        self.nudge_scale = time.epsilon
        self.input_activation = as_activation(self.input.activation)
        self.activations = tuple(as_activation(layer.activation) for layer in self.layers)
        self._ends = self._connect(synapses, dtype)
        self.synapses = nn.ModuleList(synapses)  # type: ignore[assignment]

    def _connect(
        self, synapses: Sequence[Synapses], dtype: torch.dtype
    ) -> tuple[tuple[int | None, int], ...]:
        """Build the synapses; return the layers (pre, post) of each, None for the input."""
        index = {name: i for i, name in enumerate(self.layer_names)}
        if len(index) != len(self.layers):
            raise ValueError(f"layer names must differ: {', '.join(self.layer_names)}")
        sizes = {INPUT: self.input.size, **{layer.name: layer.size for layer in self.layers}}
        ends: list[tuple[int | None, int]] = []
        for k, synapse in enumerate(synapses):
            if not isinstance(synapse, Synapses):
                raise ValueError(f"synapses must be Dense(...), not {type(synapse).__name__}")
            for end in (synapse.pre, synapse.post):
                if end not in sizes:
                    raise ValueError(
                        f"synapse {synapse.name}: no layer {end!r} among {', '.join(sizes)}"
                    )
            ends.append((index.get(synapse.pre), index[synapse.post]))
            synapse.build(
                (sizes[synapse.pre], sizes[synapse.post]),
                self.ensemble,
                self.seeds,
                f"synapse {k}",
                dtype,
            )
        for i, name in enumerate(self.layer_names):
            if not any(i in end for end in ends):
                raise ValueError(f"layer {name!r} has no synapses")
        return tuple(ends)

    @property
    def dtype(self) -> torch.dtype:
        return self.synapses[0].weight.dtype

    @property
    def tied(self) -> bool:
        """Whether one weight serves both directions, everywhere but from the input."""
        return all(s.tied for s in self.synapses if not s.from_input)

    def forward(
        self, x: Tensor, s: State, layers: Sequence[int] | None = None, held: Held | None = None
    ) -> State:
        rates = self._rates(s)
        held = self.hold(x) if held is None else held
        s_next = list(s)
        for i in range(len(s)) if layers is None else layers:
            s_next[i] = self.time.advance(
                self.activations[i], s[i], self._drive(i, rates, held), self._is_output(i)
            )
        return tuple(s_next)

    def hold(self, x: Tensor) -> Held:
        x = self.input_activation(x)
        held: Held = {}
        for synapse, (pre, post) in zip(self.synapses, self._ends, strict=True):
            if pre is None:
                drive = synapse.forward_drive(x)
                held[post] = held[post] + drive if post in held else drive
        return held

    def _rates(self, s: State) -> State:
        """What the neurons transmit."""
        return tuple(self.time.rate(sigma, v) for sigma, v in zip(self.activations, s, strict=True))

    def _is_output(self, i: int) -> bool:
        return i == len(self.layers) - 1

    def _drive(self, i: int, rates: State, held: Held) -> Tensor:
        terms = [held[i]] if i in held else []
        for synapse, (pre, post) in zip(self.synapses, self._ends, strict=True):
            if post == i and pre is not None:
                terms.append(synapse.forward_drive(rates[pre]))
            elif pre == i:
                terms.append(synapse.backward_drive(rates[post]))
        return sum(terms[1:], start=terms[0])

    def _joined(
        self, x: Tensor, s: State
    ) -> Iterator[tuple[str, Synapses, Tensor, Tensor, int | None, int]]:
        """Each synapse by name, with what its two ends transmit and which layers they are."""
        x, rates = self.input_activation(x), self._rates(s)
        for k, (synapse, (pre, post)) in enumerate(zip(self.synapses, self._ends, strict=True)):
            yield f"synapses.{k}", synapse, x if pre is None else rates[pre], rates[post], pre, post

    def phi(self, x: Tensor, s: State) -> Tensor:
        """Φ(x, s, θ), a value a sample (Eqs. model-ep-phi, cep-realtime-phi). Tied synapses only.

        Every synapse carries the factor ε, the input's too: the paper prints that one without.
        """
        phi = sum(self.time.leak(layer) for layer in s)
        for _, synapse, pre, post, _, _ in self._joined(x, s):
            phi = phi + self.time.epsilon * synapse.phi(pre, post)
        return torch.as_tensor(phi)

    def phi_gradient(self, x: Tensor, s: State) -> Gradients:
        summed: Gradients = {}
        for name, synapse, pre, post, _, _ in self._joined(x, s):
            for field, gradient in synapse.phi_gradient(pre, post).items():
                summed[f"{name}.{field}"] = self.time.epsilon * gradient
        return mean_over_batch(summed, s[-1].shape[-2])

    def vector_field_gradient(
        self, x: Tensor, s: State, ds: State, update_slope: str = UpdateSlope.NONE
    ) -> Gradients:
        self.check_update_slope(update_slope)
        driven = self._pulled_back(x, s, ds, update_slope)
        summed: Gradients = {}
        for name, synapse, pre, post, i, j in self._joined(x, s):
            d_pre, d_post = None if i is None else driven[i], driven[j]
            if update_slope == UpdateSlope.OWN:
                d_post = d_post * self.activations[j].slope(synapse.forward_drive(pre))
                if i is not None and d_pre is not None and i != j:
                    d_pre = d_pre * self.activations[i].slope(synapse.backward_drive(post))
            for field, gradient in synapse.vector_field_gradient(pre, post, d_pre, d_post).items():
                summed[f"{name}.{field}"] = gradient
        return mean_over_batch(summed, s[-1].shape[-2])

    def _pulled_back(self, x: Tensor, s: State, ds: State, update_slope: str) -> State:
        """ds pulled back to the drive of each layer; a synapse's own σ′ is left to the synapse."""
        if update_slope == UpdateSlope.FULL:
            rates, held = self._rates(s), self.hold(x)
            return tuple(
                sigma.slope(self._drive(i, rates, held)) * ds[i]
                for i, sigma in enumerate(self.activations)
            )
        return tuple(
            self.time.gain(sigma, s[i], self._is_output(i)) * ds[i]
            for i, sigma in enumerate(self.activations)
        )

    def check_update_slope(self, update_slope: str) -> None:
        if update_slope != UpdateSlope.NONE and not isinstance(self.time, Discrete):
            raise ValueError(
                f"update_slope '{update_slope}' needs discrete time: in real time the slope of "
                "RealTime says where σ′ stands; leave it at 'none'"
            )

    def saturation(self, s: State, margin: float) -> dict[str, Tensor]:
        """The share of each layer's neurons, [*ensemble], whose σ is within `margin` of the width
        of its range from a bound. Zero for an activation without bounds.
        """
        shares = {}
        for name, sigma, layer in zip(self.layer_names, self.activations, s, strict=True):
            value = layer if isinstance(self.time, Discrete) else sigma(layer)
            low, high = sigma.bounds or (-torch.inf, torch.inf)
            edge = margin * (high - low) if sigma.bounds else 0.0
            at_bound = (value < low + edge) | (value > high - edge)
            shares[name] = at_bound.double().mean((-2, -1))
        return shares

    def is_chain(self) -> bool:
        """Whether dense synapses join the input to the first layer, and each layer to the next."""
        chain = [(None, 0), *pairwise(range(len(self.layers)))]
        return list(self._ends) == chain and all(isinstance(s, Dense) for s in self.synapses)

    def split(self) -> tuple[tuple[int, ...], ...]:
        """Two groups of layers with no synapse inside a group: odd depths, then even ones."""
        group: dict[int, int] = {}
        for start in range(len(self.layers)):
            frontier = [] if start in group else [start]
            group.setdefault(start, 0)
            while frontier:
                i = frontier.pop()
                for synapse, (pre, post) in zip(self.synapses, self._ends, strict=True):
                    if pre is None or i not in (pre, post):
                        continue
                    neighbour = post if i == pre else pre
                    if neighbour not in group:
                        group[neighbour] = 1 - group[i]
                        frontier.append(neighbour)
                    elif group[neighbour] == group[i]:
                        raise ValueError(
                            "in_turn: the layers do not split in two groups that see only each "
                            f"other, because of synapse {synapse.name}; update them synchronously"
                        )
        return tuple(tuple(sorted(i for i in group if group[i] == g)) for g in (0, 1))

    def member(self, *index: int) -> Network:
        """One member of the ensemble as a network of its own, with its own copy of θ."""
        inside = all(-n <= i < n for i, n in zip(index, self.ensemble, strict=False))
        if len(index) != len(self.ensemble) or not inside:
            raise ValueError(f"member {list(index)} is not in the ensemble {list(self.ensemble)}")
        flat = torch.arange(math.prod(self.ensemble)).reshape(self.ensemble)[index]
        return self._select(lambda p: p[index], (), (self.seeds[int(flat)],))

    def members(self, indices: Sequence[int]) -> Network:
        """Some members of an ensemble with one axis, as an ensemble of their own."""
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
        for synapse in chosen.synapses:
            for field, parameter in list(synapse.named_parameters()):
                own = nn.Parameter(take(parameter).clone(), requires_grad=False)
                setattr(synapse, field, own)
        return chosen

    def extra_repr(self) -> str:
        chain = " → ".join(
            f"{name} {n}"
            for name, n in zip(
                (INPUT, *self.layer_names), (self.input.size, *self.layer_sizes), strict=True
            )
        )
        return f"{chain}; {self.time}; ensemble={self.ensemble}"


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

    In real time the input transmits σ(x), as the paper writes it. Member i of an ensemble is
    exactly the network of seed `seed + i`.

    Args:
        sizes: numbers of neurons from input to output, two or more.
        tied: one weight for both directions (default True; EP, C-EP), or a backward weight of its
            own for each synapse (VF, C-VF).
        time: `Discrete()` (default), or `RealTime(dt)`.
        activation: σ of every layer: "sigmoid" (default), "tanh", "hard_sigmoid", "identity", an
            `Activation`, or any elementwise function.
        bias: whether neurons have one. Default True.
        init: how weights are drawn: "glorot" (default; the paper's text), "fan_in" (its code), or
            a function (shape, fan_in, fan_out, generator) -> tensor.
        angle: the initial Ψ in degrees between forward and backward weights, 0 to 180, untied
            only; a number, or one per member. Default 0.
        ensemble: how many networks, as a number or a shape. Default (): one, without that axis.
        seed: of the first member, or one per member. Default 0.
        dtype: of the parameters. Default float32.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes must name an input and an output at least, not {sizes}")
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
