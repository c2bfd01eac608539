"""Combinations of the swept values of a recipe into settings: a product, or a zip."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Swept = Mapping[str, Sequence[Any]]  # field -> its values, at least one
Settings = Iterable[tuple[Any, ...]]  # per setting, one value per field


class Combination(ABC):
    """Combines swept values into settings."""

    @abstractmethod
    def count(self, swept: Swept) -> int:
        """Return the number of settings."""

    @abstractmethod
    def settings(self, swept: Swept) -> Settings:
        """Return the settings, each with one value per field."""

    @abstractmethod
    def check(self, swept: Swept) -> None:
        """Raise if two settings are equal, or if the lengths of the lists do not match."""


class Product(Combination):
    """Every value with every other, the last field fastest."""

    def count(self, swept: Swept) -> int:
        return math.prod(map(len, swept.values()))

    def settings(self, swept: Swept) -> Settings:
        return itertools.product(*swept.values())

    def check(self, swept: Swept) -> None:
        for field, values in swept.items():
            _refuse_twice(field, values)


class Zip(Combination):
    """The i-th values of all lists together. All settings share a single value."""

    def count(self, swept: Swept) -> int:
        return max(map(len, swept.values()))

    def settings(self, swept: Swept) -> Settings:
        count = self.count(swept)
        return zip(*(list(v) * (count if len(v) == 1 else 1) for v in swept.values()), strict=True)

    def check(self, swept: Swept) -> None:
        lengths = {field: len(values) for field, values in swept.items() if len(values) > 1}
        if len({*lengths.values()}) > 1:
            told = ", ".join(f"{field} has {length}" for field, length in lengths.items())
            raise ValueError(f"combine zip needs lists of one length, but {told}")
        _refuse_twice("combine zip", list(self.settings(swept)))


def _refuse_twice(field: str, values: Sequence[Any]) -> None:
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ValueError(
            f"{field} names {twice[0]} twice: equal settings train the same networks; use seeds "
            "for more of them"
        )


COMBINATIONS: dict[str, Combination] = {"product": Product(), "zip": Zip()}
