"""MNIST, Fashion-MNIST, CIFAR-10 and idx sets of your own: found, fetched, verified, loaded."""

from eqprop.data.loading import KNOWN_SETS, check_name, load
from eqprop.splits import DataError, Dataset, Normalisation, Split

__all__ = [
    "KNOWN_SETS",
    "DataError",
    "Dataset",
    "Normalisation",
    "Split",
    "check_name",
    "load",
]
