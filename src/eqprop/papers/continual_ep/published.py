"""The published numbers, each with its place in the paper. Errors in %, angles in degrees."""

from __future__ import annotations

from dataclasses import dataclass

from eqprop.measured import Measured

TRIALS = 5  # networks behind every mean and standard deviation
ANGLES = (0.0, 22.5, 45.0, 67.5, 90.0, 112.5, 135.0, 157.5, 180.0)  # initial Ψ(θ_f, θ_b)


NAMES = {
    "ep-1h": "EP-1h",
    "ep-2h": "EP-2h",
    "c-ep-1h-fixed-beta": "C-EP-1h, fixed β",
    "c-ep-1h": "C-EP-1h",
    "c-ep-2h": "C-EP-2h",
    "c-vf-1h": "C-VF-1h",
    "c-vf-2h": "C-VF-2h",
    "rescaled-c-ep-1h": "rescaled C-EP-1h",
    "rescaled-c-ep-2h": "rescaled C-EP-2h",
}


def named(recipe: str, angle: float | None) -> str:
    """Return the name of a row: "C-EP-1h" or "C-VF-1h, Ψ = 45°"."""
    return NAMES[recipe] + ("" if angle is None else f", Ψ = {angle:g}°")


@dataclass(frozen=True)
class Result:
    """A line of a table of training results."""

    recipe: str  # our recipe for it
    test: Measured
    train: Measured
    T: int
    K: int
    angle: float | None = None  # initial Ψ(θ_f, θ_b), if the weights are untied
    random_sign: bool | None = None
    epochs: int | None = None

    @property
    def name(self) -> str:
        return named(self.recipe, self.angle)

    def __str__(self) -> str:
        return f"{self.test} ({self.train})"


@dataclass(frozen=True)
class Hyperparameters:
    """A line of the table of hyperparameters; learning rates input → output."""

    T: int
    K: int
    beta: float
    random_sign: bool | None = None
    epochs: int | None = None
    learning_rates: tuple[float, ...] | None = None


def _result(
    recipe: str,
    angle: float | None,
    test: tuple[float, float],
    train: float,
    T: int,
    K: int,
    random_sign: bool | None,
    epochs: int,
) -> Result:
    measured = Measured(*test, TRIALS), Measured(train, None, TRIALS)
    return Result(recipe, *measured, T, K, angle, random_sign, epochs)


# Fig. "table:results", left.
RESULTS_TABLE = (
    _result("ep-1h", None, (2.00, 0.13), 0.20, 30, 10, None, 30),
    _result("ep-2h", None, (1.95, 0.10), 0.14, 100, 20, None, 50),
    _result("c-ep-1h", None, (2.28, 0.16), 0.41, 40, 15, None, 100),
    _result("c-ep-2h", None, (2.44, 0.14), 0.31, 100, 20, None, 150),
    _result("c-vf-1h", 0.0, (2.43, 0.08), 0.77, 40, 15, None, 100),
    _result("c-vf-2h", 0.0, (2.97, 0.19), 1.58, 100, 20, None, 150),
)

# Appendix F.1, table "table:full-results".
FULL_TABLE = (
    _result("ep-1h", None, (2.00, 0.13), 0.20, 30, 10, False, 30),
    _result("ep-2h", None, (1.95, 0.10), 0.14, 100, 20, False, 50),
    _result("c-ep-1h-fixed-beta", None, (2.85, 0.18), 0.83, 40, 15, False, 100),
    _result("c-ep-1h", None, (2.28, 0.16), 0.41, 40, 15, True, 100),
    _result("c-ep-2h", None, (2.44, 0.14), 0.31, 100, 20, False, 150),
    _result("c-vf-1h", 0.0, (2.43, 0.08), 0.77, 40, 15, True, 100),
    _result("c-vf-1h", 22.5, (2.38, 0.15), 0.74, 40, 15, True, 100),
    _result("c-vf-1h", 45.0, (2.37, 0.06), 0.78, 40, 15, True, 100),
    _result("c-vf-1h", 67.5, (2.48, 0.15), 0.81, 40, 15, True, 100),
    _result("c-vf-1h", 90.0, (2.46, 0.18), 0.78, 40, 15, True, 100),
    _result("c-vf-1h", 112.5, (4.51, 3.96), 2.92, 40, 15, True, 100),
    _result("c-vf-1h", 135.0, (86.61, 4.27), 88.51, 40, 15, True, 100),
    _result("c-vf-1h", 157.5, (91.08, 0.01), 90.98, 40, 15, True, 100),
    _result("c-vf-1h", 180.0, (92.82, 3.47), 92.71, 40, 15, True, 100),
    _result("c-vf-2h", 0.0, (2.97, 0.19), 1.58, 100, 20, True, 150),
    _result("c-vf-2h", 22.5, (3.54, 0.75), 2.70, 100, 20, True, 150),
    _result("c-vf-2h", 45.0, (3.78, 0.78), 2.86, 100, 20, True, 150),
    _result("c-vf-2h", 67.5, (4.59, 0.92), 4.68, 100, 20, True, 150),
    _result("c-vf-2h", 90.0, (5.05, 1.17), 4.81, 100, 20, True, 150),
    _result("c-vf-2h", 112.5, (20.33, 13.03), 20.30, 100, 20, True, 150),
    _result("c-vf-2h", 135.0, (59.04, 17.97), 60.53, 100, 20, True, 150),
    _result("c-vf-2h", 157.5, (77.90, 13.49), 78.04, 100, 20, True, 150),
    _result("c-vf-2h", 180.0, (74.17, 12.76), 74.05, 100, 20, True, 150),
)

