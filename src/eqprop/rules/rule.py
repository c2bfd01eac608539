"""The interface of learning rules: a rule computes gradients of a model, step by step.

Gradients point uphill on the loss. The paper's Δ is their negative, for neurons and synapses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import Relaxation, check_turns
from eqprop.model import Model
from eqprop.nudging import Beta, Nudging
from eqprop.readouts import OutputLayer, Readout
from eqprop.types import Gradients, State
from eqprop.update_slope import UpdateSlope

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """The gradients of a rule at time t.

    Args:
        neurons: −Δ_s(t) or ∇_s(t) per sample, one tensor [*ensemble, batch, *shape] per layer.
        synapses: −Δ_θ(t) or ∇_θ(t), {parameter name: tensor}, mean over the batch.
    """

    neurons: State
    synapses: Gradients


@dataclass(frozen=True)
class Trial:
    """One presentation of a minibatch: model, data, free phase, and the β of each nudged phase."""

    model: Model
    x: Tensor
    y: Tensor
    readout: Readout
    free: Relaxation
    betas: tuple[Beta, ...] = ()
    turns: tuple[Sequence[int] | None, ...] = (None,)  # which layers move at nudged step t: t mod n


class Stream(Iterator[T], Generic[T]):
    """An iterator over gradients with `free`, the free phase before them."""

    def __init__(self, free: Relaxation, items: Iterable[T]) -> None:
        self.free = free
        self._items = iter(items)

    def __next__(self) -> T:
        return next(self._items)


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A learning rule. It never writes parameters.

    The consumer of a continual rule's stream may move θ between two items: the rule reads θ again
    for each item.

    Args:
        free_steps: T, the number of steps of the free phase, from s = 0; a positive integer.
    """

    free_steps: int
    _documented: ClassVar[str | None]  # the docstring as written in the source

    def __init_subclass__(cls) -> None:
        """Add the inherited arguments to the docstring of a rule."""
        super().__init_subclass__()
        kinds = [kind for kind in reversed(cls.__mro__) if issubclass(kind, Rule)]
        parts = [cleandoc(vars(kind).get("_documented", kind.__doc__) or "") for kind in kinds]
        cls._documented = cls.__doc__
        explained = [part.partition("Args:\n")[2] for part in parts]
        own = parts[-1].partition("Args:\n")[0].rstrip()
        cls.__doc__ = "\n".join([own, "", "Args:", *(text for text in explained if text)])

    @property
    @abstractmethod
    def horizon(self) -> int:
        """K, the number of time-resolved gradients."""

    @property
    def tolerance(self) -> float | None:
        """The free phase ends early once the residual is at most this. None: it never does."""
        return None

    @property
    def in_turn(self) -> bool:
        """Whether the layers of the free phase move in turn."""
        return False

    @property
    def nudged_in_turn(self) -> bool:
        """Whether the layers of the nudged phase move in turn."""
        return False

    @property
    def nudging(self) -> Nudging | None:
        """How the second phase is nudged. None: the rule has no second phase."""
        return None

    @property
    def vector_field(self) -> bool:
        """Whether updates come from ∂F/∂θ, as in VF and C-VF."""
        return False

    @property
    def update_slope(self) -> UpdateSlope | str:
        """The factor σ′ in ∂F/∂θ."""
        return UpdateSlope.NONE

    @property
    def moving_share(self) -> float:
        """The share of η by which θ moves at each step of the phase, 0 to 1.

        0: θ stays fixed until the phase ends. 1: it moves by η times each gradient, as in C-EP. In
        between: η_tiny/η of appendix F.2.
        """
        return 0.0

    @property
    def continual(self) -> bool:
        """Whether θ moves during the phase."""
        return self.moving_share > 0

    def check_model(self, model: Model) -> None:
        """Raise if the model does not support a setting of the rule."""
        if self.in_turn:
            check_turns("free_steps", self.free_steps, model.split())

    def steps(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        cost: Cost | Readout | None = None,
        *,
        sign: Tensor | None = None,
    ) -> Stream[Step]:
        """Return a `Stream` of the gradients of neurons and synapses, one `Step` per time t < K.

        The arguments are those of `gradients`.
        """
        trial = self._present(model, x, y, cost, sign)
        return Stream(trial.free, _steps_with_readout(trial, self.resolved(trial)))

    def gradients(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        cost: Cost | Readout | None = None,
        *,
        sign: Tensor | None = None,
    ) -> Stream[Gradients]:
        """Return a `Stream` of gradients for an optimiser.

        A continual rule gives K items, any other rule one. Each item is {parameter name: gradient},
        uphill on the loss, mean over the batch. `free` of the stream is the free phase.

        Args:
            model: the network, or another `Model`.
            x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
            y: targets, [batch, n] or [*ensemble, batch, n], or class indices without the last axis.
            cost: ℓ(output, y) of the last layer, one value per sample, or a `Readout`. Default
                None: the model's read-out.
            sign: ±1 per member, [*ensemble]; it multiplies β. Default None: draw it if the nudging
                is `RandomSign`, else +1.
        """
        trial = self._present(model, x, y, cost, sign)
        return Stream(trial.free, _with_readout(trial, self.applied(trial)))

    def _present(
        self, model: Model, x: Tensor, y: Tensor, cost: Cost | Readout | None, sign: Tensor | None
    ) -> Trial:
        readout = as_readout(cost, model)
        self.check_model(model)
        model.check_input(x)
        model.check_target(x, y)
        readout.loss(model.initial_state(x), y)  # a bad y fails early
        return self.present(model, x, y, readout, sign)

    @abstractmethod
    def present(
        self, model: Model, x: Tensor, y: Tensor, readout: Readout, sign: Tensor | None
    ) -> Trial:
        """Run the free phase; return the `Trial`."""

    @abstractmethod
    def resolved(self, trial: Trial) -> Iterator[Step]:
        """Yield the rule's gradients, one item per time step."""

    @abstractmethod
    def applied(self, trial: Trial) -> Iterator[Gradients]:
        """Yield the rule's gradients, one item per parameter update."""


