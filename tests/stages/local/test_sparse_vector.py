"""The sparse vector technique costs what it says; the usual implementation does not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from atoll.core.errors import ConfigError
from atoll.core.facets import facet
from atoll.core.requests.island import Secret
from atoll.core.requests.stage import Guarding
from atoll.privacy import epsilon_of
from atoll.stages import SparseVector


def below(x: float, scale: float) -> float:
    """Return the probability that Laplace noise is below ``x``; SciPy's says the same, a hundred times slower."""
    return 0.5 * math.exp(x / scale) if x < 0 else 1 - 0.5 * math.exp(-x / scale)


def chance(stage: SparseVector, sizes: np.ndarray, pattern: tuple[bool, ...]) -> float:
    """The probability that comparisons in the given order end in this pattern, by an integral over the noise of the threshold."""
    first, asking, _ = stage.budgets
    spread, around = 2 * stage.entries * stage.limit / asking, stage.limit / first

    def given(rho: float) -> float:
        least = stage.threshold * stage.limit + rho
        inside = 1.0
        for size, passes in zip(sizes, pattern, strict=False):
            inside *= below(size - least, spread) if passes else below(least - size, spread)
        return inside * math.exp(-abs(rho) / around) / (2 * around)

    cuts = sorted({0.0, *(size - stage.threshold * stage.limit for size in sizes)})
    ends = [-60.0, *cuts, 60.0]
    return sum(integrate.quad(given, a, b, limit=200)[0] for a, b in itertools.pairwise(ends))


def patterns(size: int, most: int) -> list[tuple[bool, ...]]:
    """What can be seen: comparisons until ``most`` have passed, or all."""
    found = set()
    for full in itertools.product([False, True], repeat=size):
        ends = [k for k, passes in enumerate(full) if passes][most - 1 : most]
        found.add(full[: ends[0] + 1] if ends else full)
    return sorted(found)


@pytest.mark.quick("1")
@pytest.mark.parametrize("entries", [1, 2])
def test_no_pattern_tells_two_updates_apart_by_more_than_its_budget(entries: int) -> None:
    stage = SparseVector(limit=1.0, epsilon=2.0, entries=entries, threshold=0.5)
    first, asking, _ = stage.budgets
    worst = 0.0
    for one, other in (([0, 0, 0], [1, 1, 1]), ([1, 0, 1], [0, 1, 0]), ([1, 0, 0], [0, 1, 1])):
        seen = patterns(3, entries)
        chances = [[chance(stage, np.array(sizes, float), pattern) for pattern in seen] for sizes in (one, other)]
        assert sum(chances[0]) == pytest.approx(1.0, abs=1e-6)  # the patterns are all there is
        worst = max(worst, *(abs(math.log(a / b)) for a, b in zip(*chances, strict=True)))
    assert worst <= first + asking + 1e-6
    assert worst > (first + asking) / 4  # the bound is not an empty one


@pytest.mark.parametrize("x", [-3.0, -0.1, 0.0, 2.5])
def test_chances_are_those_of_scipys_noise(x: float) -> None:
    assert below(x, 0.7) == pytest.approx(stats.laplace(scale=0.7).cdf(x))


def test_draws_follow_the_chances() -> None:
    stage, sizes = SparseVector(limit=1.0, epsilon=6.0, entries=1, threshold=0.5), np.array([1.0, 0.2])
    draw = Secret(5).generator()
    seen = [tuple(stage.passed(sizes, draw)) for _ in range(2000)]
    wanted = {
        (0,): chance(stage, sizes, (True,)),
        (1,): chance(stage, sizes, (False, True)),
        (): chance(stage, sizes, (False, False)),
    }
    counts = [seen.count(key) for key in wanted]
    assert stats.chisquare(counts, [2000 * value for value in wanted.values()]).pvalue > 1e-4


