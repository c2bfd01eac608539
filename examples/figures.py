"""Draw the figures of the documentation into docs/figures: `make figures`.

The library computes each figure in float64 from a fixed seed. `python examples/figures.py NAME`
draws one of them.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from paper_networks import sample
from sequences import trajectory
from torch import Tensor

import eqprop
from eqprop.report import svg
from eqprop.report.blocks import Chart, Line, Panel

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
REAL_TIME = eqprop.RealTime(dt=0.08)


def network(**settings: object) -> eqprop.Network:
    given = {"init": "fan_in", "dtype": torch.float64} | settings
    return eqprop.layered(784, 512, 10, **given)  # type: ignore[arg-type]


def line(label: str, values: Tensor, **look: object) -> Line:
    """Return a curve over the steps 0, 1, …"""
    return Line(label, tuple(map(float, range(len(values)))), tuple(values.tolist()), **look)  # type: ignore[arg-type]


def phases() -> Chart:
    """Draw neurons of C-EP-1h's network in the free and in the nudged phase."""
    T, K, beta = 20, 15, 0.5
    net, (x, y) = network(), sample()
    s = eqprop.relax(net, x, T, keep=T).history
    states = [*s, eqprop.relax(net, x, T).state]
    settled = states[-1]
    for _ in range(K):
        hidden, output = net(x, states[-1])
        states.append((hidden, output - beta * (states[-1][1] - y)))
    outputs = torch.stack([output[0] for _, output in states])
    moved = [torch.stack([s[i][0] - settled[i][0] for s in states[T:]]) for i in (0, 1)]
    most = moved[0][-1].abs().argsort(descending=True)[:3]
    first = [
        line("the class of the image", outputs[:, 3]),
        *(line("other classes", outputs[:, k], color=1) for k in (0, 6)),
    ]
    second = [
        line("output of the class", moved[1][:, 3]),
        *(line("hidden neurons", 5 * moved[0][:, k], color=2) for k in most),
    ]
    return Chart(
        "phases",
        "The two phases of equilibrium propagation in a 784-512-10 network",
        (
            Panel(f"{T} free steps, {K} nudged steps", "step t", "output neuron", tuple(first)),
            Panel(
                "the nudged phase alone",
                "step t of the nudged phase",
                "change since the steady state (hidden: 5 ×)",
                tuple(second),
            ),
        ),
    )


def gdd() -> Chart:
    """Draw updates of three rules on top of the gradients of BPTT, for five synapses each."""
    T, K, beta, eta = 800, 80, 0.01, 2e-4
    x, y = sample()
    exact_rule = eqprop.BPTT(free_steps=T, backward_steps=K)
    panels = []
    for title, tied, angle, rates in (
        ("EP: the weights stay", True, 0.0, None),
        ("C-EP: the weights move", True, 0.0, eta),
        ("C-VF: they move, at Ψ = 45°", False, 45.0, eta),
    ):
        net = network(tied=tied, angle=angle, time=REAL_TIME, activation="tanh")
        kind = eqprop.ContinualEP if tied else eqprop.ContinualVF
        rule = kind(beta=beta, free_steps=T, nudged_steps=K)
        name = "synapses.1.weight"
        ours = eqprop.time_resolved(net, rule, x, y, learning_rates=rates).synapses[name]
        exact = eqprop.time_resolved(net, exact_rule, x, y).synapses[name]
        strongest = exact.sum(0).abs().flatten().argsort(descending=True)[:250:50]
        lines = []
        for color, k in enumerate(strongest.tolist()):
            for label, process, style in (
                ("−∇(t), BPTT", exact, "solid"),
                ("Δ(t), local rule", ours, "dashed"),
            ):
                lines.append(line(label, -process.flatten(1)[:, k], color=color, style=style))
        panels.append(Panel(title, "step t of the second phase", "change", tuple(lines)))
    values = [value for panel in panels for it in panel.lines for value in it.y]
    shared = (1.05 * min(values), 1.05 * max(values))
    caption = "Updates of five synapses by three local rules, and the gradients of BPTT"
    return Chart("gdd", caption, tuple(replace(panel, y_range=shared) for panel in panels))


