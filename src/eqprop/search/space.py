"""Search spaces: the fields of a recipe that a search varies, each with a range or choices."""

from __future__ import annotations

import difflib
import json
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from eqprop.runs import Recipe, UserError
from eqprop.runs import recipe as recipes

FORMS = "give a range {low = 0.1, high = 1.0}, or a list of choices"
# These set the amount of training, and the data that trials are compared on.
NOT_SEARCHED = (
    *("name", "description", "epochs", "seeds", "seed", "combine"),
    *("data.name", "data.train_samples", "data.test_samples", "data.validation"),
)


class Dimension(ABC):
    """The values of one field, as parameters of Optuna."""

    @abstractmethod
    def parameters(self, name: str) -> dict[str, BaseDistribution]:
        """Return the distributions that Optuna draws from. Their names start with `name`."""

    @abstractmethod
    def value(self, name: str, proposed: Mapping[str, Any]) -> Any:
        """Return the value of the field `name` for a proposal."""

    @abstractmethod
    def extremes(self) -> list[Any]:
        """Return the values to check: if they are valid, all are."""


@dataclass(frozen=True)
class Range(Dimension):
    """Numbers from low to high; integers if low and high are integers."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        numbers = {"low": self.low, "high": self.high, "step": self.step}
        for key, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float, type(None))):
                raise ValueError(f"{key} must be a number, not {number!r}")
        if not isinstance(self.log, bool):
            raise ValueError(f"log must be true or false, not {self.log!r}")
        if not self.low < self.high < float("inf"):
            raise ValueError(f"low must be below high, not {self.low!r} and {self.high!r}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log needs low above 0 and no step")
        if self.step is not None:
            width = Decimal(str(self.high)) - Decimal(str(self.low))
            if self.step <= 0 or width % Decimal(str(self.step)):
                raise ValueError(f"step {self.step!r} must divide high − low, {width}")

    def parameters(self, name: str) -> dict[str, BaseDistribution]:
        low, high, step = self.low, self.high, self.step
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, (int, type(None))):
            return {name: IntDistribution(low, high, self.log, step or 1)}
        return {name: FloatDistribution(low, high, self.log, step)}

    def value(self, name: str, proposed: Mapping[str, Any]) -> Any:
        return proposed[name]

    def extremes(self) -> list[Any]:
        return [self.low, self.high]


@dataclass(frozen=True)
class Choice(Dimension):
    """A choice of values. Optuna gets lists and tables as JSON."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self._by_label()) < max(2, len(self.values)):
            raise ValueError("choices must be two or more, and differ")

    def _by_label(self) -> dict[Any, Any]:
        return {json.dumps(it) if isinstance(it, (list, dict)) else it: it for it in self.values}

    def parameters(self, name: str) -> dict[str, BaseDistribution]:
        return {name: CategoricalDistribution(tuple(self._by_label()))}

    def value(self, name: str, proposed: Mapping[str, Any]) -> Any:
        return self._by_label()[proposed[name]]

    def extremes(self) -> list[Any]:
        return list(self.values)


@dataclass(frozen=True)
class Entries(Dimension):
    """A list whose entries are ranges or fixed numbers."""

    entries: tuple[Range | float, ...]

    def _ranges(self, name: str) -> dict[str, Range]:
        named = ((f"{name}[{i}]", entry) for i, entry in enumerate(self.entries))
        return {key: entry for key, entry in named if isinstance(entry, Range)}

    def parameters(self, name: str) -> dict[str, BaseDistribution]:
        found: dict[str, BaseDistribution] = {}
        for key, entry in self._ranges(name).items():
            found |= entry.parameters(key)
        return found

    def value(self, name: str, proposed: Mapping[str, Any]) -> Any:
        return [proposed.get(f"{name}[{i}]", entry) for i, entry in enumerate(self.entries)]

    def extremes(self) -> list[Any]:
        ends = [it.extremes() if isinstance(it, Range) else [it, it] for it in self.entries]
        return [list(each) for each in zip(*ends, strict=True)]


@dataclass(frozen=True)
class Space:
    """The dimensions of a search.

    Args:
        source: name or file of the space.
        content: its TOML.
        dimensions: {path of a field: dimension}, with paths such as "nudging.beta".
    """

    source: str
    content: str
    dimensions: dict[str, Dimension]

    def parameters(self) -> dict[str, BaseDistribution]:
        """Return the distributions of all parameters that Optuna proposes."""
        found: dict[str, BaseDistribution] = {}
        for path, dimension in self.dimensions.items():
            found |= dimension.parameters(path)
        return found

    def overrides(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a recipe that a proposal replaces."""
        return {path: it.value(path, proposed) for path, it in self.dimensions.items()}

    def check(self, recipe: Recipe) -> None:
        """Raise unless the recipe is valid with each value alone."""
        for path, dimension in self.dimensions.items():
            for value in dimension.extremes():
                try:
                    recipes.changed(recipe, {path: value})
                except UserError as error:
                    reason = str(error).removeprefix(f"{recipe.name}: ")
                    raise UserError(f"{self.source}: {path} = {value}: {reason}") from None


def names() -> list[str]:
    """Return the names of the spaces in the package."""
    folder = resources.files("eqprop") / "search" / "spaces"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def load(source: str) -> Space:
    """Load a space by its name, or from a TOML file."""
    path = Path(source)
    try:
        if source in names():
            folder = resources.files("eqprop") / "search" / "spaces"
            return parse((folder / f"{source}.toml").read_text(encoding="utf-8"), source)
        if path.suffix == ".toml" and path.is_file():
            return parse(path.read_text(encoding="utf-8"), source)
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not valid TOML: {error}") from None
    close = difflib.get_close_matches(source, names(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names())}"
    raise UserError(f"space {source!r} is neither a known name nor a .toml file: {hint}")


def parse(content: str, source: str) -> Space:
    """Parse a space from TOML. Fields have tables or not, as in a recipe."""
    try:
        given = tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: not valid TOML: {error}") from None
    found = {}
    for path, value in recipes.by_path(given, source).items():
        if path in NOT_SEARCHED:
            raise UserError(f"{source}: {path} cannot be searched: set it with --set")
        try:
            found[path] = _dimension(value)
        except ValueError as error:
            raise UserError(f"{source}: {path}: {error}") from None
    if not found:
        raise UserError(f"{source}: names no field: for example nudging.beta = {FORMS[13:39]}")
    return Space(source, content, found)


def _dimension(value: Any) -> Dimension:
    if isinstance(value, dict):
        return _range(value)
    if not isinstance(value, list):
        raise ValueError(f"{FORMS}; a value that stays belongs in the recipe: use --set")
    if any(map(_is_range, value)):
        return Entries(tuple(_range(it) if _is_range(it) else it for it in value))
    return Choice(tuple(value))


def _is_range(value: Any) -> bool:
    return isinstance(value, dict) and bool({"low", "high"} & {*value})


def _range(value: dict[str, Any]) -> Range:
    unknown = {*value} - {"low", "high", "log", "step"}
    if unknown or not {"low", "high"} <= {*value}:
        raise ValueError("a range has low and high, and may have log = true or step")
    return Range(**value)
