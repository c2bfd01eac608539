"""Draw docs/figures/gdd.png: the updates of C-EP on top of the gradients of BPTT."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from paper_networks import sample

import eqprop

FREE, NUDGED, BETA, ETA = 800, 80, 0.01, 2e-4
PANELS = (
    ("EP: symmetric, η → 0", True, 0.0, None),
    ("C-EP: symmetric, weights move (η = 2e-4)", True, 0.0, ETA),
    ("C-VF: asymmetric (Ψ = 45°), weights move", False, 45.0, ETA),
)


def main() -> None:
    torch.set_num_threads(1)
    x, y = sample()
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), sharey=True, constrained_layout=True)
    for axis, (title, tied, angle, eta) in zip(axes, PANELS, strict=True):
        net = eqprop.layered(
            784,
            512,
            10,
            tied=tied,
            angle=angle,
            time=eqprop.RealTime(dt=0.08),
            activation="tanh",
            init="fan_in",
            dtype=torch.float64,
        )
        kind = eqprop.ContinualEP if tied else eqprop.ContinualVF
        rule = kind(beta=BETA, free_steps=FREE, nudged_steps=NUDGED)
        bptt = eqprop.BPTT(free_steps=FREE, backward_steps=NUDGED)
        ours = eqprop.time_resolved(net, rule, x, y, learning_rates=eta).synapses
        exact = eqprop.time_resolved(net, bptt, x, y).synapses
        name = "synapses.1.weight"
        strongest = exact[name].sum(0).abs().flatten().argsort(descending=True)[:250:50]
        for colour, k in enumerate(strongest):
            axis.plot(-exact[name].flatten(1)[:, k], color=f"C{colour}", lw=1.2)
            axis.plot(-ours[name].flatten(1)[:, k], color=f"C{colour}", ls=(0, (3, 3)), lw=2.4)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step t of the second phase")
    axes[0].set_ylabel("change of five synapses")
    axes[0].plot([], [], color="0.3", lw=1.2, label="−∇ of BPTT")
    axes[0].plot([], [], color="0.3", ls=(0, (3, 3)), lw=2.4, label="Δ, local rule")
    axes[0].legend(frameon=False, fontsize=9)
    path = Path(__file__).parent.parent / "docs" / "figures" / "gdd.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(path)


if __name__ == "__main__":
    main()
