"""What a learning rule is: it reads gradients off a model, uphill on the loss, step by step.

Δ of the paper is the negative of what a rule hands out, for neurons and synapses alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import cleandoc
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from eqprop.costs import Cost, SquaredError
from eqprop.dynamics import Relaxation
from eqprop.model import Gradients, Model, State

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
    """One presentation of a minibatch: the model, the data, β with its sign, and s_*."""

    model: Model
    x: Tensor
    y: Tensor
    cost: Cost
    beta: float | Tensor
    free: Relaxation


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
        cost: Cost = SquaredError(),  # noqa: B008 (frozen)
        *,
        sign: Tensor | None = None,
    ) -> Stream[Step]:
        """The time-resolved gradients of neurons and synapses, t = 0 … K−1.

        Takes what `gradients` takes; yields one `Step` per time t.
        """
        trial = self._present(model, x, y, cost, sign)
        return Stream(trial.free, self.resolved(trial))

    def gradients(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        cost: Cost = SquaredError(),  # noqa: B008 (frozen)
        *,
        sign: Tensor | None = None,
    ) -> Stream[Gradients]:
        """What an optimiser applies: K items from a continual rule, one from any other.

        Each is {parameter name: gradient}, uphill on the loss, mean over the batch.

        Args:
            model: the network, or another `Model`.
            x: inputs, [batch, n] or [*ensemble, batch, n].
            y: targets, [batch, n] or [*ensemble, batch, n].
            cost: ℓ(output, y), one value per sample.
            sign: ±1 per member, [*ensemble]; it multiplies β. Drawn if None and `random_sign`.
        """
        trial = self._present(model, x, y, cost, sign)
        return Stream(trial.free, self.applied(trial))

    def _present(
        self, model: Model, x: Tensor, y: Tensor, cost: Cost, sign: Tensor | None
    ) -> Trial:
        self.check_model(model)
        model.check_input(x)
        model.check_target(x, y)
        cost(model.output(model.initial_state(x)), y)  # a bad y fails before the work is done
        return self.present(model, x, y, cost, sign)

    @abstractmethod
    def present(self, model: Model, x: Tensor, y: Tensor, cost: Cost, sign: Tensor | None) -> Trial:
        """Run the free phase."""

    @abstractmethod
    def resolved(self, trial: Trial) -> Iterator[Step]:
        """The rule, one time step an item."""

    @abstractmethod
    def applied(self, trial: Trial) -> Iterator[Gradients]:
        """The rule, one parameter update an item."""


def total(steps: Iterable[Step]) -> Gradients:
    """Σ_t of the synapses' gradients."""
    summed: Gradients = {}
    for step in steps:
        for name, gradient in step.synapses.items():
            summed[name] = summed[name] + gradient if name in summed else gradient
    return summed
