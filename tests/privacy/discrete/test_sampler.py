"""Draws of whole numbers: their law to 2^-100, chi-square and moments, ties, and no draw without the secret."""

from __future__ import annotations

import hashlib
import itertools
import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.privacy.discrete import (
    DISTANCE,
    DiscreteGaussianLaw,
    DiscreteLaplaceLaw,
    DiscreteSampler,
    PoissonLaw,
    SkellamLaw,
    sampler_of,
)
from atoll.privacy.events import discrete_gaussian_law, skellam_law
from atoll.secure.keystream import Keystream, keystream

LAWS = (
    DiscreteGaussianLaw(0.3), DiscreteGaussianLaw(100.0), DiscreteGaussianLaw(2.0**18), SkellamLaw(0.02), SkellamLaw(100.0),
    SkellamLaw(2.0**18), DiscreteLaplaceLaw(0.5), DiscreteLaplaceLaw(20.0), PoissonLaw(0.4), PoissonLaw(900.0),
)  # fmt: skip


def source(name):
    return Keystream(hashlib.sha256(name.encode()).digest())


def probabilities(law):
    """The law in 60 digits, and its first value."""
    first, weights = law.weights()
    with localcontext(Context(prec=60, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        total = sum(weights)
        return first, [w / total for w in weights]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_table_is_within_its_distance_of_the_law(law):
    """Half of the sum of |P(k) - (T_k - T_(k-1)) / 2^128|, exactly, and the part that the law leaves out."""
    sampler, (_, exact) = DiscreteSampler(law), probabilities(law)
    thresholds = [0, *((int(h) << 64) + int(w) for h, w in zip(sampler.high, sampler.low, strict=True)), 1 << 128]
    with localcontext(Context(prec=60)):
        drawn = [Decimal(b - a) / (1 << 128) for a, b in itertools.pairwise(thresholds)]
        distance = sum(abs(p - q) for p, q in zip(exact, drawn, strict=True)) / 2
    assert len(drawn) == len(exact)
    assert float(distance) + 2.0**-120 <= sampler.distance <= DISTANCE <= 2.0**-60


def logs_of(law, reach):
    """ln P(k) for k = -reach .. reach by other ways: those of the accountants, closed forms, and lgamma."""
    k = np.arange(-reach, reach + 1)
    if isinstance(law, DiscreteGaussianLaw):
        return discrete_gaussian_law(law.variance, reach)
    if isinstance(law, SkellamLaw):
        return skellam_law(law.variance, reach)
    if isinstance(law, DiscreteLaplaceLaw):
        return math.log(math.tanh(0.5 / law.scale)) - np.abs(k) / law.scale
    return np.array(
        [-law.mean + x * math.log(law.mean) - math.lgamma(x + 1) if x >= 0 else -np.inf for x in k.tolist()]
    )


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_law_is_that_of_an_independent_formula(law):
    first, exact = probabilities(law)
    reach = max(-first, first + len(exact) - 1)
    other = logs_of(law, reach)[first + reach : first + reach + len(exact)]
    ours = (
        np.array([float(p.ln()) for p in exact])
        if len(exact) < 5000
        else np.array([math.log(max(float(p), 1e-300)) for p in exact])
    )
    seen = ours > -80  # what is left out beyond has mass below e^-80
    np.testing.assert_allclose(ours[seen], other[seen], atol=2e-9)
    assert seen.sum() > 3


def chi_square(law, count, name):
    draws = sampler_of(law).draw(source(name), count)
    first, exact = probabilities(law)
    expected = count * np.array([float(p) for p in exact])
    found = np.bincount(draws - first, minlength=len(exact)).astype(float)
    cells, many, seen = [0.0], [0.0], 0.0
    for e, f in zip(expected, found, strict=True):  # cells of at least 20 expected draws each
        cells[-1], many[-1] = cells[-1] + e, many[-1] + f
        if cells[-1] >= 20:
            cells.append(0.0)
            many.append(0.0)
    cells[-2:], many[-2:] = [sum(cells[-2:])], [sum(many[-2:])]
    seen = sum((f - e) ** 2 / e for e, f in zip(cells, many, strict=True))
    freedom = len(cells) - 1
    # Wilson and Hilferty 1931: below with probability 1 - 1e-6
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))) ** 3
    return draws, seen, limit


