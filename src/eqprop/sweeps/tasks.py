"""Tasks: the recipes of a sweep, packed into as few ensembles as possible.

Networks that differ only in learning rates, β, angle and seed can train as one ensemble. A recipe
holds every combination of its lists, so each ensemble must be such a product.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eqprop.runs import recipe as recipes
from eqprop.runs.recipe import Recipe, UserError

AXES = ("rates", "betas", "angles", "seeds")
FIELDS = (*recipes.OF_MEMBERS, "seed", "seeds")  # may differ within an ensemble


@dataclass(frozen=True)
class Task:
    """One recipe that trains as one ensemble, in one run folder.

    Args:
        name: name of the run folder.
        label: the values in which the task differs from others of the sweep, as text.
        recipe: the recipe.
    """

    name: str
    label: str
    recipe: Recipe

    @property
    def networks(self) -> int:
        return len(self.recipe.members())


@dataclass(frozen=True)
class _Product:
    """Every combination of the values on four axes. All other fields are equal."""

    rest: str  # all other fields
    rates: tuple[tuple[float, ...], ...]
    betas: tuple[float | None, ...]
    angles: tuple[float, ...]
    seeds: tuple[int, ...]  # consecutive

    @classmethod
    def of(cls, recipe: Recipe) -> _Product:
        members = recipe.members()
        axes = zip(*((m.learning_rates, m.beta, m.angle, m.seed) for m in members), strict=True)
        rest = {path: v for path, v in recipe.values().items() if path not in FIELDS}
        return cls(json.dumps(rest), *(tuple(dict.fromkeys(axis)) for axis in axes))

    @property
    def size(self) -> int:
        return math.prod(len(getattr(self, axis)) for axis in AXES)

    def along(self, axis: str, values: tuple[Any, ...]) -> _Product:
        """Return the same product with other values on one axis."""
        change: dict[str, Any] = {axis: values}
        return replace(self, **change)

    def recipe(self, base: Recipe) -> Recipe:
        """Return `base` with these values. A list of one becomes a plain value."""
        values = (self.rates, self.betas, self.angles)
        fields: dict[str, Any] = {
            path: _plain(value) for path, value in zip(recipes.OF_MEMBERS, values, strict=True)
        }
        fields |= {"seed": self.seeds[0], "seeds": len(self.seeds), "combine": "product"}
        made = recipes.changed(base, fields)
        assert len(made.members()) == self.size
        return made


def pack(asked: Sequence[Recipe], limit: int | None = None) -> list[Task]:
    """Return the tasks of a sweep, each with at most `limit` networks. Default None: no limit."""
    if limit is not None and limit < 1:
        raise UserError(f"--pack must be 1 or more, not {limit}")
    bases: dict[str, Recipe] = {}
    products: list[_Product] = []
    whole: list[Recipe] = []  # recipes that are no product stay as they are
    for recipe in asked:
        product = _Product.of(recipe)
        if product.size == len(recipe.members()):
            bases.setdefault(product.rest, recipe)
            products.append(product)
        else:
            whole.append(recipe)
    _refuse_twice(products)
    for axis in AXES:
        products = list(_joined(products, axis))
    parts = [part for product in products for part in _parts(product, limit)]
    return _named([*(part.recipe(bases[part.rest]) for part in parts), *whole])


def _plain(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _refuse_twice(products: Sequence[_Product]) -> None:
    seen = set()
    for product in products:
        for values in itertools.product(*(getattr(product, axis) for axis in AXES)):
            if (product.rest, values) in seen:
                raise UserError(
                    f"the sweep asks twice for learning_rates {list(values[0])}, beta {values[1]}, "
                    f"angle {values[2]:g}, seed {values[3]} of one recipe: leave one out"
                )
            seen.add((product.rest, values))


def _joined(products: Sequence[_Product], axis: str) -> Iterator[_Product]:
    """Join products that differ only on one axis. Join seeds only if they are consecutive."""
    alike: dict[_Product, list[_Product]] = {}
    for product in products:
        alike.setdefault(product.along(axis, ()), []).append(product)
    for same in alike.values():
        values = [value for product in same for value in getattr(product, axis)]
        for stretch in _consecutive(values) if axis == "seeds" else [values]:
            yield same[0].along(axis, tuple(stretch))


def _consecutive(seeds: Sequence[int]) -> Iterator[list[int]]:
    ordered = enumerate(sorted(seeds))
    for _, group in itertools.groupby(ordered, lambda numbered: numbered[1] - numbered[0]):
        yield [seed for _, seed in group]


def _parts(product: _Product, limit: int | None) -> Iterator[_Product]:
    """Split a product into parts of similar size with at most `limit` networks.

    Seeds of one setting stay together if they fit.
    """
    if limit is None or product.size <= limit:
        yield product
        return
    axis = next(axis for axis in AXES if len(getattr(product, axis)) > 1)
    values = getattr(product, axis)
    together = max(1, limit * len(values) // product.size)
    number = math.ceil(len(values) / together)
    for k in range(number):
        chosen = values[k * len(values) // number : (k + 1) * len(values) // number]
        yield from _parts(product.along(axis, chosen), limit)


def _named(chosen: Sequence[Recipe]) -> list[Task]:
    values = [recipe.values() for recipe in chosen]
    differing = [
        path
        for path in recipes.FIELDS
        if path not in ("name", "description")
        and any(it.get(path) != values[0].get(path) for it in values)
    ]
    width = len(str(len(chosen)))
    return [
        Task(
            name=f"{number:0{width}}-{recipe.folder_name}",
            label=", ".join(f"{recipes.SHORT[p]} {_text(its.get(p))}" for p in differing),
            recipe=recipe,
        )
        for number, (recipe, its) in enumerate(zip(chosen, values, strict=True), start=1)
    ]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False).replace('"', "")