# Appendix F.2, in the text.
RESCALED = (
    Result("rescaled-c-ep-1h", Measured(2.06, 0.13, TRIALS), Measured(0.18, 0.01, TRIALS), 30, 10),
    Result("rescaled-c-ep-2h", Measured(1.89, 0.22, TRIALS), Measured(0.02, 0.02, TRIALS), 100, 20),
)

# Appendix F.1, table "table-hyp-training".
HYPERPARAMETERS = {
    "ep-1h": Hyperparameters(30, 10, 0.1, False, 30, (0.08, 0.04)),
    "ep-2h": Hyperparameters(100, 20, 0.5, False, 50, (0.2, 0.05, 0.005)),
    "c-ep-1h-fixed-beta": Hyperparameters(40, 15, 0.2, False, 100, (0.0056, 0.0028)),
    "c-ep-1h": Hyperparameters(40, 15, 0.2, True, 100, (0.0056, 0.0028)),
    "c-ep-2h": Hyperparameters(100, 20, 0.5, False, 150, (0.01, 0.0018, 0.00018)),
    "c-vf-1h": Hyperparameters(40, 15, 0.2, True, 100, (0.0076, 0.0038)),
    "c-vf-2h": Hyperparameters(100, 20, 0.35, True, 150, (0.009, 0.0016, 0.00016)),
    # appendix F.2, in the text
    "rescaled-c-ep-1h": Hyperparameters(30, 10, 0.1),
    "rescaled-c-ep-2h": Hyperparameters(100, 20, 0.5),
}

# Section "Discussion": training time of C-EP and C-VF on a Titan RTX, by number of hidden layers.
TITAN_SECONDS = {1: (2 * 60 + 39) * 60, 2: (10 * 60 + 49) * 60}

# Fig. "ep-to-cvf" (a): the angle between Δ(tot) and −∇(tot) before training, mean and standard
# deviation, read off the pixels of the figure in the authors' repository (branch iclr,
# AngleGrad_best.png), to about 0.3°.
FIGURE_ANGLES: dict[tuple[str, float | None], Measured] = {
    ("ep-1h", None): Measured(16.8, 2.4, TRIALS),
    ("ep-2h", None): Measured(48.6, 1.0, TRIALS),
    ("c-ep-1h", None): Measured(50.1, 10.8, TRIALS),
    ("c-ep-2h", None): Measured(52.9, 6.0, TRIALS),
    ("c-vf-1h", 0.0): Measured(65.9, 8.0, TRIALS),
    ("c-vf-1h", 22.5): Measured(65.1, 7.5, TRIALS),
    ("c-vf-1h", 45.0): Measured(78.3, 3.7, TRIALS),
    ("c-vf-1h", 67.5): Measured(80.1, 4.8, TRIALS),
    ("c-vf-1h", 90.0): Measured(91.9, 2.7, TRIALS),
    ("c-vf-1h", 112.5): Measured(98.7, 3.7, TRIALS),
    ("c-vf-1h", 135.0): Measured(105.0, 3.0, TRIALS),
    ("c-vf-1h", 157.5): Measured(113.1, 9.9, TRIALS),
    ("c-vf-1h", 180.0): Measured(114.3, 12.2, TRIALS),
    ("c-vf-2h", 0.0): Measured(60.6, 9.6, TRIALS),
    ("c-vf-2h", 22.5): Measured(66.5, 6.9, TRIALS),
    ("c-vf-2h", 45.0): Measured(74.2, 5.4, TRIALS),
    ("c-vf-2h", 67.5): Measured(80.7, 2.2, TRIALS),
    ("c-vf-2h", 90.0): Measured(89.8, 1.5, TRIALS),
    ("c-vf-2h", 112.5): Measured(94.2, 1.4, TRIALS),
    ("c-vf-2h", 135.0): Measured(90.7, 2.4, TRIALS),
    ("c-vf-2h", 157.5): Measured(86.3, 2.7, TRIALS),
    ("c-vf-2h", 180.0): Measured(85.6, 3.1, TRIALS),
}
# Statements of the text on three points of the figure, in sections "C-EP training experiments" and
# "Continual Vector Field (C-VF) training experiments".
SAID_OF_ANGLES: dict[tuple[str, float | None], str] = {
    ("ep-1h", None): "the leftmost point, ∼20°",
    ("c-ep-2h", None): "reaches 50°",
    ("c-vf-1h", 180.0): "the rightmost point, ∼100°",
}
