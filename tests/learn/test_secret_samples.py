"""Samples drawn from the server's secret: their rates, their independence of the seed, and what they do when devices are away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.requests.island import Secret
from atoll.core.requests.party import Roster
from atoll.selection import Candidates, FixedSample, PoissonSample

EVERYBODY = Roster([f"c{i}" for i in range(40)]).all()


def cohorts(rule: Any, there: Any = EVERYBODY, rounds: int = 4000, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Positions of the clients of many rounds."""
    state = rule.init(EVERYBODY)
    found = []
    for number in range(rounds):
        secret = lambda n=number: Secret(f"{seed}/{n}".encode())  # noqa: E731
        candidates = Candidates(there, number, Rng(0), secret=secret)
        chosen = rule.invite(candidates, 3, state)
        np.testing.assert_array_equal(chosen, rule.invite(candidates, 3, state))  # a budget asks before the round does
        found.append(there.positions[chosen])
    return found


@pytest.mark.parametrize(
    ("rule", "rate"), [(PoissonSample(0.2), 0.2), (PoissonSample(6), 0.15), (FixedSample(6), 0.15)]
)
def test_every_client_takes_part_with_the_rate_that_is_counted(rule: Any, rate: float) -> None:
    assert rule.drawn(40)[0] == rate
    times = np.bincount(np.concatenate(cohorts(rule)), minlength=40) / 4000
    np.testing.assert_allclose(times, rate, atol=5 * np.sqrt(rate * (1 - rate) / 4000))


@pytest.mark.parametrize("rule", [PoissonSample(8), FixedSample(8)])
def test_absent_clients_raise_nobodys_rate(rule: Any) -> None:
    times = np.bincount(np.concatenate(cohorts(rule, EVERYBODY[:15])), minlength=40) / 4000
    np.testing.assert_allclose(times[:15], 0.2, atol=5 * np.sqrt(0.16 / 4000))
    assert times[15:].sum() == 0


def test_coins_are_independent() -> None:
    taken = np.array([np.bincount(row, minlength=40) for row in cohorts(PoissonSample(0.3))], dtype=float)
    assert taken.sum(axis=1).var() == pytest.approx(40 * 0.3 * 0.7, rel=0.1)
    pairs = np.corrcoef(taken.T)[np.triu_indices(40, 1)]
    assert np.abs(pairs).max() < 5 / np.sqrt(4000)


@given(st.integers(1, 60), st.integers(1, 100))
def test_a_fixed_sample_has_its_size_and_no_client_twice(count: int, number: int) -> None:
    rule = FixedSample(count)
    chosen = rule.invite(Candidates(EVERYBODY, number, Rng(0), secret=Secret), 1, rule.init(EVERYBODY))
    assert len(set(chosen.tolist())) == len(chosen) == rule.cohort_size(40) == min(count, 40)


def test_the_seed_says_nothing() -> None:
    one, other = cohorts(PoissonSample(0.5), rounds=3, seed=1), cohorts(PoissonSample(0.5), rounds=3, seed=2)
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("count", [0, -1, 0.0, 1.5])
@pytest.mark.parametrize("kind", [PoissonSample, FixedSample])
def test_counts_without_sense_are_refused(kind: Any, count: float) -> None:
    with pytest.raises(ConfigError, match=f"count={count}"):
        kind(count)
