"""Every percentile that we print was really measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.observe.percentiles import median, percentile

values = st.lists(st.integers(-1000, 1000), min_size=1)


@given(values, st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_and_enough_of_them_do_not_exceed_it(
    given_values: list[int], percent: float
) -> None:
    found = percentile(given_values, percent)
    assert found in given_values
    assert sum(value <= found for value in given_values) >= len(given_values) * percent / 100
    assert percentile(given_values, 100) == max(given_values)


def test_the_median_of_an_even_number_of_values_is_the_lower_middle_one() -> None:
    assert median([4, 1, 3, 2]) == 2


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match=r"0\.\.100"):
        percentile([1], 101)
