"""The paper's procedure to choose T, K, β and learning rates (appendix F.1)."""

from eqprop.tuning.choices import Balance, Choices
from eqprop.tuning.procedure import Tuned, tune

__all__ = ["Balance", "Choices", "Tuned", "tune"]
