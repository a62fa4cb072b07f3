"""Votes with noise: closed forms of the paper, the true divergence by integration, and what accountants make of the events."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from atoll.core.errors import ConfigError
from atoll.core.event import Gaussian, unpack_event
from atoll.privacy import ORDERS, PrivacyLoss, epsilon_of, renyi_curve
from atoll.privacy.budget import grouped
from atoll.privacy.renyi import NoisyVote, log_odds_of_answer, log_odds_of_winner, vote_curve

COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=5)


def winners(counts: list[int], sigma: float) -> np.ndarray:
    """The probability of each class to have the largest noisy count, by integration over the winner's noise."""
    found = []
    for i, n in enumerate(counts):
        others = [m for j, m in enumerate(counts) if j != i]

        def density(z: float, n: int = n, others: list[int] = others) -> float:
            below = math.prod(stats.norm.cdf((n + sigma * z - m) / sigma) for m in others)
            return float(stats.norm.pdf(z) * below)

        found.append(integrate.quad(density, -9, 9, limit=200)[0])
    return np.array(found)


def moved(counts: list[int]) -> list[list[int]]:
    """All counts that differ by one vote that changes."""
    made = []
    for i in range(len(counts)):
        for j in range(len(counts)):
            if i != j and counts[i] > 0:
                other = list(counts)
                other[i] -= 1
                other[j] += 1
                made.append(other)
    return made


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return float(np.log(np.sum(p**order * q ** (1 - order))) / (order - 1))


@pytest.mark.every(2)
@pytest.mark.quick("counts0-3.0", "counts3-2.0")
@pytest.mark.parametrize(("counts", "sigma"), [([20, 3, 1], 3.0), ([12, 11], 4.0), ([30, 0, 0, 0], 5.0), ([9, 5], 2.0)])
def test_no_neighbour_is_farther_than_the_bound(counts: list[int], sigma: float) -> None:
    """The oracle: exact distributions of the winner for these votes and for all votes of a neighbour."""
    event = NoisyVote(noise_multiplier=sigma / math.sqrt(2), log_other=log_odds_of_winner(counts, sigma))
    p = winners(counts, sigma)
    assert p.sum() == pytest.approx(1.0, abs=1e-8)
    assert 1 - p.max() <= math.exp(event.log_other) * (1 + 1e-9), "a bound of the other outcomes"
    for order in (1.5, 2.0, 4.0, 8.0, 20.0):
        bound = float(vote_curve(event, (order,))[0])
        assert bound <= order / sigma**2 + 1e-12, "never above the bound for any votes, proposition 8"
        assert max(renyi(p, winners(other, sigma), order) for other in moved(counts)) <= bound + 1e-7


@pytest.mark.parametrize(("largest", "threshold", "sigma"), [(30, 20.0, 3.0), (10, 25.0, 4.0), (20, 20.0, 5.0)])
def test_no_neighbour_of_a_check_is_farther_than_the_bound(largest: int, threshold: float, sigma: float) -> None:
    event = NoisyVote(noise_multiplier=sigma, log_other=log_odds_of_answer([largest, 3], sigma, threshold))

    def answers(n: int) -> np.ndarray:
        p = float(stats.norm.sf((threshold - n) / sigma))
        return np.array([p, 1 - p])

    assert min(answers(largest)) == pytest.approx(math.exp(event.log_other), rel=1e-12)
    for order in (1.5, 3.0, 10.0):
        bound = float(vote_curve(event, (order,))[0])
        assert max(renyi(answers(largest), answers(largest + by), order) for by in (-1, 1)) <= bound + 1e-9


def by_the_paper(q: float, z: float, order: float) -> float:
    """Theorem 6 word for word, without logarithms, with the orders of proposition 10."""
    e = lambda a: a / (2 * z * z)  # noqa: E731 - the paper's notation
    m2 = z * math.sqrt(2 * math.log(1 / q))
    m1 = m2 + 1
    usable = order <= m1 and m2 > 1 and q <= math.exp((m2 - 1) * e(m2)) / (m1 / (m1 - 1) * m2 / (m2 - 1)) ** m2
    if not usable or q * math.exp(e(m2)) >= 1:
        return e(order)
    a = (1 - q) / (1 - (q * math.exp(e(m2))) ** ((m2 - 1) / m2))
    b = math.exp(e(m1)) / q ** (1 / (m1 - 1))
    return min(e(order), math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1))


