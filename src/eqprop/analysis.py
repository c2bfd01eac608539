"""Analysis: how well a learning rule follows the gradients of BPTT, step by step.

All values point uphill on the loss. The paper compares Δ(t) with −∇(t); this module compares
−Δ(t) with ∇(t).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eqprop.costs import Cost
from eqprop.dynamics import Relaxation
from eqprop.engines.descent import LearningRates, resolve_rates
from eqprop.initial import angle_between
from eqprop.model import Model
from eqprop.rules import BPTT, Rule, Step, total
from eqprop.types import Gradients
from eqprop.updates import Descent


def angle(a: Tensor | Gradients, b: Tensor | Gradients, ensemble: Sequence[int] = ()) -> Tensor:
    """Return the angle in degrees between two tensors or two sets of tensors, [*ensemble].

    Args:
        a, b: tensors of equal shape, or {name: tensor} with the same names.
        ensemble: the leading axes, which are kept. Default (): none.
    """
    return angle_between(_flat(a, ensemble)[..., None, :], _flat(b, ensemble)[..., None, :])


def _flat(value: Tensor | Gradients, ensemble: Sequence[int]) -> Tensor:
    tensors = [value] if isinstance(value, Tensor) else [value[name] for name in sorted(value)]
    return torch.cat([tensor.double().reshape(*ensemble, -1) for tensor in tensors], dim=-1)


def sign_agreement(a: Tensor, b: Tensor, ensemble: Sequence[int] = ()) -> Tensor:
    """Return the share of entries of a that have the sign of b, [*ensemble].

    Only entries where b exceeds its rounding error count.

    Args:
        a, b: tensors of equal shape.
        ensemble: the leading axes, which are kept. Default (): none.
    """
    tally = _Tally(tuple(ensemble))
    tally.add(a, b)
    return tally.sign_agreement()


def relative_error(a: Tensor, b: Tensor, ensemble: Sequence[int] = ()) -> Tensor:
    """Return ‖a − b‖ / ‖b‖, [*ensemble]: 0 where both are zero, infinite where only b is.

    Args:
        a, b: tensors of equal shape.
        ensemble: the leading axes, which are kept. Default (): none.
    """
    tally = _Tally(tuple(ensemble))
    tally.add(a, b)
    return tally.relative_error()


class _Tally:
    """Accumulates the comparison of −Δ(t) with ∇(t) over t, without storing either."""

    def __init__(self, ensemble: tuple[int, ...]) -> None:
        self._ensemble = ensemble
        self._error = self._norm = self._equal = self._counted = torch.zeros(())
        self._largest = torch.zeros(())
        self.total_a = self.total_b = torch.zeros(())

    def add(self, a: Tensor, b: Tensor) -> None:
        eps = torch.finfo(a.dtype).eps
        if a.shape != b.shape:
            raise ValueError(f"shapes differ: {list(a.shape)} and {list(b.shape)}")
        u, v = _flat(a, self._ensemble), _flat(b, self._ensemble)
        self._largest = torch.maximum(self._largest, v.abs().amax(-1))
        counted = v.abs() > 1e3 * eps * self._largest[..., None]
        self._equal = self._equal + (counted & (u.sign() == v.sign())).sum(-1)
        self._counted = self._counted + counted.sum(-1)
        self._error = self._error + ((u - v) ** 2).sum(-1)
        self._norm = self._norm + (v**2).sum(-1)
        self.total_a, self.total_b = self.total_a + a, self.total_b + b

    def relative_error(self) -> Tensor:
        ratio = (self._error / self._norm).sqrt()
        return torch.where(self._error == 0, 0.0, ratio)

    def sign_agreement(self) -> Tensor:
        return torch.where(self._counted == 0, 1.0, self._equal / self._counted)

    def row(self, name: str, limit: Tolerances) -> GddRow:
        error = float(self.relative_error().max())
        degrees = float(angle(self.total_a, self.total_b, self._ensemble).max())
        signs = float(self.sign_agreement().min())
        passed = (
            error <= limit.relative_error
            and degrees <= limit.angle
            and signs >= limit.sign_agreement
        )
        return GddRow(name, error, degrees, signs, passed)


@dataclass(frozen=True)
class Process:
    """The gradients of a rule at times t = 0 … K−1, stacked along the first axis.

    Args:
        neurons: {layer: [K, *ensemble, batch, n]}, per sample.
        synapses: {parameter: [K, *shape]}, mean over the batch.
        free: the free phase before them.
    """

    neurons: dict[str, Tensor]
    synapses: dict[str, Tensor]
    free: Relaxation

    def total(self) -> Gradients:
        """Return the sum of the synapses' gradients over t."""
        return {name: process.sum(0) for name, process in self.synapses.items()}


