"""The ratio of the learning rates: inverse to the gradients of the layers.

"Gradients are vanishing when going away from the output layer, i.e. they lose up to 10⁻¹ in
magnitude when going from a layer to the previous (i.e. upstream) layer. We subsequently initialized
the learning rates with increasing values going from the output layer to upstreams layers"
(appendix F.1). The appendix does not say by how much. Here η·‖∇‖ is the same for every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eqprop.analysis import total_update
from eqprop.network import Network
from eqprop.report.blocks import Chart, Line, Panel
from eqprop.rules import BPTT
from eqprop.runs import UserError
from eqprop.tuning.choices import Balance, Choices
from eqprop.tuning.processes import grouped, labels
from eqprop.tuning.step import Step, short


def magnitude(gradient: Tensor, balance: Balance) -> float:
    """Return the magnitude of a gradient [*ensemble, n], mean over the ensemble."""
    norm = float(gradient.norm(dim=-1).mean())
    return norm if balance == Balance.NORM else norm / gradient.shape[-1] ** 0.5


def learning_rates(magnitudes: Sequence[float], largest: float) -> tuple[float, ...]:
    """Return learning rates in inverse proportion to the magnitudes, rounded to two digits.

    Args:
        magnitudes: magnitudes of the gradients, input → output, each above 0.
        largest: the rate of the layer with the smallest gradient.
    """
    least = min(magnitudes)
    return tuple(float(f"{largest * least / it:.2g}") for it in magnitudes)


def choose_ratio(net: Network, x: Tensor, y: Tensor, T: int, K: int, choices: Choices) -> Step:
    """Choose the ratio of the learning rates. The largest is the upper end of its range."""
    bptt = BPTT(free_steps=T, backward_steps=min(K, T))
    total = grouped(net, total_update(net, bptt, x, y))
    sizes = [short(magnitude(gradient, choices.balance)) for gradient in total]
    names = labels(net)
    for name, size in zip(names, sizes, strict=True):
        if not size > 0:
            raise UserError(
                f"learning_rates: no gradient reaches {name}: its neurons are saturated"
            )
    rates = learning_rates(sizes, choices.rates[1])
    seen = ", ".join(f"{n} {size:.2g}" for n, size in zip(names, sizes, strict=True))
    ratio = " : ".join(f"{rate / rates[-1]:.2g}" for rate in rates)
    layer = tuple(map(float, range(1, len(sizes) + 1)))
    return Step(
        chosen={"update.learning_rates": list(rates)},
        lines=(
            f"{choices.balance} of ∇: {seen}",
            f"learning rates as {ratio}, input to output: in inverse proportion",
        ),
        measured={"magnitude": dict(zip(names, sizes, strict=True))},
        chart=Chart(
            "4-ratio",
            "Magnitude of the gradient of each layer, input to output, and learning rates.",
            (
                Panel(
                    "gradients",
                    "layer",
                    f"{choices.balance} of ∇ / largest",
                    (_points(layer, sizes),),
                ),
                Panel("learning rates", "layer", "η / largest η", (_points(layer, rates),)),
            ),
        ),
    )


def _points(layer: tuple[float, ...], values: Sequence[float]) -> Line:
    return Line("", layer, tuple(value / max(values) for value in values), "points")
