"""What a learning rule is: it reads gradients off a model, uphill on the loss, step by step.

Δ of the paper is the negative of what a rule hands out, for neurons and synapses alike.
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
from eqprop.dynamics import Relaxation
from eqprop.model import Model
from eqprop.nudging import Beta, Nudging
from eqprop.readouts import OutputLayer, Readout
from eqprop.types import Gradients, State
from eqprop.update_slope import UpdateSlope

T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """Time t of a rule.

    Args:
        neurons: −Δ_s(t) or ∇_s(t), one tensor [*ensemble, batch, n] per layer, for every sample.
        synapses: −Δ_θ(t) or ∇_θ(t), {parameter name: tensor}, as mean over the batch.
    """

    neurons: State
    synapses: Gradients


@dataclass(frozen=True)
class Trial:
    """One presentation of a minibatch: the model, the data, s_*, and the β of each nudged phase."""

    model: Model
    x: Tensor
    y: Tensor
    readout: Readout
    free: Relaxation
    betas: tuple[Beta, ...] = ()
    turns: tuple[Sequence[int] | None, ...] = (None,)  # which layers move at nudged step t: t mod n


class Stream(Iterator[T], Generic[T]):
    """An iterator that also tells on which free phase its gradients rest."""

    def __init__(self, free: Relaxation, items: Iterable[T]) -> None:
        self.free = free
        self._items = iter(items)

    def __next__(self) -> T:
        return next(self._items)


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A rule never writes parameters. Whoever consumes the stream of a continual rule may move
    θ between two items: it reads θ anew at each.

    Args:
        free_steps: T, the steps of the free phase, from s = 0; a positive integer.
    """

    free_steps: int
    _documented: ClassVar[str | None]  # the docstring as it is written

    def __init_subclass__(cls) -> None:
        """Let the docstring of a rule explain the arguments that it inherits, too."""
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
        """The residual at which the free phase ends early, if any."""
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
        """How the second phase is nudged, if there is one."""
        return None

    @property
    def vector_field(self) -> bool:
        """Whether it reads ∂F/∂θ; else ∂Φ/∂θ, or the derivative of the loss itself."""
        return False

    @property
    def update_slope(self) -> UpdateSlope | str:
        """Which σ′ of ∂F/∂θ it takes."""
        return UpdateSlope.NONE

    @property
    def moving_share(self) -> float:
        """The share of η by which θ moves at each step of the phase, 0 to 1.

        0: θ stays until the phase is over. 1: it moves at every step, as in C-EP. In between:
        η_tiny/η of appendix F.2.
        """
        return 0.0

    @property
    def continual(self) -> bool:
        """Whether θ moves during the phase."""
        return self.moving_share > 0

    def check_model(self, model: Model) -> None:  # noqa: B027 (most rules take any model)
        """Raise where the rule has a setting that the model cannot serve."""

    def steps(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        cost: Cost | Readout | None = None,
        *,
        sign: Tensor | None = None,
    ) -> Stream[Step]:
        """The time-resolved gradients of neurons and synapses, t = 0 … K−1.

        Takes what `gradients` takes; yields one `Step` per time t.
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
        """What an optimiser applies: K items from a continual rule, one from any other.

        Each is {parameter name: gradient}, uphill on the loss, mean over the batch.

        Args:
            model: the network, or another `Model`.
            x: inputs, [batch, *shape] or [*ensemble, batch, *shape].
            y: targets, [batch, n] or [*ensemble, batch, n], or class indices without the last axis.
            cost: ℓ(output, y) of the last layer, one value per sample. Default None: the model's
                read-out says what is answered and what that costs.
            sign: ±1 per member, [*ensemble]; it multiplies β. Drawn if None and `random_sign`.
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
        readout.loss(model.initial_state(x), y)  # a bad y fails before the work is done
        return self.present(model, x, y, readout, sign)

    @abstractmethod
    def present(
        self, model: Model, x: Tensor, y: Tensor, readout: Readout, sign: Tensor | None
    ) -> Trial:
        """Run the free phase."""

    @abstractmethod
    def resolved(self, trial: Trial) -> Iterator[Step]:
        """The rule, one time step an item."""

    @abstractmethod
    def applied(self, trial: Trial) -> Iterator[Gradients]:
        """The rule, one parameter update an item."""


def as_readout(cost: Cost | Readout | None, model: Model) -> Readout:
    """What a model is read by: a read-out given, its last layer with a cost given, or its own."""
    if cost is None:
        return model.readout
    if isinstance(cost, Readout):
        return cost
    readout = OutputLayer(cost)
    readout.build(model.layer_shapes, model.ensemble, model.seeds, model.dtype)
    return readout


def _own_gradients(trial: Trial) -> Gradients:
    """Those of the read-out's own parameters, at the free state."""
    own = trial.readout.gradients(trial.free.state, trial.y)
    return {f"readout.{name}": gradient for name, gradient in own.items()}


def _with_readout(trial: Trial, items: Iterable[Gradients]) -> Iterator[Gradients]:
    """What the read-out has to learn comes with the first item, whole: s_* is there then."""
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
    """Σ_t of the synapses' gradients."""
    summed: Gradients = {}
    for step in steps:
        for name, gradient in step.synapses.items():
            summed[name] = summed[name] + gradient if name in summed else gradient
    return summed
