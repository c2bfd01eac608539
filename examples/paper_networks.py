"""Run gddcheck on the paper's four networks: symmetric and asymmetric, discrete and real time.

The hyperparameters are those of the paper's table for its GDD figures (784-512-10, tanh, one
sample, η → 0). The weights are drawn as in the authors' code. The sample is a random sparse image,
so nothing has to be downloaded.

A table follows for the three variants of σ′ in the discrete-time update of C-VF (`update_slope`):
on the asymmetric network, and on a network with a symmetric Jacobian, as Theorem 2 requires.
"""

import copy
import sys
from typing import Any

import torch

import eqprop

DISCRETE, REAL_TIME = eqprop.Discrete(), eqprop.RealTime(dt=0.08)
NETWORKS = {
    "discrete time, symmetric weights": (
        {"tied": True, "time": DISCRETE},
        eqprop.ContinualEP(beta=0.01, free_steps=150, nudged_steps=10),
    ),
    "real time, symmetric weights": (
        {"tied": True, "time": REAL_TIME},
        eqprop.ContinualEP(beta=0.05, free_steps=800, nudged_steps=80),
    ),
    "discrete time, asymmetric weights, Ψ = 0°": (
        {"tied": False, "time": DISCRETE},
        eqprop.ContinualVF(beta=0.01, free_steps=150, nudged_steps=10),
    ),
    "real time, asymmetric weights, Ψ = 0°": (
        {"tied": False, "time": REAL_TIME},
        eqprop.ContinualVF(beta=0.005, free_steps=800, nudged_steps=80),
    ),
}


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image in which a fifth of the pixels are nonzero, and a target."""
    source = torch.Generator().manual_seed(0)
    lit = torch.rand(1, 784, generator=source, dtype=torch.float64) < 0.2
    x = lit * torch.rand(1, 784, generator=source, dtype=torch.float64)
    return x, torch.eye(10, dtype=torch.float64)[3:4]


def network(*sizes: int, **axes: Any) -> eqprop.Network:
    return eqprop.layered(*sizes, activation="tanh", init="fan_in", dtype=torch.float64, **axes)


def with_symmetric_jacobian(net: eqprop.Network, x: torch.Tensor) -> eqprop.Network:
    """Return a copy of a network with one hidden layer whose Jacobian at the steady state is
    symmetric.

    With D = diag σ′ this requires W_b = D_output·W_fᵀ·D_hidden⁻¹. The bias of the hidden layer
    compensates for the change, so the steady state of the sample x does not change.
    """
    net = copy.deepcopy(net)
    hidden, output = eqprop.relax(net, x, steps=150).state
    synapse = net.synapses[1]
    drive = output @ synapse.backward_weight
    synapse.backward_weight.copy_((1 - output**2).mT * synapse.weight.mT / (1 - hidden**2))
    net.synapses[0].bias.add_((drive - output @ synapse.backward_weight)[0])
    return net


def print_update_slopes(x: torch.Tensor, y: torch.Tensor) -> None:
    """Print the largest relative error of a parameter and the angle of all, for decreasing β."""
    net = network(784, 512, 10, tied=False, time=DISCRETE)
    betas = (0.01, 0.0001)
    print("\nC-VF in discrete time, by update_slope: largest relative error of a parameter, angle")
    print(f"{'':30}" + "".join(f"{f'β = {beta:g}':>22}" for beta in betas))
    for title, chosen in (
        ("symmetric weights (Ψ = 0°)", net),
        ("symmetric Jacobian", with_symmetric_jacobian(net, x)),
    ):
        print(title)
        for slope in ("none", "own", "full"):
            cells = []
            for beta in betas:
                rule = eqprop.ContinualVF(
                    beta=beta, free_steps=150, nudged_steps=10, update_slope=slope
                )
                report = eqprop.gddcheck(chosen, rule, x, y)
                error = max(row.relative_error for row in report.synapses)
                cells.append(f"{error:12.1e}  {report.angle:6.2f}°")
            print(f"  {slope:28}" + " ".join(cells))


def main() -> int:
    torch.set_num_threads(1)
    x, y = sample()
    passed = True
    for title, (axes, rule) in NETWORKS.items():
        report = eqprop.gddcheck(network(784, 512, 10, **axes), rule, x, y)
        print(f"\n{title}\n{report}")
        passed &= report.passed
    print_update_slopes(x, y)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
