"""The networks of a page, in Python."""

from __future__ import annotations

import os

import torch

from eqprop.explorer.content import unpack_network
from eqprop.explorer.page import read
from eqprop.initial import flip_signs
from eqprop.network import Network, layered
from eqprop.runs.recipe import UserError
from eqprop.seeds import generator


def network(name: str, page: str | os.PathLike[str] | None = None) -> Network:
    """Return a network of a page, with exactly its weights, in float64.

    Args:
        name: its name on the page.
        page: an HTML file that `eqprop explore` wrote. Default None: the page of this package.
    """
    records = {record["name"]: record for record in read(page)["networks"]}
    if name not in records:
        raise UserError(f"the page has no network {name!r}: choose one of {', '.join(records)}")
    return unpack_network(records[name])


def untied(net: Network, angle: float = 0.0) -> Network:
    """Return a layered network with the same forward weights and separate backward weights.

    A backward weight is the transposed forward weight, with each sign flipped with probability
    ½(1 − cos Ψ), as `layered(..., tied=False, angle=Ψ)` does.

    Args:
        net: a chain of dense layers in discrete time with tied weights, without an ensemble.
        angle: Ψ in degrees, 0 to 180. Default 0.
    """
    twin = layered(
        *(net.input_size, *net.layer_sizes),
        tied=False,
        activation=net.activations[0],
        bias=net.synapses[0].bias is not None,
        angle=angle,
        seed=net.seeds[0],
        dtype=net.dtype,
    )
    own = dict(twin.named_parameters())
    for name, parameter in net.named_parameters():
        own[name].copy_(parameter)
    with torch.no_grad():
        for k, synapse in enumerate(twin.synapses):
            if synapse.backward_weight is not None:
                flips = generator(net.seeds[0], f"synapse {k} sign flips")
                synapse.backward_weight.copy_(flip_signs(synapse.weight, angle, flips).mT)
    return twin
