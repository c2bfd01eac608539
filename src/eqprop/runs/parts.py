"""The parts of a recipe: each is a small table that builds the object it describes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta
from torch.optim.lr_scheduler import CosineAnnealingLR

from eqprop.activations import ACTIVATIONS, IDENTITY
from eqprop.augmentation import Augmentation
from eqprop.initial import INITS, Init, scaled
from eqprop.network import Input, Layer, Network
from eqprop.nudging import Centred, Holomorphic, Nudging, OneSided, RandomSign
from eqprop.readouts import CrossEntropy, OutputLayer
from eqprop.rules import BPTT, EP, RBP, VF, ContinualEP, ContinualVF, Rule
from eqprop.splits import Dataset, Normalisation
from eqprop.synapses import INPUT, Conv2d, Dense, Synapses
from eqprop.timesteps import Discrete, RealTime, Timesteps
from eqprop.types import Shape
from eqprop.update_slope import UpdateSlope
from eqprop.updates import SGD, Update

RULES: dict[str, type[Rule]] = {
    "ep": EP,
    "continual-ep": ContinualEP,
    "vf": VF,
    "continual-vf": ContinualVF,
    "bptt": BPTT,
    "rbp": RBP,
}
NUDGINGS: dict[str, type[Nudging]] = {
    "one-sided": OneSided,
    "random-sign": RandomSign,
    "centred": Centred,
    "holomorphic": Holomorphic,
}
TIMES = ("discrete", "real-time")
READOUTS = ("output-layer", "cross-entropy")
SCHEDULES = ("cosine",)

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Swept = float | Annotated[tuple[float, ...], Meta(min_length=1)]  # one value, or one per setting


@dataclass(frozen=True)
class Member:
    """The values that may differ between the networks of one ensemble."""

    seed: int
    beta: float | None
    angle: float
    learning_rates: tuple[float, ...]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a recipe."""

    def require(self, field: str, choices: Collection[str]) -> None:
        """Raise unless a field has one of these values."""
        value = getattr(self, field)
        if value not in choices:
            raise ValueError(f"{field} {value!r} is unknown: choose one of {', '.join(choices)}")

    def refuse(self, field: str, unused: Mapping[str, Collection[str]]) -> None:
        """Raise if fields are set that the chosen value of `field` does not use.

        `unused` maps each value of `field` to the fields that it does not use.
        """
        chosen = getattr(self, field)
        default = {it.name: it.default for it in msgspec.structs.fields(self)}
        given = [name for name in default if getattr(self, name) != default[name]]
        idle = [name for name in given if name in unused[chosen]]
        if idle:
            neutral = ", ".join(f"{name}={default[name]}".lower() for name in idle)
            users = [value for value, names in unused.items() if not {*idle} & {*names}]
            raise ValueError(
                f"{field} {chosen} does not use {', '.join(idle)}: "
                f"go without ({neutral}), or choose {field} {' or '.join(users)}"
            )


class SkipPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A second convolution to a layer, from `back` layers before it. It has no bias."""

    back: Annotated[int, Meta(ge=2)]
    kernel: Positive
    stride: Positive = 1
    padding: NotNegative = 0
    pool: Positive = 1


class ConvPart(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A convolutional layer with `conv` channels, and its incoming synapses."""

    conv: Positive
    kernel: Positive
    stride: Positive = 1
    padding: NotNegative = 0
    pool: Positive = 1
    skip: SkipPart | None = None

    def join(
        self, before: Sequence[tuple[str, Shape]], name: str, how: Callable[[str], dict[str, Any]]
    ) -> tuple[list[Synapses], Shape]:
        """Return the synapses to this layer, and its shape.

        Args:
            before: name and shape of the input and of each layer before, input first.
            name: name of this layer.
            how: further arguments of the synapses, by the name of the layer that they come from.
        """
        pre, shape = before[-1]
        if len(shape) != 3:
            raise ValueError(
                f"layers: a convolution needs (channels, height, width) before it, not {shape}: "
                "give the shape of the input, input = [1, 28, 28]"
            )
        main = _convolution(self, pre, name, how(pre))
        here = (self.conv, *main.pooled(shape))
        if min(here) < 1:
            raise ValueError(
                f"layers: {name} has no room: from {shape[1:]} its kernel, stride and padding make "
                f"{main.convolved(shape)}, and pool {here[1:]}: choose smaller ones"
            )
        if self.skip is None:
            return [main], here
        if self.skip.back > len(before):
            raise ValueError(
                f"layers: the skip to {name} comes from {self.skip.back} layers back, but the "
                f"input is {len(before)} back: choose a nearer layer, or leave the skip out"
            )
        pre, shape = before[-self.skip.back]
        skip = _convolution(self.skip, pre, name, how(pre) | {"bias": False})
        if skip.pooled(shape) != here[1:]:
            raise ValueError(
                f"layers: the skip from {pre} to {name} makes {skip.pooled(shape)}, but the layer "
                f"is {here[1:]}: change kernel, stride, padding or pool of the skip"
            )
        return [main, skip], here


