"""Summary of a run, derived from its recipe and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqprop.measured import Measured
from eqprop.runs.recipe import Recipe


def errors(recipe: Recipe) -> tuple[str, str, str]:
    """Return the keys of the errors in a summary, for the split on which epochs are measured."""
    split = recipe.data.measured
    return "train_error", f"{split}_error", f"last_ten_{split}_error"


def summarise(recipe: Recipe, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors per network (`members`) and per setting (`settings`), and more.

    One network, an ensemble of seeds and a sweep differ only in the lengths of these lists.
    `complete` says whether training is finished.
    """
    members = [
        {
            "seed": member.seed,
            "beta": member.beta,
            "angle": member.angle,
            "learning_rates": list(member.learning_rates),
            **_of_member(metrics, recipe.data.measured, i),
        }
        for i, member in enumerate(recipe.members())
    ]
    settings = [
        {"label": label, "members": chosen, **_statistics(recipe, [members[i] for i in chosen])}
        for label, chosen in recipe.settings().items()
    ]
    return {
        "recipe": recipe.name,
        "epochs": len(metrics),
        "complete": len(metrics) >= recipe.epochs
        or all(m["frozen"] or m["pruned"] for m in members),
        **_statistics(recipe, members),
        "settings": settings,
        "members": members,
        "frozen": [entry for record in metrics for entry in record.get("frozen", ())],
    }


def _of_member(metrics: Sequence[dict[str, Any]], split: str, i: int) -> dict[str, Any]:
    key = f"{split}_error"  # absent if every member became non-finite before the measurement
    tested = [(record[key][i], record["epoch"]) for record in metrics if key in record]
    curve = [(error, epoch) for error, epoch in tested if error is not None]
    pruned = any(i in record.get("pruned", ()) for record in metrics)
    gone = bool(metrics) and (pruned or key not in metrics[-1] or tested[-1][0] is None)
    best = min(curve, default=(None, None))
    final = None if gone or not curve else curve[-1][0]
    ten = [error for error, _ in curve[-10:]]
    return {
        "frozen": gone and not pruned,
        "pruned": pruned,
        f"final_{key}": final,
        "final_train_error": None if final is None else metrics[-1]["train_error"][i],
        f"last_ten_{key}": None if final is None else sum(ten) / len(ten),
        f"best_{key}": best[0],
        "best_epoch": best[1],
    }


def _statistics(recipe: Recipe, members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    train, measured, ten = errors(recipe)
    keys = {train: f"final_{train}", measured: f"final_{measured}", ten: ten}
    return {name: _record(Measured.of(m[key] for m in members)) for name, key in keys.items()}


def _record(of: Measured) -> dict[str, float | int | None]:
    return {"mean": of.mean if of.n else None, "std": of.std, "members": of.n}


def error_text(of: dict[str, Any]) -> str:
    """Return the error of a summary as text: 2.28 ± 0.13 %."""
    return percent(Measured(of["mean"], of["std"], of["members"]))


def percent(of: Measured) -> str:
    return f"{of} %" if of.n else "unknown"
