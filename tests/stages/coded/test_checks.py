"""Check words: overflowed entries of a sum are counted without the unreduced sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.stages.coded.scalar import SPARE, check_words, wrapped_around
from atoll.stages.coded.words import lifted


def told(codes, bits, run):
    """What check words say of a sum, and how many entries did wrap around: codes have zero point 2^(b-1), and words are lifted around n times it."""
    n, zero = len(codes), 128
    checks = sum(check_words(row, bits, run, 3).astype(np.uint64) for row in codes)
    whole = codes.sum(axis=0).astype(np.int64)
    decoded = lifted(whole - n * zero, bits) + n * zero
    return wrapped_around(checks & np.uint64((1 << (bits + SPARE)) - 1), decoded, bits, run, 3), int(
        (decoded != whole).sum()
    )


@given(st.integers(9, 24), st.sampled_from([1, 7, 64, 128, 512]), st.integers(1, 60), st.integers(0, 10_000))
@settings(deadline=None)
def test_one_overflow_in_a_run_is_counted_exactly_and_none_is_none(bits, run, n, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(100, 157, size=(n, 700))
    half = (1 << (bits - 1)) // n
    codes = np.clip(codes, 128 - half // 2, 128 + half // 2)  # no sum of these wraps around
    assert told(codes, bits, run) == (0, 0)
    places = [start + int(rng.integers(min(run, 700 - start))) for start in range(0, 700, run)]
    codes[0, places] += 1 << bits  # and then in each run one does
    assert told(codes, bits, run) == (len(places), len(places))


def test_the_estimate_is_unbiased_and_its_error_is_as_stated():
    rng, ratios = np.random.default_rng(0), []
    for _ in range(60):
        estimate, count = told(rng.integers(0, 256, size=(37, 4096)), 10, 128)
        ratios.append(estimate / count)
    runs = 4096 / 128
    assert abs(np.mean(ratios) - 1) < 4 * np.sqrt(2 / runs / 60)
    assert np.std(ratios) < 1.3 * np.sqrt(2 / runs)


@pytest.mark.parametrize("bits", [9, 22, 23, 32])
def test_words_are_as_long_as_they_say(bits):
    made = check_words(np.full(300, 255), bits, 128, 0)
    assert made.shape == (3,)
    assert made.dtype == (np.uint32 if bits <= 22 else np.uint64)
    assert int(made.max()) < 1 << (bits + SPARE)