def _convolution(part: ConvPart | SkipPart, pre: str, post: str, how: dict[str, Any]) -> Conv2d:
    return Conv2d(
        pre, post, part.kernel, stride=part.stride, padding=part.padding, pool=part.pool, **how
    )


class NetworkPart(Part, frozen=True, kw_only=True):
    """Layers from input to output. A number is a dense layer. Without `input`, the first number is
    the number of inputs.

    The last number is the number of classes. It is a layer of neurons, or with cross-entropy a
    softmax outside the dynamics.
    """

    input: Annotated[tuple[Positive, ...], Meta(min_length=1)] | None = None
    layers: Annotated[tuple[Positive | ConvPart, ...], Meta(min_length=1)]
    tied: bool
    time: str = "discrete"
    relaxation: float = 1.0
    dt: float = 0.08
    slope: str = "all"
    activation: str = "sigmoid"
    output_activation: str | None = None
    bias: bool = True
    init: str = "fan_in"
    gains: tuple[float, ...] | None = None
    angle: Swept = 0.0
    shared_update: bool = False
    readout: str = "output-layer"

    def __post_init__(self) -> None:
        self.require("time", TIMES)
        self.require("activation", ACTIVATIONS)
        if self.output_activation is not None:
            self.require("output_activation", ACTIVATIONS)
        self.require("init", INITS)
        self.require("readout", READOUTS)
        if self.gains is not None and len(self.gains) != len(self.after_input):
            raise ValueError(
                f"gains must hold {len(self.after_input)} numbers, one per learning rate, not "
                f"{len(self.gains)}"
            )
        RealTime(self.dt, self.slope)  # checks both
        Discrete(self.relaxation)
        self.refuse("time", {"discrete": ("dt", "slope"), "real-time": ("relaxation",)})
        if self.input is None and not isinstance(self.layers[0], int):
            raise ValueError("layers must start with a number, or input = [1, 28, 28] give a shape")
        if not isinstance(self.layers[-1], int):
            raise ValueError("layers must end with a number, the classes")
        if len(self.after_input) < 1 + self.softmax:
            hidden = ", a hidden layer" if self.softmax else ""
            raise ValueError(
                f"layers must name an input{hidden} and an output, not {list(self.layers)}"
            )
        if self.tied and self.angle != 0.0:
            raise ValueError("angle needs untied weights: set tied=false")
        if self.tied and self.shared_update:
            raise ValueError("shared_update needs untied weights: set tied=false")

    @property
    def discrete(self) -> bool:
        return self.time == "discrete"

    @property
    def softmax(self) -> bool:
        """Whether the output is a softmax outside the dynamics."""
        return self.readout == "cross-entropy"

    @property
    def input_shape(self) -> Shape:
        return self.input or (self._number(0),)

    @property
    def after_input(self) -> tuple[int | ConvPart, ...]:
        """The layers after the input, one per learning rate."""
        return self.layers if self.input else self.layers[1:]

    @property
    def leads_to(self) -> list[int]:
        """Of each synapse, then of a softmax, the number of its layer in `after_input`."""
        return [
            k
            for k, it in enumerate(self.after_input)
            for _ in range(1 if isinstance(it, int) or it.skip is None else 2)
        ]

    @property
    def classes(self) -> int:
        return self._number(-1)

    def _number(self, index: int) -> int:
        number = self.layers[index]
        assert isinstance(number, int)
        return number

    @property
    def size(self) -> int:
        """Number of parameters per network."""
        layers, synapses = self._graph((0.0,))
        shapes = {INPUT: self.input_shape} | {layer.name: layer.shape for layer in layers}
        own = math.prod(layers[-1].shape) * self.classes if self.softmax else 0
        return own + sum(it.size(shapes[it.pre], shapes[it.post]) for it in synapses)

    @property
    def smallest(self) -> NetworkPart:
        """The same with at most two neurons or channels per layer. If it is valid, so is this."""
        layers = tuple(
            min(it, 2) if isinstance(it, int) else msgspec.structs.replace(it, conv=min(it.conv, 2))
            for it in self.layers
        )
        first = self.input and (min(self.input[0], 2), *self.input[1:])
        return msgspec.structs.replace(self, layers=layers, input=first)

    def _graph(self, angles: Sequence[float]) -> tuple[list[Layer], list[Synapses]]:
        """Return the layers of neurons, and the synapses, ordered by the layer they lead to."""
        inner = self.after_input[: len(self.after_input) - self.softmax]
        hidden = len(inner) - (not self.softmax)
        names = ["hidden"] if hidden == 1 else [f"hidden{i + 1}" for i in range(hidden)]
        names += [] if self.softmax else ["output"]
        before: list[tuple[str, Shape]] = [(INPUT, self.input_shape)]
        synapses: list[Synapses] = []
        for k, (name, it) in enumerate(zip(names, inner, strict=True)):
            how = partial(self._how, angles, self._init(k))
            if isinstance(it, int):
                pre, _ = before[-1]
                synapses.append(Dense(pre, name, **how(pre)))
                before.append((name, (it,)))
            else:
                joined, shape = it.join(before, name, how)
                synapses += joined
                before.append((name, shape))
        return [Layer(*it) for it in before[1:]], synapses

    def _how(self, angles: Sequence[float], init: Init, pre: str) -> dict[str, Any]:
        """Return the arguments that all kinds of synapses from layer `pre` share."""
        how: dict[str, Any] = {"tied": self.tied, "bias": self.bias, "init": init}
        if not (self.tied or pre == INPUT):
            how |= {"angle": list(angles), "shared_update": self.shared_update}
        return how

    def _init(self, k: int) -> Init:
        """Return the initialisation of the weights that lead to layer k after the input."""
        init = INITS[self.init]
        return init if self.gains is None else scaled(init, self.gains[k])

    def build(self, members: Sequence[Member], dtype: torch.dtype = torch.float32) -> Network:
        """Return the networks of these members as one ensemble [E]."""
        layers, synapses = self._graph([member.angle for member in members])
        sigma = ACTIVATIONS[self.activation]
        if self.output_activation is not None:
            layers[-1] = replace(layers[-1], activation=self.output_activation)
        time: Timesteps = (
            Discrete(self.relaxation) if self.discrete else RealTime(self.dt, self.slope)
        )
        softmax = partial(CrossEntropy, self.classes, bias=self.bias, init=self._init(-1))
        return Network(
            [Input(self.input_shape, IDENTITY if self.discrete else sigma), *layers],
            synapses,
            time=time,
            activation=sigma,
            readout=softmax() if self.softmax else OutputLayer(),
            ensemble=(len(members),),
            seed=[member.seed for member in members],
            dtype=dtype,
        )


