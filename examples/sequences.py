"""Two sequences: a network that alternates for ever, and settles once its layers move in turn.

At the end you have a test for alternation that works for any network, and you know the setting that
cures it.
"""

import torch

import eqprop
from eqprop.types import State

START = (0.35, 0.8)  # of the hidden and the output neuron: on different sides of ½
X = torch.zeros(1, 1, dtype=torch.float64)


def two_neurons() -> eqprop.Network:
    """Return a network of two neurons that excite each other, steady if both are high or low."""
    net = eqprop.layered(1, 1, 1, dtype=torch.float64)
    net.synapses[0].weight.zero_()  # no input reaches them
    net.synapses[1].weight.fill_(2.0)
    for synapse in net.synapses:
        synapse.bias.fill_(-0.5)
    return net


def trajectory(steps: int, in_turn: bool) -> list[State]:
    """Return the states from START on. All layers move at every step, or one after the other."""
    net = two_neurons()
    states = [tuple(torch.full((1, 1), value, dtype=torch.float64) for value in START)]
    for t in range(steps):
        states.append(net(X, states[-1], [t % 2] if in_turn else None))
    return states


def change(states: list[State], steps: int) -> float:
    """Return the largest change of any neuron over the last steps."""
    pairs = zip(states[-1], states[-1 - steps], strict=True)
    return max(float((now - before).abs().max()) for now, before in pairs)


def main() -> None:
    for title, in_turn in (("all layers at once", False), ("layers in turn", True)):
        print(title)
        states = trajectory(40, in_turn)
        for t in (0, 1, 2, 39, 40):
            hidden, output = states[t]
            print(f"  t = {t:2}: hidden {float(hidden):.3f}, output {float(output):.3f}")
        print(f"  change over one step {change(states, 1):.3f}, over two {change(states, 2):.3f}")


if __name__ == "__main__":
    main()
