"""Cuts by counting: quantiles of all parties' rows, the same for every partition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from atoll.trees.cuts import LEVELS, Search, binned, count_prefixes, ordered, value_of

NUMBERS = hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-(2.0**99), 2.0**99, width=32))


def cuts_of(parts, bins):
    search = Search(bins)
    for level in range(len(LEVELS)):
        asked = search.asked() if level else np.zeros((parts[0].shape[1], 0), np.uint32)
        search.narrow(sum(count_prefixes(part, level, asked) for part in parts), level)
    return search.cuts(bins - 1)


@given(NUMBERS)
def test_whole_numbers_have_the_order_of_what_they_stand_for(values):
    keys = ordered(values)
    assert ((keys[:, None] < keys) == (values[:, None] < values)).all()
    assert (value_of(keys) == values).all()


@given(NUMBERS, st.integers(2, 12), st.randoms())
def test_cuts_do_not_depend_on_who_has_which_rows(values, bins, random):
    column = values[:, None]
    place = random.randrange(len(values))
    whole, (split,) = cuts_of([column], bins), cuts_of([column[:place], column[place:]], bins)
    np.testing.assert_array_equal(whole[0], split)
    assert len(split) < bins
    assert (np.diff(split) > 0).all()


@pytest.mark.parametrize("draw", ["normal", "exponential", "cauchy", "lognormal"])
def test_bins_hold_equally_many_rows_whatever_the_distribution(draw):
    rng = np.random.default_rng(0)
    x = {"normal": rng.normal, "exponential": rng.exponential, "cauchy": rng.standard_cauchy, "lognormal": lambda size: rng.lognormal(0, 6, size)}[draw](size=(20_000, 1))  # fmt: skip
    (cuts,) = cuts_of(np.split(x, 4), 64)
    rows = np.bincount(binned(x, [cuts])[:, 0], minlength=64)
    assert len(cuts) == 63
    assert rows.max() < 1.1 * len(x) / 64  # an interval of 24 bits is 2^-15 of a value wide
    np.testing.assert_allclose(cuts, np.quantile(x, np.arange(1, 64) / 64), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("shares", [[0.999, 0.001], [0.001, 0.999], [0.5, 0.49, 0.01], [0.01, 0.3, 0.01, 0.68]])
def test_common_values_have_bins_of_their_own(shares):
    x = np.repeat(np.arange(len(shares), dtype=float), (np.array(shares) * 10_000).astype(int))[:, None]
    made = binned(x, cuts_of([x], 256))
    assert len(np.unique(made)) == len(shares)
    assert (np.diff(made[:, 0].astype(int)) >= 0).all()


def test_infinite_ends_have_no_cut():
    x = np.array([[np.finfo(np.float32).max], [-np.finfo(np.float32).max]])
    (cuts,) = cuts_of([x], 4)
    assert np.isfinite(cuts).all()
    assert binned(x, [cuts])[0, 0] > binned(x, [cuts])[1, 0]