def moments(law, draws):
    """Mean and variance within 5 standard errors; kurtosis of these laws is at most ``3 + 6 / variance + 3``."""
    _, exact = probabilities(law)
    variance, n = law.variance_of_law, len(draws)
    mean = law.mean if isinstance(law, PoissonLaw) else 0.0
    assert abs(draws.mean() - mean) <= 5 * math.sqrt(variance / n)
    spread = variance * math.sqrt((5 + 6 / variance) / n)
    assert abs(np.square(draws - mean).mean() - variance) <= 5 * spread
    assert len(exact) > 3


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_million_draws_have_the_law(law):
    draws, seen, limit = chi_square(law, 1_000_000, f"million {law}")
    assert seen < limit
    moments(law, draws)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_ten_million_draws_have_the_law(law):
    draws, seen, limit = chi_square(law, 10_000_000, f"ten million {law}")
    assert seen < limit
    moments(law, draws)


def test_chi_square_finds_a_wrong_law():
    """The same test refuses draws of a variance that is off by 3 %."""
    _, exact = probabilities(DiscreteGaussianLaw(100.0))
    draws = sampler_of(DiscreteGaussianLaw(103.0)).draw(source("wrong"), 1_000_000)
    inside = np.abs(draws) <= 40
    expected = 1e6 * np.array([float(p) for p in exact])[(len(exact) - 1) // 2 - 40 :][:81]
    found = np.bincount(draws[inside] + 40, minlength=81)
    assert ((found - expected) ** 2 / expected).sum() > 200


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.sampled_from(LAWS[:4] + LAWS[6:9]))
def test_draws_invert_the_distribution_function(words, law):
    """Oracle: count thresholds one by one. Words at and beside thresholds are among them, where 64 more bits decide."""
    sampler = sampler_of(law)
    edges = [int(h) + d for h in sampler.high[:: max(1, len(sampler.high) // 7)] for d in (-1, 0, 1)]
    firsts = [w for w in [*words, *edges] if 0 <= w < 2**64]
    seconds = iter(range(2**62, 2**64, 2**54))

    given_words = [iter(firsts)]
    used = []

    def scripted(count):
        if count == len(firsts) and given_words:
            return np.array(list(given_words.pop()), dtype=np.uint64)
        made = [next(seconds) for _ in range(count)]
        used.extend(made)
        return np.array(made, dtype=np.uint64)

    draws = sampler.draw(scripted, len(firsts))
    thresholds = [(int(h) << 64) + int(w) for h, w in zip(sampler.high, sampler.low, strict=True)]
    more = iter(used)
    for first, value in zip(firsts, draws.tolist(), strict=True):
        tied = any(int(h) == first for h in sampler.high)
        number = (first << 64) + (next(more) if tied else 0)
        assert value - sampler.first == sum(t <= number for t in thresholds)


def test_sums_of_skellam_draws_are_skellam():
    """Five parties with a fifth of the variance each: their sum has the law of the whole."""
    each = sampler_of(SkellamLaw(20.0))
    total = sum(each.draw(source(f"party {i}"), 200_000) for i in range(5))
    first, exact = probabilities(SkellamLaw(100.0))
    expected = 2e5 * np.array([float(p) for p in exact])
    keep = expected > 20
    found = np.bincount(total - first, minlength=len(exact))
    freedom = keep.sum()
    assert ((found - expected)[keep] ** 2 / expected[keep]).sum() < freedom + 6 * math.sqrt(2 * freedom)


def test_a_source_gives_the_words_of_the_keystream():
    seed = hashlib.sha256(b"one").digest()
    stream = Keystream(seed)
    together = np.concatenate([stream(3), stream(0), stream(1000), stream(1)])
    assert (together == keystream(seed, 64, 1004).view(np.ndarray)).all()


def test_other_secrets_give_other_draws():
    law = SkellamLaw(100.0)
    first, second = (sampler_of(law).draw(source(name), 1000) for name in ("a", "b"))
    assert (first != second).mean() > 0.9
    assert (first == sampler_of(law).draw(source("a"), 1000)).all()


@pytest.mark.parametrize(("law", "value"), [
    (DiscreteGaussianLaw, 0.0), (DiscreteGaussianLaw, 2.0**27), (SkellamLaw, -1.0), (SkellamLaw, math.inf),
    (DiscreteLaplaceLaw, 2.0**12), (PoissonLaw, math.nan),
])  # fmt: skip
def test_parameters_without_a_table_are_refused(law, value):
    with pytest.raises(ConfigError, match="a number above 0 and at most"):
        law(value)
    with pytest.raises(ConfigError, match="count=-1"):
        sampler_of(SkellamLaw(1.0)).draw(source("x"), -1)
