"""Known data sets, for tests of the real ones."""

import os
from collections.abc import Callable

import pytest

from eqprop.data import KNOWN_SETS, DataError, Dataset, load


def known_set(name: str) -> Dataset:
    """Load a set from the user's own cache, or from wherever this machine reaches it.

    Where it reaches no source, the test is skipped. If a source answers and yet the set cannot be
    loaded, the test fails.
    """
    try:
        return load(name)
    except DataError as error:
        told = "EQPROP_DATA" in os.environ  # the only place to look
        if not told and any(_answers(fetch) for _, fetch in KNOWN_SETS[name].sources()):
            raise
        pytest.skip(str(error))


def _answers(fetch: Callable[[], object]) -> bool:
    try:
        fetch()
    except DataError:
        return False
    return True