def time_resolved(
    model: Model,
    rule: Rule,
    x: Tensor,
    y: Tensor,
    cost: Cost | None = None,
    *,
    learning_rates: LearningRates | None = None,
) -> Process:
    """Return −Δ_s(t), −Δ_θ(t) of a two-phase rule, or ∇_s(t), ∇_θ(t) of BPTT and RBP.

    The result is a `Process`. The model does not change.

    Args:
        model: the network, or another `Model`.
        rule: the learning rule.
        x: inputs, [batch, n] or [*ensemble, batch, n].
        y: targets, [batch, n] or [*ensemble, batch, n].
        cost: ℓ(output, y) of the last layer. Default None: the model's read-out.
        learning_rates: the learning rates of training, as in `make_engine`. A continual rule then
            moves θ during the phase as training does: by η, or by rescale·η if the rule rescales.
            θ stays fixed under any other rule. Default None: θ stays fixed, the limit η → 0.
    """
    moving = _Moving(model, rule, x, y, cost, learning_rates)
    steps = list(moving)
    return Process(
        neurons={
            name: torch.stack([step.neurons[i] for step in steps])
            for i, name in enumerate(model.layer_names)
        },
        synapses={
            name: torch.stack([step.synapses[name] for step in steps]) for name in steps[0].synapses
        },
        free=moving.free,
    )


def total_update(
    model: Model,
    rule: Rule,
    x: Tensor,
    y: Tensor,
    cost: Cost | None = None,
    *,
    learning_rates: LearningRates | None = None,
) -> Gradients:
    """Return {parameter: Σ_t −Δ_θ(t)}: `time_resolved(...).total()` without storing the process.

    If the rule rescales, training multiplies this total by η, not by η_tiny.

    Args:
        model, rule, x, y, cost, learning_rates: as in `time_resolved`.
    """
    return total(_Moving(model, rule, x, y, cost, learning_rates))


class _Moving(Iterator[Step]):
    """The steps of a rule on a copy of the model, whose θ moves as in training."""

    def __init__(
        self,
        model: Model,
        rule: Rule,
        x: Tensor,
        y: Tensor,
        cost: Cost | None,
        learning_rates: LearningRates | None,
    ) -> None:
        self._model = copy.deepcopy(model)
        given = {} if learning_rates is None else resolve_rates(model, learning_rates)
        share = rule.moving_share
        self._rates = {name: share * eta for name, eta in given.items()} if share else {}
        self.moving = bool(self._rates)
        as_given = torch.ones(model.ensemble)  # β keeps its sign, even if training draws it
        self._steps = rule.steps(self._model, x, y, cost, sign=as_given)
        self.free = self._steps.free
        self._latest: Gradients | None = None
        self._mover = Descent(self._model, self._rates)

    def __next__(self) -> Step:
        if self._latest is not None:
            self._mover.move(self._latest)
        step = next(self._steps)
        self._latest = step.synapses
        return step


@dataclass(frozen=True)
class Tolerances:
    """The limits of `gddcheck` for every layer and every parameter.

    Args:
        relative_error: the largest ‖−Δ − ∇‖ / ‖∇‖ over all t. Default 0.1.
        angle: the largest angle between the totals, in degrees. Default 10.
        sign_agreement: the smallest share of entries with equal signs over all t, counted where ∇
            is not zero. Default 0.9.
    """

    relative_error: float = 0.1
    angle: float = 10.0
    sign_agreement: float = 0.9


@dataclass(frozen=True)
class GddRow:
    """The comparison for the neurons of one layer or for one parameter: the worst member."""

    name: str
    relative_error: float
    angle: float
    sign_agreement: float
    passed: bool


