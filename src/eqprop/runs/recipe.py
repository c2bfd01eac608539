"""Recipes: a training run as one small TOML file, with one table per part."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import torch
from torch import Tensor

from eqprop import memory
from eqprop.engines import make_engine
from eqprop.rules import Rule
from eqprop.runs.combinations import COMBINATIONS
from eqprop.runs.parts import (
    DataPart,
    Member,
    NetworkPart,
    NudgingPart,
    Part,
    Positive,
    RulePart,
    UpdatePart,
)


class UserError(ValueError):
    """Invalid input. The message is one line that names the field and the remedy."""


class Recipe(Part, frozen=True, kw_only=True):
    """Everything that determines the numbers of a run. Layers and rates go input → output.

    β and the angle may be lists, and learning rates a list of lists. Each value then has its own
    members. `combine` says how the values combine.
    """

    name: str
    description: str = ""
    epochs: Positive
    batch: Positive = 20
    seeds: Positive = 5
    seed: int = 0
    combine: str = "product"
    network: NetworkPart
    rule: RulePart
    nudging: NudgingPart | None = None  # bptt and rbp have none
    update: UpdatePart
    data: DataPart = DataPart()

    def __post_init__(self) -> None:
        self.require("combine", COMBINATIONS)

    @property
    def folder_name(self) -> str:
        """The name, with special characters replaced by "-"."""
        return re.sub(r"[^\w.-]", "-", self.name)

    @property
    def swept(self) -> dict[str, tuple[Any, ...]]:
        """The values of each field that may differ between members. The last varies fastest."""
        return {
            "learning_rates": self.update.settings,
            "beta": _each(self.nudging.beta if self.nudging else None),
            "angle": _each(self.network.angle),
        }

    def members(self) -> tuple[Member, ...]:
        """Return every setting with every seed. The seed varies fastest."""
        count = COMBINATIONS[self.combine].count(self.swept) * self.seeds
        size = self.network.size
        memory.require(4 * size * count, f"{count} networks of {size} parameters each")
        return tuple(
            Member(seed, beta, angle, rates)
            for rates, beta, angle in COMBINATIONS[self.combine].settings(self.swept)
            for seed in range(self.seed, self.seed + self.seeds)
        )

    def learning_rule(self, members: Sequence[Member]) -> Rule:
        return self.rule.build(self.nudging.build(members) if self.nudging else None)

    def rates(self, members: Sequence[Member]) -> list[Tensor]:
        """Return the learning rate of each synapse, one tensor [E]: that of its layer."""
        table = torch.tensor([member.learning_rates for member in members], dtype=torch.float64)
        return [table[:, k] for k in self.network.leads_to]

    def settings(self) -> dict[str, list[int]]:
        """Return the members of each setting, by a label of the values that vary: "β = 0.2".

        The members of one setting differ only in their seed.
        """
        written = [
            (
                f"β = {member.beta}",
                f"Ψ = {member.angle:.12g}°",
                f"η = ({', '.join(f'{rate:.12g}' for rate in member.learning_rates)})",
            )
            for member in self.members()
        ]
        varied = [len(set(field)) > 1 for field in zip(*written, strict=True)]
        groups: dict[str, list[int]] = {}
        for i, each in enumerate(written):
            groups.setdefault(", ".join(itertools.compress(each, varied)), []).append(i)
        return groups

    def values(self) -> dict[str, Any]:
        """Return the fields that are set as plain values, by path: "rule.free_steps"."""
        found = {}
        for key, value in msgspec.to_builtins(self).items():
            for path, inner in _inner(key, value):
                if inner is not None:
                    found[path] = inner
        return found

    def to_toml(self) -> str:
        lines, table = [], ""
        for path, value in self.values().items():
            *within, field = path.split(".")
            if within and within[0] != table:
                table = within[0]
                lines.append(f"\n[{table}]")
            lines.append(f"{field} = {_toml(value)}")
        return "\n".join(lines) + "\n"

    def differences(self, other: Recipe) -> list[str]:
        """Return the fields that differ and change the numbers."""
        mine, theirs = self._numbers(), other._numbers()
        return [path for path in FIELDS if mine.get(path) != theirs.get(path)]

    def determining(self) -> dict[str, Any]:
        """Return the fields that change the numbers and are not the default, by their flat names.

        The hashes of run folders start from these.
        """
        found = {SHORT[path]: value for path, value in self._numbers().items()}
        if found.get("nudging") == "random-sign":
            del found["nudging"]
            found["random_sign"] = True
        return found

    def _numbers(self) -> dict[str, Any]:
        """Return the values that change the numbers of an epoch and are not the default."""
        free = ["name", "description"]
        free += ["epochs"] * (self.update.schedule is None)  # a schedule depends on the length
        return {
            path: value
            for path, value in self.values().items()
            if path not in free and value != DEFAULTS[path]
        }


# The fields that may be lists, with one value per setting.
OF_MEMBERS = ("update.learning_rates", "nudging.beta", "network.angle")
_TOP: dict[str, type[Part]] = {"": Recipe}
TABLES: dict[str, type[Part]] = {
    "network": NetworkPart,
    "rule": RulePart,
    "nudging": NudgingPart,
    "update": UpdatePart,
    "data": DataPart,
}
_INFO = {
    f"{table}.{field.name}" if table else field.name: field
    for table, part in (_TOP | TABLES).items()
    for field in msgspec.structs.fields(part)
    if table or field.name not in TABLES
}
FIELDS = {path: field.type for path, field in _INFO.items()}
DEFAULTS = {path: field.default for path, field in _INFO.items()}
# The flat name of each field, for old files and the command line.
SHORT = {path: path.rpartition(".")[2] for path in FIELDS}
SHORT |= {"rule.name": "rule", "data.name": "data", "nudging.kind": "nudging"}
PATHS = {short: path for path, short in SHORT.items()}


def _inner(key: str, value: Any) -> list[tuple[str, Any]]:
    """Return the fields of a table by path, or the field itself."""
    if key in TABLES and isinstance(value, Mapping):
        return [(f"{key}.{field}", inner) for field, inner in value.items()]
    return [(PATHS.get(key, key), value)]


def _each(swept: Any) -> tuple[Any, ...]:
    return swept if isinstance(swept, tuple) else (swept,)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


# Reading


def names() -> list[str]:
    """Return the names of the recipes in the package."""
    folder = resources.files("eqprop") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def load(source: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Load a recipe and replace some of its fields.

    Args:
        source: a name from `names()`, or a TOML file.
        overrides: fields with or without their table, {"rule.free_steps": 30, "beta": 0.3}.
            Default None: none.
    """
    return parse(fields(source, overrides), source)


