"""See the theorem: the update of every step becomes the gradient of that step as β falls.

At the end you have a table for a network of your own topology: how far the local updates are from
the gradients of BPTT, step by step, for four values of β.
"""

import torch

import eqprop

T, K = 400, 6
BETAS = (0.1, 0.05, 0.025, 0.0125)


def network() -> eqprop.Network:
    """Return a network with two hidden layers and a connection that skips one, in real time."""
    return eqprop.Network(
        [eqprop.Input(8), eqprop.Layer("a", 6), eqprop.Layer("b", 5), eqprop.Layer("out", 3)],
        [
            eqprop.Dense("input", "a", bias=True),
            eqprop.Dense("a", "b", bias=True),
            eqprop.Dense("b", "out", bias=True),
            eqprop.Dense("a", "out"),  # skips b
        ],
        time=eqprop.RealTime(dt=0.5),
        activation="tanh",
        dtype=torch.float64,
        seed=1,
    )


def errors(beta: float) -> list[float]:
    """Return ‖Δ(t) + ∇(t)‖ / ‖∇(t)‖ of the weights from a to b, for t = 1 … K−1.

    The nudge needs a step to reach b: at t = 0 both are zero.
    """
    net, source = network(), torch.Generator().manual_seed(0)
    x = torch.rand(10, 8, generator=source, dtype=torch.float64)
    y = torch.randint(3, (10,), generator=source)
    rule = eqprop.EP(beta=beta, free_steps=T, nudged_steps=K)
    bptt = eqprop.BPTT(free_steps=T, backward_steps=K)
    # both point uphill: −Δ(t) and ∇(t), each [K, 6, 5]
    ours, exact = (
        eqprop.time_resolved(net, it, x, y).synapses["synapses.1.weight"] for it in (rule, bptt)
    )
    return [float(eqprop.relative_error(ours[t], exact[t])) for t in range(1, K)]


def main() -> None:
    print("β      " + "".join(f"   t = {t} " for t in range(1, K)))
    for beta in BETAS:
        print(f"{beta:<7g}" + "".join(f"{error:9.4f}" for error in errors(beta)))


if __name__ == "__main__":
    main()
