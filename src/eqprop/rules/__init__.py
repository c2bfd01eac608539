"""Learning rules, one algorithm per file."""

from eqprop.rules.bptt import BPTT
from eqprop.rules.continual_ep import ContinualEP
from eqprop.rules.continual_vf import ContinualVF
from eqprop.rules.ep import EP
from eqprop.rules.rbp import RBP
from eqprop.rules.rule import Rule, Step, Stream, Trial, total
from eqprop.rules.two_phase import Continual, TwoPhase
from eqprop.rules.vector_field import VectorFieldRule
from eqprop.rules.vf import VF

__all__ = [
    "BPTT",
    "EP",
    "RBP",
    "VF",
    "Continual",
    "ContinualEP",
    "ContinualVF",
    "Rule",
    "Step",
    "Stream",
    "Trial",
    "TwoPhase",
    "VectorFieldRule",
    "total",
]
