"""What says that a result of the paper was made in a certain way: a reading needs a source.

A verdict is given for a reading with a source. A reading that was found by trial has none: what
it gives is noted, and makes no row pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    TEXT = "the text"
    RELEASE = "the released code"
    HISTORY = "the history of the code"


@dataclass(frozen=True)
class Source:
    """A document, and the place in it."""

    kind: Kind
    place: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place}"


COMMANDS = Source(Kind.RELEASE, "ernoult/continualEP, README of branch iclr, the row's command")
ANGLE_CODE = Source(Kind.RELEASE, "ernoult/continualEP, branch iclr, compute_angleGrad")
RANDOM_SIGN = Source(Kind.TEXT, 'tables "full-results" and "table-hyp-training"')
TOY_MODEL = Source(Kind.TEXT, "appendix C")
ALGORITHMS = Source(Kind.TEXT, "appendix A")
GDD_TABLE = Source(Kind.TEXT, 'table "table-hyp-th"')
GLOROT = Source(Kind.TEXT, "appendix F.1, Glorot initialisation")
EQUATIONS = Source(Kind.TEXT, "appendix E, the equations of the models")
THEOREM = Source(Kind.TEXT, "the definition of C-VF with ∂F/∂θ, which Theorem 2 is about")
TOTAL = Source(Kind.TEXT, "section on C-EP training, Δ(tot) as the sum over t = 0 … K−1")
OWN_SLOPE = Source(
    Kind.HISTORY,
    "ernoult/continualEP, branch cep, 010ab5c to 2d53f50 (July to September 2019); the factor was "
    "removed in 7e1d88b, the first commit of branch iclr",
)