def as_readout(cost: Cost | Readout | None, model: Model) -> Readout:
    """Return the given read-out, the last layer with the given cost, or the model's read-out."""
    if cost is None or cost is model.readout:
        return model.readout
    if (isinstance(cost, Readout) and not hasattr(cost, "layers")) or _has_parameters(cost):
        raise ValueError(
            f"cost is a {type(cost).__name__} that the model does not have: give it to the "
            "network, Network(..., readout=...)"
        )
    if _has_parameters(model.readout):
        raise ValueError(
            f"the read-out of the model, {type(model.readout).__name__}, has parameters and a loss "
            "of its own: leave out cost"
        )
    if isinstance(cost, Readout):
        return cost
    readout = OutputLayer(cost)
    readout.build(model.layer_shapes, model.ensemble, model.seeds, model.dtype)
    return readout


def _has_parameters(it: object) -> bool:
    return isinstance(it, Readout) and any(True for _ in it.parameters())


def _own_gradients(trial: Trial) -> Gradients:
    """Return the gradients of the read-out's parameters at the free state."""
    own = trial.readout.gradients(trial.free.state, trial.y)
    return {f"readout.{name}": gradient for name, gradient in own.items()}


def _with_readout(trial: Trial, items: Iterable[Gradients]) -> Iterator[Gradients]:
    """Add the read-out's whole gradient to the first item, and zeros to the others."""
    own = _own_gradients(trial)
    for item in items:
        yield item | own
        own = {name: torch.zeros_like(gradient) for name, gradient in own.items()}


def _steps_with_readout(trial: Trial, steps: Iterable[Step]) -> Iterator[Step]:
    own = _own_gradients(trial)
    for step in steps:
        yield Step(step.neurons, step.synapses | own)
        own = {name: torch.zeros_like(gradient) for name, gradient in own.items()}


def total(steps: Iterable[Step]) -> Gradients:
    """Return the sum of the synapses' gradients over t."""
    summed: Gradients = {}
    for step in steps:
        for name, gradient in step.synapses.items():
            summed[name] = summed[name] + gradient if name in summed else gradient
    return summed