def fields(source: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what `load` reads as plain values by path, without the checks of `parse`."""
    path = Path(source)
    if source in names():
        content = (resources.files("eqprop") / "recipes" / f"{source}.toml").read_bytes()
    elif path.suffix == ".toml" and path.is_file():
        content = path.read_bytes()
    else:
        close = difflib.get_close_matches(source, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "see `eqprop recipes`"
        raise UserError(f"recipe {source!r} is neither a known name nor a .toml file: {hint}")
    return _fields(content, source) | by_path(overrides or {}, source)


def from_toml(content: bytes, source: str) -> Recipe:
    return parse(_fields(content, source), source)


def _fields(content: bytes, source: str) -> dict[str, Any]:
    name = Path(source).name.removesuffix(".toml")
    try:
        return by_path({"name": name, **tomllib.loads(content.decode())}, source)
    except UserError:
        raise
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise UserError(f"{source}: not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{source}: not valid TOML: nested too deeply") from None


def changed(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """Return a recipe with some fields replaced, after all checks."""
    return parse(recipe.values() | by_path(overrides, recipe.name), recipe.name)


def by_path(given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return values by path, from tables or from the flat fields of old files."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key == "random_sign":
            if not isinstance(value, bool):
                raise UserError(f"{source}: random_sign must be true or false, not {value!r}")
            found["nudging.kind"] = "random-sign" if value else "one-sided"
        else:
            found |= _inner(key, value)
    for path in found:
        if path not in FIELDS:
            known = [*FIELDS, *PATHS]
            close = difflib.get_close_matches(path, known, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(FIELDS)}"
            raise UserError(f"{source}: unknown field {path!r}: {hint}")
    return {path: None if _unsets(path, value) else value for path, value in found.items()}


def _unsets(path: str, value: Any) -> bool:
    """Return whether a value unsets an optional field: "none", because TOML has no null."""
    return value == "none" and (path == "nudging.beta" or DEFAULTS.get(path, "") is None)


def parse(given: dict[str, Any], source: str) -> Recipe:
    """Return the recipe of plain values by path, after all checks."""
    tables: dict[str, Any] = {table: {} for table in TABLES}
    for path, value in given.items():
        _check_numbers(source, path, value)
        table, _, field = path.rpartition(".")
        (tables[table] if table else tables)[field] = value
    if tables["nudging"].get("beta") is None:  # nothing to nudge with
        del tables["nudging"]
    try:
        recipe: Recipe = msgspec.convert(tables, Recipe)
        _check(recipe)
    except msgspec.ValidationError as error:
        raise UserError(f"{source}: {_explained(str(error), tables)}") from None
    except memory.NotEnoughMemory:
        raise
    except ValueError as error:  # from the core: it names the field
        raise UserError(f"{source}: {_with_table(str(error))}") from None
    return recipe


def _check_numbers(source: str, path: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{source}: {path} must be finite, not {value!r}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UserError(f"{source}: {path} must lie below 2⁶³")
    for inner in value if isinstance(value, (list, tuple)) else ():
        _check_numbers(source, path, inner)


def _check(recipe: Recipe) -> None:
    """Raise unless the parts fit each other."""
    rule, network, update = recipe.rule, recipe.network, recipe.update
    for key, name in (("name", recipe.name), ("data.name", recipe.data.name)):
        if not any(map(str.isalnum, name)) or set(name) & set("/\\") or not name.isprintable():
            raise ValueError(f"{key} needs a letter or digit, and no / or \\, not {name!r}")
    if rule.nudged and recipe.nudging is None:
        raise ValueError(f"rule {rule.name} needs nudging.beta")
    if recipe.nudging and not rule.nudged:
        raise ValueError(f"rule {rule.name} does not use nudging: leave it out (beta=none)")
    COMBINATIONS[recipe.combine].check(recipe.swept)
    needed = len(network.after_input)
    for rates in update.settings:
        if len(rates) != needed:
            raise ValueError(
                f"learning_rates needs {needed} entries, input to output, not {len(rates)}"
            )
    recipe.data.augmentation.check(network.input_shape)
    members = recipe.members()
    built = recipe.learning_rule(members)
    if not (network.tied or built.vector_field or built.nudging is None):
        raise ValueError(f"rule {rule.name} needs tied weights: use vf or continual-vf")
    small = network.smallest.build(members)  # its engine checks the rest, for any update
    make_engine(small, built, recipe.rates(members), "reference", frozen=update.frozen)


# Words


_WORDS = {
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a table",
}


def _explained(error: str, given: Mapping[str, Any]) -> str:
    """Return an error of msgspec in plain words: the field, what it must be, and what it is."""
    text, _, place = error.partition(" - at `$")
    path = place.strip(".`")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return f"field {'.'.join(filter(None, (path, missing[1])))!r} is missing"
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"unknown field {f'{path}.{unknown[1]}'!r}: see docs/runs.md for those of a layer"
    if expected := re.match(r"Expected `([^`]+)`(?:, got.*)?", text):
        value: Any = given
        for step in re.findall(r"\w+", path):
            value = value[int(step) if step.isdecimal() else step]
        kinds = [_WORDS[kind] for kind in expected[1].split(" | ") if kind != "null"]
        return f"{path} must be {' or '.join(kinds)}{text[expected.end() :]}, not {value!r}"
    return _with_table(text, path)


def _with_table(message: str, table: str = "") -> str:
    """Return a message that starts with the name of a field, with the field's table added."""
    word = re.match(r"\w*", message)
    name = word[0] if word else ""
    path = f"{table}.{name}" if f"{table}.{name}" in FIELDS else PATHS.get(name, name)
    return message if name in TABLES and not table else path + message[len(name) :]


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `field=value` of the command line; return the field and its value.

    Commas make a list, semicolons a list of lists. Text needs no quotes. `none` unsets an optional
    field.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--set {text!r}: write it as field=value, for example beta=0.3")
    key, value = key.strip(), value.strip()
    path = PATHS.get(key, key)
    kind = FIELDS.get(path)
    if _unsets(path, value):
        return key, None
    if kind in (str, str | None):
        return key, value
    if value.startswith("[") and isinstance(read := _scalar(value), list):
        return key, read
    if ";" in value:
        return key, [[_scalar(v) for v in part.split(",")] for part in value.split(";")]
    if "," in value or _is_list(kind):
        return key, [_scalar(v) for v in value.strip("[] ").split(",") if v.strip()]
    return key, _scalar(value)


def _is_list(kind: Any) -> bool:
    return tuple in (get_origin(kind), *map(get_origin, get_args(kind)[:1]))


def _scalar(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text.strip()}")["v"]
    except (ValueError, RecursionError):  # TOMLDecodeError, or more digits than Python reads
        return text.strip()
