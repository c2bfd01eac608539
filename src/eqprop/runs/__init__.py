"""Training runs: recipes, run folders and results."""

from eqprop.runs.evaluation import Evaluation
from eqprop.runs.parts import Member
from eqprop.runs.recipe import Recipe, UserError
from eqprop.runs.run import Run, evaluate, load, train
from eqprop.runs.training import Interrupted

__all__ = [
    "Evaluation",
    "Interrupted",
    "Member",
    "Recipe",
    "Run",
    "UserError",
    "evaluate",
    "load",
    "train",
]
