"""Print the tables of docs/nudging.md: the error of the gradient with each nudging.

The exact gradient is that of RBP at the steady state. The network is 4-5-3 with tanh in real time,
in float64, with phases of 600 steps. One ensemble holds a network per setting.
"""

import torch
from torch import Tensor

import eqprop
from eqprop import Centred, Holomorphic, OneSided, Rule

BETAS = (0.4, 0.2, 0.1, 0.05, 0.025)
POINTS = (4, 8)
STEPS = 600
CONTINUAL = tuple((eta, beta) for eta in (0.001, 0.0005) for beta in (0.1, 0.05, 0.025))


def network(members: int) -> eqprop.Network:
    """Return an ensemble of equal networks, one per setting."""
    time, seeds = eqprop.RealTime(dt=0.5), [1] * members
    return eqprop.layered(
        4, 5, 3, time=time, activation="tanh", dtype=torch.float64, ensemble=members, seed=seeds
    )


def minibatch() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    x = torch.rand(6, 4, generator=source, dtype=torch.float64)
    return x, torch.rand(6, 3, generator=source, dtype=torch.float64)


def gradient(rule: Rule) -> Tensor:
    """Return the single gradient of a rule for each β, [β, parameters]."""
    (found,) = rule.gradients(network(len(BETAS)), *minibatch())
    return torch.cat([part.flatten(1) for part in found.values()], dim=1)


def moved(rule: Rule, eta: Tensor) -> Tensor:
    """Return the change of the parameters in one step of learning, divided by −η, [η, parameters].

    η has one value per member.
    """
    net, before = network(len(eta)), network(len(eta))
    eqprop.make_engine(net, rule, eta, "reference").step(*minibatch())
    pairs = zip(before.parameters(), net.parameters(), strict=True)
    return torch.cat([(p - q).flatten(1) for p, q in pairs], dim=1) / eta[:, None]


def ep(nudging: eqprop.Nudging) -> eqprop.EP:
    return eqprop.EP(nudging=nudging, free_steps=STEPS, nudged_steps=STEPS)


def accuracy() -> list[list[float]]:
    """Return one row per β: the relative errors of one-sided, centred and holomorphic nudging, and
    the standard deviation of a random sign.
    """
    exact = gradient(eqprop.RBP(free_steps=STEPS, backward_steps=STEPS))
    betas = torch.tensor(BETAS, dtype=torch.float64)
    plus, minus = gradient(ep(OneSided(betas))), gradient(ep(OneSided(-betas)))
    circles = [gradient(ep(Holomorphic(betas, n))) for n in POINTS]
    errors = [found - exact for found in (plus, gradient(ep(Centred(betas))), *circles)]
    sizes = [found.norm(dim=1) / exact.norm(dim=1) for found in (*errors, (plus - minus) / 2)]
    return torch.stack([betas, *sizes], dim=1).tolist()


def continual() -> list[list[float]]:
    """Return one row per (η, β): the relative difference of C-EP from EP, with centred nudging."""
    eta, beta = torch.tensor(CONTINUAL, dtype=torch.float64).T
    steps = {"nudging": Centred(beta), "free_steps": STEPS, "nudged_steps": STEPS}
    whole, parts = (moved(kind(**steps), eta) for kind in (eqprop.EP, eqprop.ContinualEP))
    difference = (parts - whole).norm(dim=1) / whole.norm(dim=1)
    return torch.stack([eta, beta, difference], dim=1).tolist()


def table(head: list[str], rows: list[list[float]], settings: int) -> str:
    """Return a Markdown table. The first `settings` numbers of a row are settings."""
    lines = [head, ["---:"] * len(head)]
    for row in rows:
        known, found = row[:settings], row[settings:]
        lines.append([*(f"{value:g}" for value in known), *(f"{value:.1e}" for value in found)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    torch.set_num_threads(1)
    circles = [f"{n} points" for n in POINTS]
    print(table(["β", "one-sided", "centred", *circles, "sign: deviation"], accuracy(), 1))
    print()
    print(table(["η", "β", "C-EP against EP"], continual(), 2))


if __name__ == "__main__":
    main()
