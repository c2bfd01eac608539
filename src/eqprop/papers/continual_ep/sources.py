"""The documents behind the readings of this paper."""

from __future__ import annotations

from eqprop.report.source import Kind, Source

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
OLDER_COMMAND = Source(
    Kind.HISTORY,
    "ernoult/continualEP, branch cep, README from a4a3ebb to 2d53f50 (19 August to 16 September "
    "2019), the only command for this row while its code had σ′",
)
OWN_SLOPE = Source(
    Kind.HISTORY,
    "ernoult/continualEP, branch cep, 010ab5c to 2d53f50 (July to September 2019); the factor was "
    "removed in 7e1d88b, the first commit of branch iclr",
)
