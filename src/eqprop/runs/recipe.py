"""Recipes: a training run as one small, flat, typed TOML file."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from eqprop import memory
from eqprop.activations import ACTIVATIONS
from eqprop.engines import resolve_rates
from eqprop.network import Network, layered
from eqprop.rules import BPTT, EP, RBP, VF, ContinualEP, ContinualVF, Rule
from eqprop.synapses import INITS
from eqprop.timesteps import Discrete, RealTime
from eqprop.update_slope import UpdateSlope

RULES = ("ep", "continual-ep", "vf", "continual-vf", "bptt", "rbp")
TIMES = ("discrete", "real-time")
# What a rule, or a time, has no use for must be left at its default.
UNUSED = {
    "ep": ("rescale", "update_slope"),
    "continual-ep": ("update_slope",),
    "vf": ("rescale",),
    "bptt": ("beta", "random_sign", "rescale", "in_turn", "tolerance", "update_slope"),
    "rbp": ("beta", "random_sign", "rescale", "update_slope"),
    "discrete": ("dt", "slope"),
    "real-time": ("update_slope",),
}


class UserError(ValueError):
    """Something only the user can mend: one line that names the field and the remedy."""


@dataclass(frozen=True)
class Member:
    """What may differ between the networks that one run trains as an ensemble."""

    seed: int
    beta: float | None
    angle: float
    learning_rates: tuple[float, ...]


@dataclass(frozen=True)
class Recipe:
    """Everything that determines the numbers of a run. Layers and rates go input → output.

    `beta`, `angle` and `learning_rates` may be lists (of lists): each value makes members.
    """

    name: str
    description: str
    # network
    layers: tuple[int, ...]
    tied: bool
    # rule: K is `nudged_steps`, for bptt and rbp the steps backward
    rule: str
    free_steps: int
    nudged_steps: int
    # training
    learning_rates: tuple[float, ...] | tuple[tuple[float, ...], ...]
    epochs: int
    time: str = "discrete"
    dt: float = 0.08
    slope: str = "all"
    activation: str = "sigmoid"
    bias: bool = True
    init: str = "fan_in"
    angle: float | tuple[float, ...] = 0.0
    beta: float | tuple[float, ...] | None = None
    random_sign: bool = False
    in_turn: bool = False
    tolerance: float | None = None
    rescale: float | None = None
    update_slope: str = "none"
    frozen: tuple[str, ...] = ()
    batch: int = 20
    seeds: int = 5
    seed: int = 0
    data: str = "mnist"
    train_samples: int | None = None
    test_samples: int | None = None

    def members(self) -> tuple[Member, ...]:
        """Every combination of the swept values, each with every seed, seeds fastest."""
        betas = self.beta if isinstance(self.beta, tuple) else (self.beta,)
        angles = self.angle if isinstance(self.angle, tuple) else (self.angle,)
        nested = isinstance(self.learning_rates[0], tuple)
        rates: Any = self.learning_rates if nested else (self.learning_rates,)
        seeds = range(self.seed, self.seed + self.seeds)
        count = len(rates) * len(betas) * len(angles) * len(seeds)
        weights = sum(a * b for a, b in pairwise(self.layers))
        memory.require(4 * weights * count, f"{count} networks of {weights} weights each")
        return tuple(
            Member(seed, beta, angle, rate)
            for rate, beta, angle, seed in itertools.product(rates, betas, angles, seeds)
        )

    def network(self, members: Sequence[Member], dtype: torch.dtype = torch.float32) -> Network:
        """The members as one ensemble [E]."""
        return layered(
            *self.layers,
            tied=self.tied,
            time=Discrete() if self.time == "discrete" else RealTime(self.dt, self.slope),
            activation=self.activation,
            bias=self.bias,
            init=self.init,
            angle=0.0 if self.tied else [member.angle for member in members],
            ensemble=(len(members),),
            seed=[member.seed for member in members],
            dtype=dtype,
        )

    def learning_rule(self, members: Sequence[Member]) -> Rule:
        T, K = self.free_steps, self.nudged_steps
        if self.rule == "bptt":
            return BPTT(free_steps=T, backward_steps=K)
        if self.rule == "rbp":
            return RBP(
                free_steps=T,
                backward_steps=K,
                tolerance=self.tolerance,
                in_turn=self.in_turn,
            )
        shared: dict[str, Any] = {
            "beta": torch.tensor([member.beta for member in members], dtype=torch.float64),
            "free_steps": T,
            "nudged_steps": K,
            "tolerance": self.tolerance,
            "in_turn": self.in_turn,
            "random_sign": self.random_sign,
        }
        if self.rule == "ep":
            return EP(**shared)
        if self.rule == "continual-ep":
            return ContinualEP(**shared, rescale=self.rescale)
        if self.rule == "vf":
            return VF(**shared, update_slope=self.update_slope)
        return ContinualVF(**shared, rescale=self.rescale, update_slope=self.update_slope)

    def rates(self, members: Sequence[Member]) -> list[torch.Tensor]:
        """The learning rate of each synapse, [E]."""
        table = [member.learning_rates for member in members]
        return list(torch.tensor(table, dtype=torch.float64).unbind(-1))

    def uses(self, field: str) -> bool:
        """Whether the field has a meaning for this rule and this time."""
        return field not in (*UNUSED.get(self.rule, ()), *UNUSED.get(self.time, ()))

    def to_toml(self) -> str:
        lines = []
        for key, value in asdict(self).items():
            if value is not None:
                lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"

    def settings(self) -> dict[str, list[int]]:
        """The members that differ in their seed alone, by what tells them from the others."""
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

    def differences(self, other: Recipe) -> list[str]:
        """The fields in which two recipes differ, but for those that do not change the numbers."""
        mine, theirs = asdict(self), asdict(other)
        return [key for key in mine if key not in FREE and mine[key] != theirs[key]]

    def determining(self) -> dict[str, Any]:
        """The fields that change the numbers, but for those that have their default."""
        given = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        return {key: v for key, v in given.items() if key not in FREE and v != defaults[key]}


FREE = ("name", "description", "epochs")  # what does not change the numbers of an epoch
_TYPES = {field.name: str(field.type) for field in fields(Recipe)}


def names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("eqprop") / "recipes"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def load(source: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe by its name, or from a TOML file, with some fields replaced."""
    path = Path(source)
    if source in names():
        content = (resources.files("eqprop") / "recipes" / f"{source}.toml").read_bytes()
    elif path.suffix == ".toml" and path.is_file():
        content = path.read_bytes()
    else:
        close = difflib.get_close_matches(source, names(), n=1)
        hint = f"did you mean {close[0]}?" if close else "see `eqprop recipes`"
        raise UserError(f"recipe {source!r} is neither a known name nor a .toml file: {hint}")
    return from_toml(content, source, overrides)


