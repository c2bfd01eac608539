"""The content of a page: networks and digits, as JSON with packed numbers.

A tensor is {"type", "shape", "scale", "data"}: numbers of that type, compressed by zlib, in base64.
Its values are scale × number in float64. So the page and Python use the same values.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eqprop.costs import SquaredError
from eqprop.network import Network, layered
from eqprop.readouts import OutputLayer
from eqprop.runs.recipe import UserError
from eqprop.splits import Dataset
from eqprop.timesteps import Discrete

Record = dict[str, Any]  # a JSON object

ACTIVATIONS = ("sigmoid", "tanh", "hard_sigmoid")  # supported by the page
INPUTS, CLASSES = 784, 10
LARGEST = 127  # of int8


def pack(values: Tensor, scale: float | None = None) -> Record:
    """Pack a tensor. With a scale, store integers from −127 to 127."""
    if scale is None:
        numbers = values.detach().cpu().numpy()
    else:
        numbers = (values.double() / scale).round().to(torch.int8).numpy()
    little = numbers.astype(numbers.dtype.newbyteorder("<"))
    return {
        "type": str(numbers.dtype),
        "shape": list(values.shape),
        "scale": 1.0 if scale is None else scale,
        "data": base64.b64encode(zlib.compress(little.tobytes(), 9)).decode(),
    }


def unpack(record: Record) -> Tensor:
    """Return the values of a packed tensor, in float64."""
    data = zlib.decompress(base64.b64decode(record["data"]))
    little = np.dtype(record["type"]).newbyteorder("<")
    numbers = np.frombuffer(data, little).astype(np.float64)
    scale: float = record["scale"]
    return scale * torch.from_numpy(numbers).reshape(record["shape"])


def pack_network(
    net: Network, name: str, title: str, python: str, settings: Record, *, small: bool = False
) -> Record:
    """Pack a network for a page.

    Args:
        net: a chain of dense layers from 784 inputs to 10 outputs, discrete time, no ensemble.
        name: its name in the URL of a view.
        title: its title on the page.
        python: a Python expression for the same network, in float64.
        settings: values of the controls when a reader picks it.
        small: whether to round the weights to one byte each. Default False.
    """
    check_network(net)

    def packed(values: Tensor) -> Record:
        return pack(values, float(values.abs().max()) / LARGEST if small else None)

    return {
        "name": name,
        "title": title,
        "python": python,
        "sizes": [net.input_size, *net.layer_sizes],
        "activation": net.activations[0].name,
        "seed": net.seeds[0],
        "settings": settings,
        "tensors": {field: packed(values) for field, values in net.named_parameters()},
    }


def unpack_network(record: Record) -> Network:
    """Return the network of a packed record, in float64."""
    tensors = record["tensors"]
    net = layered(
        *record["sizes"],
        tied="synapses.1.backward_weight" not in tensors,
        activation=record["activation"],
        bias="synapses.0.bias" in tensors,
        seed=record["seed"],
        dtype=torch.float64,
    )
    for name, parameter in net.named_parameters():
        parameter.copy_(unpack(tensors[name]))
    return net


def check_network(net: Network) -> None:
    """Raise unless the page supports the network."""
    shared = any(synapse.shared_update for synapse in net.synapses)
    if not net.is_chain() or net.time != Discrete() or len(net.layers) < 2 or shared:
        raise UserError(
            "the explorer shows chains of dense layers in discrete time, with a hidden layer, "
            "without shared updates and relaxation: choose a run of such networks"
        )
    if not isinstance(net.readout, OutputLayer) or not isinstance(net.readout.cost, SquaredError):
        raise UserError(
            "the explorer shows networks that answer with their last layer: choose a run with "
            "network.readout = output-layer"
        )
    named = {activation.name for activation in net.activations}
    if len(named) != 1 or not named <= set(ACTIVATIONS):
        raise UserError(
            f"the explorer knows the activations {', '.join(ACTIVATIONS)}, not {', '.join(named)}"
        )
    ends = (net.input_size, net.layer_sizes[-1])
    if ends != (INPUTS, CLASSES):
        raise UserError(
            f"the explorer shows networks with {INPUTS} inputs and {CLASSES} outputs, "
            f"not {ends[0]} and {ends[1]}"
        )


def pack_digits(data: Dataset, train: int, test: Sequence[int]) -> Record:
    """Pack digits for a page: the first `train` training images, and the test images at `test`."""
    first = data.train.head(train)
    for split in (data.train, data.test):
        fits = split.images[0].numel() == INPUTS and split.classes == CLASSES
        if not (split.plain_bytes and fits):
            raise UserError(
                f"the explorer shows images of 28 × 28 bytes in {CLASSES} classes, not normalised: "
                f"{data.name} has others"
            )
    chosen = list(test)
    labels = torch.cat([first.labels, data.test.labels[chosen]])
    images = torch.cat([first.images.flatten(1), data.test.images[chosen].flatten(1)])
    return {
        "set": data.name,
        "train": train,
        "test": chosen,
        "labels": "".join(str(int(label)) for label in labels),
        "images": pack(images),
    }
