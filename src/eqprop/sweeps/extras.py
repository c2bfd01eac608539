"""Packages that only some commands need."""

from __future__ import annotations

import importlib
from typing import Any

from eqprop.runs.recipe import UserError


class Missing(UserError):
    """A package is not installed, but all else can be done."""


def pyarrow() -> Any:
    """pyarrow with its Parquet module."""
    _module("pyarrow.parquet", "tables as Parquet need pyarrow")
    return importlib.import_module("pyarrow")


def ray() -> Any:
    return _module("ray", "--on ray needs Ray")


def _module(name: str, need: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Missing(f"{need}: pip install 'eqprop[ray]'") from None