class RulePart(Part, frozen=True, kw_only=True):
    """A learning rule. `nudged_steps` is K; for bptt and rbp, the number of backward steps."""

    name: str
    free_steps: int
    nudged_steps: int
    tolerance: float | None = None
    in_turn: bool = False
    nudged_in_turn: bool = False
    rescale: float | None = None
    update_slope: str = "none"

    def __post_init__(self) -> None:
        self.require("name", RULES)
        self.require("update_slope", tuple(UpdateSlope))
        optional = ("tolerance", "in_turn", "nudged_in_turn", "rescale", "update_slope")
        self.refuse("name", {it: {*optional} - _fields(kind) for it, kind in RULES.items()})

    @property
    def nudged(self) -> bool:
        """Whether it has a nudged phase."""
        return "nudging" in _fields(RULES[self.name])

    def build(self, nudging: Nudging | None) -> Rule:
        given = {
            "free_steps": self.free_steps,
            "nudged_steps": self.nudged_steps,
            "backward_steps": self.nudged_steps,
            "tolerance": self.tolerance,
            "in_turn": self.in_turn,
            "nudged_in_turn": self.nudged_in_turn,
            "rescale": self.rescale,
            "update_slope": self.update_slope,
            "nudging": nudging,
        }
        kind: Any = RULES[self.name]
        rule: Rule = kind(**{key: given[key] for key in given.keys() & _fields(kind)})
        return rule

    def gradient(self) -> BPTT:
        """Return BPTT with the same T and K, to compare the rule with."""
        return BPTT(free_steps=self.free_steps, backward_steps=self.nudged_steps)


