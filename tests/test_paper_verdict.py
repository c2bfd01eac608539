"""The published numbers agree with themselves and with the recipes; the pass rule by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqprop.measured import Measured
from eqprop.papers.continual_ep import published
from eqprop.papers.continual_ep.published import (
    ANGLES,
    FULL_TABLE,
    HYPERPARAMETERS,
    RESCALED,
    RESULTS_TABLE,
)
from eqprop.report.verdict import miss, passes, tolerance
from eqprop.runs import recipe as recipes

# Published


def test_the_full_table_has_23_lines_nine_angles_for_each_depth_of_cvf() -> None:
    assert len(FULL_TABLE) == 23
    assert len({result.name for result in FULL_TABLE}) == 23
    for recipe in ("c-vf-1h", "c-vf-2h"):
        assert tuple(r.angle for r in FULL_TABLE if r.recipe == recipe) == ANGLES
    assert all(result.test.n == published.TRIALS == 5 for result in FULL_TABLE)


def test_the_results_table_is_part_of_the_full_one() -> None:
    assert len(RESULTS_TABLE) == 6
    full = {result.name: result for result in FULL_TABLE}
    for result in RESULTS_TABLE:
        same = full[result.name]
        assert (result.test, result.train) == (same.test, same.train)
        assert (result.T, result.K, result.epochs) == (same.T, same.K, same.epochs)


@pytest.mark.parametrize("result", [*FULL_TABLE, *RESCALED], ids=lambda result: result.name)
def test_a_recipe_is_what_the_paper_says_it_ran(result: published.Result) -> None:
    recipe, said = recipes.load(result.recipe), HYPERPARAMETERS[result.recipe]
    T, K = recipe.rule.free_steps, recipe.rule.nudged_steps
    assert (T, K) == (result.T, result.K) == (said.T, said.K)
    assert recipe.nudging.beta == said.beta
    layers = 3 if result.recipe.partition("-fixed")[0].endswith("1h") else 4
    assert len(recipe.network.layers) == layers
    assert recipe.network.tied == (result.angle is None)
    if said.epochs is not None:  # appendix F.2 names none
        assert recipe.epochs == result.epochs == said.epochs
        drawn = recipe.nudging.kind == "random-sign"
        assert drawn == result.random_sign == said.random_sign
        assert recipe.update.learning_rates == said.learning_rates


def test_the_papers_hours() -> None:
    assert {layers: s / 3600 for layers, s in published.TITAN_SECONDS.items()} == {
        1: pytest.approx(2.65),
        2: pytest.approx(10 + 49 / 60),
    }


# The rule


@pytest.mark.parametrize(
    ("paper", "ours", "allowed"),
    [
        # two standard errors of the difference: 2 √(0.3²/5 + 0.4²/5) = 2 √0.05
        (Measured(2.0, 0.3, 5), Measured(2.0, 0.4, 5), 0.4472136),
        (Measured(2.0, 0.3, 5), Measured(2.0, 0.4, 20), 2 * math.sqrt(0.018 + 0.008)),
        # never less than 0.15 points: 2 √(0.08²/5 + 0.05²/5) = 0.084
        (Measured(2.43, 0.08, 5), Measured(2.0, 0.05, 5), 0.15),
        # one network, with the published spread: 2 √(0.2²/5 + 0.2²)
        (Measured(2.0, 0.2, 5), Measured(2.0, None, 1), 0.4381780),
        # a regime: the published spread, whatever ours is
        (Measured(86.61, 4.27, 5), Measured(50.0, 30.0, 5), 4.27),
        (Measured(86.61, 4.27, 5), Measured(50.0, None, 1), 4.27),
        # some of ours fail: 2 √(0.08²/5 + 1/5), not the 35 points of their own spread
        (Measured(2.43, 0.08, 5), Measured(19.6, 39.35, 5), 2 * math.sqrt(0.2 + 0.08**2 / 5)),
        # one percent exactly is still a number
        (Measured(5.0, 1.0, 5), Measured(5.0, 0.0, 5), 2 / math.sqrt(5)),
    ],
)
def test_how_far_means_may_differ(paper: Measured, ours: Measured, allowed: float) -> None:
    assert tolerance(paper, ours) == pytest.approx(allowed)
    for sign in (-1, 1):
        inside = Measured(paper.mean + sign * 0.999 * allowed, ours.std, ours.n)
        outside = Measured(paper.mean + sign * 1.001 * allowed, ours.std, ours.n)
        assert passes(paper, inside)
        assert not passes(paper, outside)


def test_a_published_mean_without_spread_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        passes(Measured(0.2, None, 5), Measured(0.2, 0.1, 5))


means, spreads = st.floats(0, 100), st.floats(0, 20)


@given(mean=means, std=spreads, own=means, own_std=spreads, n=st.integers(2, 50))
def test_whoever_is_nearer_passes_as_well(
    mean: float, std: float, own: float, own_std: float, n: int
) -> None:
    paper, ours = Measured(mean, std, 5), Measured(own, own_std, n)
    assert passes(paper, Measured(mean, own_std, n))
    if passes(paper, ours):
        assert passes(paper, Measured((mean + own) / 2, own_std, n))
    assert tolerance(paper, Measured(own, own_std, n + 1)) <= tolerance(paper, ours)


def test_errors_are_written_as_the_paper_writes_them() -> None:
    assert str(RESCALED[0]) == "2.06 ± 0.13 (0.18 ± 0.01)"
    assert [result.name for result in FULL_TABLE[2:7:2]] == [
        "C-EP-1h, fixed β",
        "C-EP-2h",
        "C-VF-1h, Ψ = 22.5°",
    ]


def test_a_miss_says_by_how_much() -> None:
    paper, ours = Measured(2.0, 0.3, 5), Measured(3.0, 0.4, 5)  # √(0.3²/5 + 0.4²/5) = √0.05
    assert miss(paper, ours) == "the means differ by 1.00, 0.45 allowed (4.5 standard errors)"
    assert miss(paper, Measured(3.0, None, 1)) == "the means differ by 1.00, 0.66 allowed"
