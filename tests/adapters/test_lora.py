"""Means of LoRA factors against the mean of their products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.adapters import average_factors, mixing_error, residual_of_mean, stack_factors, truncate_product
from atoll.core.errors import AtollError


def clients(seed: int, ranks: list[int], out: int = 6, inner: int = 5, scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [(scale * rng.normal(size=(out, r)), scale * rng.normal(size=(r, inner))) for r in ranks]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 99), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([1e-4, 1.0, 1e4]))
def test_fedex_flora_and_full_rank_are_the_mean_of_products(seed: int, ranks: list[int], scale: float) -> None:
    given_ = clients(seed, ranks, scale=scale)
    weights = np.random.default_rng(seed).uniform(0.5, 9.0, len(ranks))
    exact = sum(w * b @ a for w, (b, a) in zip(weights / weights.sum(), given_, strict=True))
    b, a = average_factors(given_, weights)
    for found in (b @ a + residual_of_mean(given_, weights), np.matmul(*stack_factors(given_, weights))):
        assert np.linalg.norm(found - exact) <= 1e-6 * np.linalg.norm(exact)
    for rank in (1, 2, 5):
        u, s, v = np.linalg.svd(exact)
        best = (u[:, :rank] * s[:rank]) @ v[:rank]
        near = truncate_product(given_, rank, weights)
        assert near[0].shape[1] == near[1].shape[0] == rank
        assert np.linalg.norm(near[0] @ near[1] - best) <= 1e-6 * np.linalg.norm(exact)
        lost = np.linalg.norm(s[rank:]) / np.linalg.norm(s)
        assert mixing_error(given_, near, weights) == pytest.approx(lost, abs=1e-6)


def test_one_frozen_factor_loses_nothing_and_two_lose_most() -> None:
    own = clients(0, [8] * 10, 64, 64)
    frozen = [(b, own[0][1]) for b, _ in own]  # FFA-LoRA
    assert mixing_error(frozen) < 1e-12
    assert mixing_error(own[:1]) < 1e-12
    assert mixing_error(own) == pytest.approx(0.947, abs=1e-3)
    assert mixing_error(own, truncate_product(own, 8)) == pytest.approx(0.696, abs=1e-3)
    assert mixing_error([(b * 0, a) for b, a in own]) == 0.0


@pytest.mark.parametrize(
    ("factors", "weights", "words"),
    [
        ([], None, "there are no factors"),
        ([(np.ones((2, 1)), np.ones((2, 2)))], None, "give B of shape"),
        ([(np.ones((2, 1)), np.full((1, 2), np.nan))], None, "not finite"),
        ([(np.ones((2, 1)), np.ones((1, 2)))], [0.0], "positive number of rows"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors: Any, weights: Any, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        average_factors(factors, weights)
