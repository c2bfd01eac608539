"""Optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from eqprop.runs.recipe import UserError


class Missing(UserError):
    """An optional package is not installed."""


def pyarrow() -> Any:
    """Return pyarrow with its Parquet module."""
    _module("pyarrow.parquet", "tables as Parquet need pyarrow")
    return importlib.import_module("pyarrow")


def ray() -> Any:
    return _module("ray", "--on ray needs Ray")


def _module(name: str, need: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Missing(f"{need}: pip install 'eqprop[ray]'") from None