@dataclass(frozen=True)
class GddReport:
    """Result of `gddcheck`. It prints as a table; `passed` is the verdict.

    Args:
        rule: the name of the rule.
        steps: K, the number of steps compared.
        moving: whether the weights moved during the phase.
        residual: the residual of the free phase.
        tolerances: the limits.
        neurons: one row per layer.
        synapses: one row per parameter.
        angle: angle in degrees between the totals over all parameters.
    """

    rule: str
    steps: int
    moving: bool
    residual: float
    tolerances: Tolerances
    neurons: tuple[GddRow, ...]
    synapses: tuple[GddRow, ...]
    angle: float

    @property
    def rows(self) -> tuple[GddRow, ...]:
        return self.neurons + self.synapses

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def __str__(self) -> str:
        limit = self.tolerances
        width = max(len(row.name) for row in self.rows)
        lines = [
            f"{self.rule} against BPTT over {self.steps} steps, weights "
            f"{'moving' if self.moving else 'held still'}; "
            f"free phase ended with residual {self.residual:.1e}",
            f"{'':{width}}  {'rel. error':>10}  {'angle':>7}  {'signs':>6}",
        ]
        for row in self.rows:
            lines.append(
                f"{row.name:{width}}  {row.relative_error:10.2e}  {row.angle:6.1f}°  "
                f"{row.sign_agreement:6.1%}  {'ok' if row.passed else 'FAIL'}"
            )
        lines.append(f"{'all parameters':{width}}  {'':10}  {self.angle:6.1f}°")
        lines.append(
            f"{'PASSED' if self.passed else 'FAILED'} at relative error ≤ {limit.relative_error:g},"
            f" angle ≤ {limit.angle:g}°, equal signs ≥ {limit.sign_agreement:.0%}"
        )
        return "\n".join(lines)


def gddcheck(
    model: Model,
    rule: Rule,
    x: Tensor,
    y: Tensor,
    cost: Cost | None = None,
    *,
    learning_rates: LearningRates | None = None,
    tolerances: Tolerances = Tolerances(),  # noqa: B008 (frozen)
) -> GddReport:
    """Check the gradient-descending dynamics (Theorem 1) of a rule on a model, at its β and η.

    It does for a learning rule what `torch.autograd.gradcheck` does for a backward pass: it
    compares the updates Δ(t) of every layer and parameter with −∇(t) of BPTT, t = 0 … K−1. It
    returns a `GddReport`, which prints as a table and has `passed`. Use float64.

    Args:
        model: the network, or another `Model`; it does not change.
        rule: the learning rule, with `free_steps` of at least K.
        x: inputs, [batch, n] or [*ensemble, batch, n].
        y: targets, [batch, n] or [*ensemble, batch, n].
        cost: ℓ(output, y) of the last layer. Default None: the model's read-out.
        learning_rates: the learning rates of training, as in `make_engine`. Under a continual rule
            the weights then move during the phase, as in training; the report says whether they
            moved. Default None: the weights stay fixed.
        tolerances: how much rule and BPTT may differ. Default: `Tolerances()`.
    """
    K = rule.horizon
    if rule.nudged_in_turn:
        raise ValueError(
            "gddcheck: BPTT goes back through steps of all layers: set nudged_in_turn=False"
        )
    if rule.free_steps < K:
        raise ValueError(
            f"gddcheck: the {K} steps to compare must not exceed free_steps ({rule.free_steps})"
        )
    moving = _Moving(model, rule, x, y, cost, learning_rates)
    bptt = BPTT(free_steps=rule.free_steps, backward_steps=K).steps(model, x, y, cost)
    neurons = {name: _Tally(model.ensemble) for name in model.layer_names}
    synapses = {name: _Tally(model.ensemble) for name, _ in model.named_parameters()}
    taken = 0
    for ours, exact in zip(moving, bptt, strict=False):
        taken += 1
        for name, a, b in zip(model.layer_names, ours.neurons, exact.neurons, strict=True):
            neurons[name].add(a, b)
        for name in synapses:
            synapses[name].add(ours.synapses[name], exact.synapses[name])
    return GddReport(
        rule=type(rule).__name__,
        steps=taken,
        moving=moving.moving,
        residual=moving.free.residual,
        tolerances=tolerances,
        neurons=tuple(tally.row(f"neurons {n}", tolerances) for n, tally in neurons.items()),
        synapses=tuple(tally.row(n, tolerances) for n, tally in synapses.items()),
        angle=float(
            angle(
                {name: tally.total_a for name, tally in synapses.items()},
                {name: tally.total_b for name, tally in synapses.items()},
                model.ensemble,
            ).max()
        ),
    )