def settings() -> Chart:
    """Draw the angle between total update and gradient against β and against η."""
    T, K = 800, 80
    x, y = sample()
    net = network(time=REAL_TIME, activation="tanh")
    (exact,) = eqprop.BPTT(free_steps=T, backward_steps=K).gradients(net, x, y)

    def still_angle(beta: float) -> float:
        (found,) = eqprop.EP(beta=beta, free_steps=T, nudged_steps=K).gradients(net, x, y)
        return float(eqprop.angle(found, exact))

    def moving_angle(beta: float, eta: float) -> float:
        rule = eqprop.ContinualEP(beta=beta, free_steps=T, nudged_steps=K)
        moved = copy.deepcopy(net)
        eqprop.make_engine(moved, rule, eta).step(x, y)
        before, after = net.state_dict(), moved.state_dict()
        return float(eqprop.angle({name: before[name] - after[name] for name in exact}, exact))

    betas = tuple(2.0**k for k in range(-8, 2))
    rates = tuple(10.0 ** (k / 2) for k in range(-12, -3))
    still = Line("η → 0", betas, tuple(map(still_angle, betas)))
    moving = [
        Line(f"β = {beta:g}", rates, tuple(moving_angle(beta, eta) for eta in rates), color=color)
        for color, beta in enumerate((0.01, 0.04, 0.16))
    ]
    axis = "angle to the gradient (degrees)"
    return Chart(
        "settings",
        "The angle between the total update of C-EP and the gradient of BPTT",
        (
            Panel("a larger nudge", "β", axis, (still,), x_log=True),
            Panel("weights that move faster", "η", axis, tuple(moving), x_log=True),
        ),
    )


def sequences() -> Chart:
    """Draw two neurons with two steady states: both sequences settle, but the state alternates."""
    panels = []
    for title, in_turn in (("all layers at once", False), ("layers in turn", True)):
        states = trajectory(12, in_turn)
        hidden, output = (torch.stack([s[i][0, 0] for s in states]) for i in (0, 1))
        lines = (line("hidden neuron", hidden), line("output neuron", output, color=1))
        panels.append(Panel(title, "step t", "state", lines, y_range=(0.0, 1.0)))
    caption = "Two neurons that excite each other, from the same start, in both update orders"
    return Chart("sequences", caption, tuple(panels))


CHARTS: dict[str, Callable[[], Chart]] = {
    draw.__name__: draw for draw in (phases, gdd, settings, sequences)
}


def arrow(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """Draw an arrow from one point to another; it ends 30 before the second."""
    length = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    x1, y1, x2, y2 = x1 + 26 * dx, y1 + 26 * dy, x2 - 30 * dx, y2 - 30 * dy
    return f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" {look}/>'


def circuits() -> str:
    """Draw the connections that backprop and equilibrium propagation need."""
    ink, error = "#3566a5", "#c0504d"
    solid = f'stroke="{ink}" stroke-width="2" marker-end="url(#a)"'
    both = f'stroke="{ink}" stroke-width="2" marker-end="url(#a)" marker-start="url(#a)"'
    dashed = f'stroke="{error}" stroke-width="2" stroke-dasharray="5 4" marker-end="url(#b)"'

    def node(x: float, y: float, text: str, color: str = ink) -> str:
        return (
            f'<circle cx="{x}" cy="{y}" r="24" fill="#fff" stroke="{color}" stroke-width="2"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-size="15">{text}</text>'
        )

    def words(x: float, y: float, text: str, size: int = 13, weight: int = 400) -> str:
        return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}">{text}</text>'

    def parts() -> Iterator[str]:
        yield words(20, 28, "Backprop: two circuits", 15, 600)
        for x, name in ((50, "x"), (170, "h"), (290, "ŷ")):
            yield node(x, 90, name)
        for x, name in ((170, "δh"), (290, "δŷ")):
            yield node(x, 190, name, error)
        yield arrow(50, 90, 170, 90, solid) + arrow(170, 90, 290, 90, solid)
        yield arrow(290, 90, 290, 190, dashed) + arrow(290, 190, 170, 190, dashed)
        yield words(20, 246, "forward pass, then errors δ go back on wires of their own")
        yield words(430, 28, "Equilibrium propagation: one circuit", 15, 600)
        for x, name in ((460, "x"), (580, "h"), (700, "ŷ")):
            yield node(x, 90, name)
        yield arrow(460, 90, 580, 90, solid)
        yield f'<path d="M610 90H670" {both}/>'
        yield node(700, 190, "y", error) + arrow(700, 190, 700, 90, dashed)
        yield words(716, 146, "nudge β(y − ŷ)")
        yield words(430, 246, "settle, nudge the output, settle again: the same wires")

    def head(name: str, color: str) -> str:
        return (
            f'<marker id="{name}" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="5" '
            f'markerHeight="5" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
            f'fill="{color}"/></marker>'
        )

    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 840 264" width="840" '
        'aria-label="The connections that backprop and equilibrium propagation need" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\" "
        'fill="#1d2127"><rect width="100%" height="100%" fill="#fff"/>'
        f"<defs>{head('a', ink)}{head('b', error)}</defs>{''.join(parts())}</svg>\n"
    )


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or [*CHARTS, "circuits"]:
        text = circuits() if name == "circuits" else svg.figure(CHARTS[name]())
        path = FOLDER / f"{name}.svg"
        path.write_text(text, "utf-8")
        print(path, len(text))


if __name__ == "__main__":
    main(sys.argv[1:])