@given(q=st.floats(1e-12, 0.5), z=st.floats(0.5, 40), order=st.floats(1.01, 30))
def test_the_curve_is_theorem_6(q: float, z: float, order: float) -> None:
    event = NoisyVote(noise_multiplier=z, log_other=math.log(q))
    assert float(vote_curve(event, (order,))[0]) == pytest.approx(by_the_paper(q, z, order), rel=1e-6, abs=1e-9)


@given(counts=COUNTS, sigma=st.floats(0.5, 30))
def test_votes_can_only_help(counts: list[int], sigma: float) -> None:
    odds = log_odds_of_winner(counts, sigma)
    assert odds <= math.log1p(-1 / len(counts))
    event = NoisyVote(noise_multiplier=sigma / math.sqrt(2), log_other=odds)
    plain = Gaussian(noise_multiplier=sigma / math.sqrt(2))
    assert (renyi_curve(event) <= renyi_curve(plain) * (1 + 1e-12)).all()
    assert (renyi_curve(event) >= 0).all()


def test_odds_of_the_winner_are_a_union_bound() -> None:
    """Proposition 7: half the complementary error function of each gap over two deviations."""
    counts, sigma = [50, 30, 20], 10.0
    union = 0.5 * sum(math.erfc((50 - n) / (2 * sigma)) for n in (30, 20))
    assert log_odds_of_winner(counts, sigma) == pytest.approx(math.log(union))
    far = log_odds_of_winner([1000, 0], 5.0)
    assert far == pytest.approx(float(stats.norm.logsf(1000 / (5 * math.sqrt(2)))), rel=1e-6)
    assert far >= float(stats.norm.logsf(1000 / (5 * math.sqrt(2)))), "far out, an upper bound"


def test_agreement_is_cheap_and_other_accountants_count_it_as_a_gaussian() -> None:
    """250 teachers of whom 240 agree, sigma 40: 1,000 answers; data-independent they cost the Gaussian's epsilon."""
    odds = log_odds_of_winner([240, 5, 5], 40.0)
    vote = NoisyVote(noise_multiplier=40 / math.sqrt(2), log_other=odds)
    plain = Gaussian(noise_multiplier=40 / math.sqrt(2))
    many = ((vote, 1000),)
    assert epsilon_of(many, 1e-5, "rdp") < 0.6 * epsilon_of(((plain, 1000),), 1e-5, "rdp")
    assert epsilon_of(many, 1e-5, "pld") == pytest.approx(epsilon_of(((plain, 1000),), 1e-5, "pld"))
    assert PrivacyLoss.of(vote).times(1000).epsilon(1e-5) == pytest.approx(
        PrivacyLoss.of(plain).times(1000).epsilon(1e-5)
    )


def test_events_survive_the_ledger_and_groups_move_farther() -> None:
    event = NoisyVote(noise_multiplier=5.0, log_other=-3.5, count=4)
    assert unpack_event(event.pack()) == event
    pair = grouped(event, 2)
    assert pair == replace(event, noise_multiplier=2.5)
    assert (renyi_curve(pair) >= renyi_curve(event)).all()
    assert renyi_curve(NoisyVote(noise_multiplier=1.0)).tolist() == [a / 2 for a in ORDERS], (
        "without odds, the Gaussian"
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NoisyVote(noise_multiplier=1.0, log_other=0.5), "log_other=0.5"),
        (lambda: log_odds_of_winner([3], 1.0), "counts of shape"),
        (lambda: log_odds_of_winner([3, 1], 0.0), "sigma=0.0"),
        (lambda: log_odds_of_answer([3, 1], -1.0, 2.0), "sigma=-1.0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()  # type: ignore[operator]
