"""Real numbers as words: sums are exact, whatever the order and the sizes of the numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import DataError
from atoll.fitting.contacts import narrowed, widened

NUMBERS = st.floats(-1e28, 1e28, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_sums_of_words_are_those_of_the_numbers(values: list[float]) -> None:
    words = np.sum([widened(value) for value in values], axis=0)
    exact = sum(map(Fraction, values))
    assert (
        abs(Fraction(float(narrowed(words))) - exact)
        <= len(values) * Fraction(2) ** -96 + abs(exact) * Fraction(2) ** -51
    )


@given(st.lists(NUMBERS, min_size=2, max_size=6), st.randoms())
def test_the_order_of_parties_does_not_matter(values: list[float], chance: object) -> None:
    words = [widened(value) for value in values]
    chance.shuffle(words)  # type: ignore[attr-defined]
    assert float(narrowed(np.sum(words, axis=0))) == float(narrowed(np.sum([widened(v) for v in values], axis=0)))


def test_many_parties_fit_and_signs_cancel() -> None:
    words = sum(widened(np.array([1e20, -3.0])) for _ in range(1000))
    assert narrowed(words).tolist() == [1e23, -3000.0]
    assert float(narrowed(widened(1e20) + widened(-1e20) + widened(0.1))) == pytest.approx(0.1, rel=1e-15)


@pytest.mark.parametrize("value", [2.0**95, -math.inf, math.nan])
def test_what_has_no_words_is_refused(value: float) -> None:
    with pytest.raises(DataError, match="is too large for a secure sum"):
        widened(value)
