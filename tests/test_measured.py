"""Oracle: the standard library's statistics."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqprop.measured import Measured
from eqprop.report.blocks import Line

numbers = st.floats(-1e3, 1e3).map(lambda v: round(v, 3))


@given(st.lists(numbers, min_size=2, max_size=50))
def test_mean_and_sample_standard_deviation(values: list[float]) -> None:
    found = Measured.of(values)
    assert found.n == len(values)
    assert found.mean == pytest.approx(statistics.mean(values), rel=1e-12, abs=1e-12)
    assert found.std == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-9)
    assert (found.low + found.high) / 2 == pytest.approx(found.mean, rel=1e-9, abs=1e-9)
    assert (found.high - found.low) / 2 == pytest.approx(found.std, rel=1e-9, abs=1e-9)


def test_what_has_no_value_does_not_count() -> None:
    assert Measured.of([None, 1.0, math.nan, 3.0]) == Measured(2.0, math.sqrt(2), 2)


def test_one_network_has_no_spread_and_none_no_mean() -> None:
    one, none = Measured.of([2.0]), Measured.of([None])
    assert one == Measured(2.0, None, 1)
    assert (one.low, one.high) == (2.0, 2.0)
    assert (math.isnan(none.mean), none.std, none.n) == (True, None, 0)


def test_text_has_as_many_decimals_as_asked_for() -> None:
    measured = Measured(2.0, 0.134, 5)
    assert str(measured) == f"{measured}" == "2.00 ± 0.13"
    assert f"{measured:.1f}" == "2.0 ± 0.1"
    assert str(Measured(0.2, None, 5)) == "0.20"


def test_a_line_of_measured_values_has_a_band_of_one_standard_deviation() -> None:
    line = Line.measured("a", [1.0, 2.0], [Measured(3.0, 0.5, 5), Measured(4.0, None, 1)])
    assert line == Line("a", (1.0, 2.0), (3.0, 4.0), low=(2.5, 4.0), high=(3.5, 4.0))
    assert Line.measured("b", [], []) == Line("b", (), (), low=(), high=())