def loss_of_values(count: int, limit: float, scale: float) -> float:
    """The largest log ratio of the densities of ``count`` values with Laplace noise, over all updates and outputs: at an output beyond all of them."""
    y = 2 * limit
    densities = [stats.laplace(loc=x, scale=scale).logpdf(y) * count for x in (limit, -limit)]
    return float(densities[0] - densities[1])


def test_values_cost_their_share_and_in_the_usual_implementation_many_times_theirs() -> None:
    """NVFlare's SVTPrivacy, defaults for 1,000 entries: fraction 0.1, epsilon 0.1, noise_var 0.1, gamma 1e-5; values with ``Lap(2 gamma / e3)``, ``e3 = noise_var``."""
    gamma, uploaded, e1, e3 = 1e-5, 100, 0.1, 0.1
    e2 = e1 * (2 * uploaded) ** (2 / 3)
    usual = loss_of_values(uploaded, gamma, 2 * gamma / e3)
    assert usual == pytest.approx(uploaded * e3)
    assert usual > e1 + e2 + e3 > 3.0  # above all that it counts, comparisons included, with values alone
    ours = SparseVector(limit=gamma, epsilon=e1 + e2 + e3, entries=uploaded)
    mine = loss_of_values(uploaded, gamma, 2 * uploaded * gamma / ours.budgets[2])
    assert mine == pytest.approx(ours.budgets[2])
    assert sum(ours.budgets) == pytest.approx(ours.epsilon)


def test_at_most_so_many_entries_are_reported_and_all_of_them_bounded() -> None:
    stage = SparseVector(limit=0.5, epsilon=50.0, entries=3)
    rows = np.array([[9.0, 0.0, -9.0, np.nan, 0.4, 0.0, 0.5, -0.5], [0.0] * 8])
    for seed in range(20):
        told = stage.randomise(rows, [Secret(seed).generator(), Secret(seed + 100).generator()])
        assert ((told != 0).sum(axis=1) <= 3).all()
        assert np.abs(told).max() <= 0.5
    assert {
        int(k) for s in range(40) for k in np.flatnonzero(stage.randomise(rows[:1], [Secret(s).generator()])[0])
    } >= {0, 2, 6, 7}


def test_the_ledger_has_the_whole_budget() -> None:
    (event,) = facet(SparseVector(epsilon=0.7, entries=4), Guarding).events(None)
    assert epsilon_of(((event, 1),), 1e-12, "pld", "server", "add-remove") == pytest.approx(0.7, rel=1e-3)
    assert event.unit == "user"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"entries": 0}, "entries=0"),
        ({"values": 1.0}, "values=1.0"),
        ({"threshold": -1.0}, "threshold=-1.0"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        SparseVector(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("entries", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_every_comparison_and_every_value_has_noise_for_all_entries(entries: int) -> None:
    """Of an update of zeros: the first comparison passes with the chance of two Laplace variables, and a value is inside the limit with that of one, whose scales have the factor ``2 entries``."""
    stage = SparseVector(limit=1.0, epsilon=3.0 * entries, entries=entries, threshold=1.0)
    first, asking, values = stage.budgets
    around, spread, count = 1 / first, 2 * entries / asking, 3000
    draws = [Secret(entries).generator()] * count
    passed = sum(len(stage.passed(np.zeros(1), draw)) for draw in draws)
    # P(N - R >= 1) for Laplace N and R of scales b and a: (b^2 exp(-1 / b) - a^2 exp(-1 / a)) / (2 (b^2 - a^2))
    tail = (spread**2 * math.exp(-1 / spread) - around**2 * math.exp(-1 / around)) / (2 * (spread**2 - around**2))
    assert stats.binomtest(passed, count, tail).pvalue > 1e-3
    sure = SparseVector(limit=1.0, epsilon=3.0 * entries, entries=entries, threshold=0.0)
    told = sure.randomise(np.zeros((400, 50)), draws[:400])
    told = told[told != 0]
    inside = 1 - math.exp(-values / (2 * entries))
    assert stats.binomtest(int((np.abs(told) < 1).sum()), told.size, inside).pvalue > 1e-3