class NudgingPart(Part, frozen=True, kw_only=True):
    """Nudging of the second phase. `points` is N of holomorphic nudging."""

    kind: str = "one-sided"
    beta: Swept
    points: int | None = None

    def __post_init__(self) -> None:
        self.require("kind", NUDGINGS)
        if 0 in (self.beta if isinstance(self.beta, tuple) else (self.beta,)):
            raise ValueError("beta must not be 0: there would be no second phase")
        self.refuse("kind", {it: {"points"} - _fields(kind) for it, kind in NUDGINGS.items()})

    def build(self, members: Sequence[Member]) -> Nudging:
        beta = torch.tensor([member.beta for member in members], dtype=torch.float64)
        given = {"beta": beta, "points": self.points}
        kind: Any = NUDGINGS[self.kind]
        nudging: Nudging = kind(**{key: given[key] for key in given.keys() & _fields(kind)})
        return nudging


class UpdatePart(Part, frozen=True, kw_only=True):
    """Update of the parameters. Learning rates of the layers after the input, input → output: one
    list, or one per setting.
    """

    learning_rates: Annotated[tuple[float | tuple[float, ...], ...], Meta(min_length=1)]
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: str | None = None
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.schedule is not None:
            self.require("schedule", SCHEDULES)
        if len({isinstance(it, tuple) for it in self.learning_rates}) > 1:
            raise ValueError("learning_rates must be a list of numbers, or of lists, not of both")
        self.build(epochs=1)  # checks the rest

    @property
    def settings(self) -> tuple[tuple[float, ...], ...]:
        """The learning rates of each setting."""
        lists = tuple(it for it in self.learning_rates if isinstance(it, tuple))
        return lists or (tuple(it for it in self.learning_rates if isinstance(it, float)),)

    def build(self, epochs: int) -> Update:
        """Return the update of a run. `epochs` is the length of its schedule."""
        cosine = None if self.schedule is None else partial(CosineAnnealingLR, T_max=epochs)
        return SGD(self.momentum, self.weight_decay, self.nesterov, cosine)


class DataPart(Part, frozen=True, kw_only=True):
    """A data set and its preparation.

    `train_samples` and `test_samples` choose the first samples. `normalise` gives each channel the
    mean 0 and the standard deviation `std`. `shift` and `flip` augment the training images: random
    shifts by up to `shift` pixels, and mirror images with probability 1/2. With `edge`, pixels that
    enter at the border repeat the edge. `validation` is the number of training samples to hold out,
    from the end. Each epoch is then measured on them instead of the test set.
    """

    name: str = "mnist"
    train_samples: Positive | None = None
    test_samples: Positive | None = None
    normalise: bool = False
    std: float = 1.0
    shift: NotNegative = 0
    flip: bool = False
    edge: bool = False
    validation: Positive | None = None

    def __post_init__(self) -> None:
        if not (self.std > 0 and math.isfinite(self.std)):
            raise ValueError(f"std must be above 0, not {self.std}")
        if self.std != 1 and not self.normalise:
            raise ValueError("std has no effect without normalise = true")
        if self.edge and not self.shift:
            raise ValueError("edge has no effect without shift")

    @property
    def augmentation(self) -> Augmentation:
        return Augmentation(self.shift, self.flip, self.edge)

    @property
    def measured(self) -> str:
        """Name of the split on which each epoch is measured."""
        return "validation" if self.validation else "test"

    def choose(self, data: Dataset) -> Dataset:
        """Return the chosen samples. Splits already held out or normalised do not change."""
        if data.validation is not None and self.validation is not None:
            if len(data.validation) == self.validation:
                return data
            raise ValueError(
                f"validation: {self.validation} asked for, but {data.name} holds out "
                f"{len(data.validation)} already: ask for as many, or give it whole"
            )
        train, test = self.train_samples or len(data.train), self.test_samples or len(data.test)
        for name, wanted, there in (("train", train, data.train), ("test", test, data.test)):
            if wanted > len(there):
                raise ValueError(
                    f"{name}_samples: {wanted} asked for, but {data.name} has {len(there)}"
                )
        chosen = replace(data, train=data.train.head(train), test=data.test.head(test))
        if self.validation is not None:
            if self.validation >= train:
                raise ValueError(
                    f"validation: {self.validation} of {train} training samples leave none to "
                    "train on: hold out fewer"
                )
            chosen = chosen.held_out(self.validation)
        if not self.normalise or chosen.train.normalisation:
            return chosen
        return chosen.normalised(Normalisation.of(chosen.train, self.std))


def _fields(kind: Any) -> set[str]:
    """Return the names of the fields of a dataclass."""
    return {field.name for field in fields(kind)}