def from_toml(content: bytes, source: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    name = Path(source).name.removesuffix(".toml")
    try:
        given = tomllib.loads(content.decode())
        return parse({"name": name, "description": "", **given, **(overrides or {})}, source)
    except UserError:
        raise
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        raise UserError(f"{source}: not valid TOML: {error}") from None
    except RecursionError:
        raise UserError(f"{source}: not valid TOML: nested too deeply") from None


def changed(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe with some fields replaced, and checked again."""
    return parse({**asdict(recipe), **overrides}, recipe.name)


def parse(given: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from plain values, each checked against the type of its field."""
    for key in given:
        if key not in _TYPES:
            close = difflib.get_close_matches(key, _TYPES, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(_TYPES)}"
            raise UserError(f"{source}: unknown field {key!r}: {hint}")
    required = [f.name for f in fields(Recipe) if f.default.__class__.__name__ == "_MISSING_TYPE"]
    for key in required:
        if key not in given:
            raise UserError(f"{source}: field {key!r} is missing")
    values = {key: _convert(source, key, _TYPES[key], value) for key, value in given.items()}
    recipe = Recipe(**values)
    _check(source, recipe)
    return recipe


def _convert(source: str, key: str, expected: str, value: Any) -> Any:
    """`value` as one of the types that `expected` lists, "float | tuple[float, ...] | None"."""
    for kind in expected.split(" | "):
        try:
            return _CONVERTERS[kind](value)
        except TypeError:
            continue
        except OverflowError:
            raise UserError(f"{source}: {key} must lie below 2⁶³") from None
        except ArithmeticError:
            raise UserError(f"{source}: {key} must be finite, not {value!r}") from None
    words = expected.replace("tuple[", "list of ").replace(", ...]", "").replace(" | None", "")
    words = words.replace("bool", "true or false")
    raise UserError(f"{source}: {key} must be {words.replace(' | ', ' or ')}, not {value!r}")


def _exactly(*types: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TypeError
        if isinstance(value, float) and not math.isfinite(value):
            raise ArithmeticError
        if isinstance(value, int) and abs(value) >= 2**63:
            raise OverflowError
        return value if value is None else types[0](value)

    return convert


def _tuple_of(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or (not value and item is not _CONVERTERS["str"]):
            raise TypeError
        return tuple(item(v) for v in value)

    return convert


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "int": _exactly(int),
    "bool": _exactly(bool),
    "str": _exactly(str),
    "float": _exactly(float, int),
}
_CONVERTERS |= {f"tuple[{k}, ...]": _tuple_of(_CONVERTERS[k]) for k in ("int", "float", "str")}
_CONVERTERS["tuple[tuple[float, ...], ...]"] = _tuple_of(_CONVERTERS["tuple[float, ...]"])
_CONVERTERS["None"] = _exactly(type(None))


def _check(source: str, recipe: Recipe) -> None:
    for key, allowed in (
        ("rule", RULES),
        ("time", TIMES),
        ("activation", ACTIVATIONS),
        ("init", INITS),
        ("update_slope", tuple(UpdateSlope)),
    ):
        if getattr(recipe, key) not in allowed:
            raise UserError(
                f"{source}: {key} {getattr(recipe, key)!r} is unknown: "
                f"choose one of {', '.join(allowed)}"
            )
    for key in ("name", "data"):
        name = getattr(recipe, key)
        if not any(map(str.isalnum, name)) or set(name) & set("/\\") or not name.isprintable():
            raise UserError(
                f"{source}: {key} needs a letter or digit, and no / or \\, not {name!r}"
            )
    for key in ("epochs", "batch", "seeds", "train_samples", "test_samples"):
        value = getattr(recipe, key)
        if value is not None and value < 1:
            raise UserError(f"{source}: {key} must be 1 or more, not {value}")
    if len(recipe.layers) < 2:
        raise UserError(f"{source}: layers must name an input and an output, not {recipe.layers}")
    if recipe.in_turn and recipe.free_steps < 2:
        raise UserError(f"{source}: free_steps must be 2 or more with in_turn")
    if recipe.beta is None and recipe.rule not in ("bptt", "rbp"):
        raise UserError(f"{source}: rule {recipe.rule} needs beta")
    if recipe.tied and recipe.angle != 0.0:
        raise UserError(f"{source}: angle needs untied weights: set tied=false")
    if not recipe.tied and recipe.rule in ("ep", "continual-ep"):
        raise UserError(f"{source}: rule {recipe.rule} needs tied weights: use vf or continual-vf")
    for key in ("beta", "angle", "learning_rates"):
        values = getattr(recipe, key)
        swept = isinstance(values, tuple)
        if key == "learning_rates":
            swept = isinstance(values[0], tuple)
        twice = [value for value in values if values.count(value) > 1] if swept else []
        if twice:
            raise UserError(
                f"{source}: {key} names {twice[0]} twice: equal settings train the same networks; "
                "use seeds for more of them"
            )
    members = recipe.members()
    try:  # the core checks the rest; its errors name the field
        RealTime(recipe.dt, recipe.slope)
        _check_used(recipe)
        for member in members:
            if member.beta == 0:
                raise ValueError("beta must not be 0: there would be no second phase")
            if len(member.learning_rates) != len(recipe.layers) - 1:
                raise ValueError(
                    f"learning_rates needs {len(recipe.layers) - 1} entries, input to output, "
                    f"not {len(member.learning_rates)}"
                )
        recipe.learning_rule(members)
        small = replace(recipe, layers=tuple(min(n, 2) for n in recipe.layers))
        resolve_rates(small.network(members), recipe.rates(members), recipe.frozen)
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None


def _check_used(recipe: Recipe) -> None:
    for key, choices in (("rule", RULES), ("time", TIMES)):
        chosen = getattr(recipe, key)
        idle = [f for f in UNUSED.get(chosen, ()) if getattr(recipe, f) != getattr(Recipe, f)]
        if idle:
            neutral = ", ".join(f"{f}={getattr(Recipe, f)}".lower() for f in idle)
            users = [c for c in choices if not set(idle) & set(UNUSED.get(c, ()))]
            raise ValueError(
                f"{key} {chosen} does not use {', '.join(idle)}: "
                f"go without ({neutral}), or choose {key} {' or '.join(users)}"
            )


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` of the command line. Commas make a list, semicolons a list of lists.

    Text is taken as it stands; `none` unsets a field that may be left out.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--set {text!r}: write it as field=value, for example beta=0.3")
    key, value = key.strip(), value.strip()
    kind = _TYPES.get(key, "")
    if kind == "str":
        return key, value
    if value == "none" and kind.endswith(" | None"):
        return key, None
    if ";" in value:
        return key, [[_scalar(v) for v in part.split(",")] for part in value.split(";")]
    if "," in value or kind.startswith("tuple"):
        return key, [_scalar(v) for v in value.strip("[] ").split(",") if v.strip()]
    return key, _scalar(value)


def _scalar(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text.strip()}")["v"]
    except (ValueError, RecursionError):  # TOMLDecodeError, or more digits than Python reads
        return text.strip()
