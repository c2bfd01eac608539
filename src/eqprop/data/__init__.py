"""Find, fetch, verify and load MNIST, Fashion-MNIST, CIFAR-10 or your own idx data sets."""

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
