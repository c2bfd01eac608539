"""gddcheck on the paper's four networks: symmetric and asymmetric, discrete and real time.

The hyperparameters are those of the paper's table for its GDD figures (784-512-10, tanh, one
sample, η → 0); the weights are drawn as in the authors' code. The sample is a random sparse
image, so that nothing has to be downloaded.
"""

import sys

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
    """An image with a fifth of its pixels lit, and a target."""
    source = torch.Generator().manual_seed(0)
    lit = torch.rand(1, 784, generator=source, dtype=torch.float64) < 0.2
    x = lit * torch.rand(1, 784, generator=source, dtype=torch.float64)
    return x, torch.eye(10, dtype=torch.float64)[3:4]


def main() -> int:
    torch.set_num_threads(1)
    x, y = sample()
    passed = True
    for title, (axes, rule) in NETWORKS.items():
        net = eqprop.layered(
            784, 512, 10, activation="tanh", init="fan_in", dtype=torch.float64, **axes
        )
        report = eqprop.gddcheck(net, rule, x, y)
        print(f"\n{title}\n{report}")
        passed &= report.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
