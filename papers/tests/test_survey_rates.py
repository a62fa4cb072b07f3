"""Every claimed rate: the exponent that is fitted to a run, within a stated tolerance of the one that is claimed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from atoll.learn.catalogue import kinds, programs
from atoll.models.quadratic import minimiser
from atoll_papers.survey.quadratics import families, rates, unclaimed
from atoll_papers.survey.rates import alike, evenness, order, slope, wide
from atoll_papers.survey.row import Rate

RATES = rates()


@pytest.mark.quick("FedSSO", "VRL-SGD", "SCAFFOLD", "FedAvg", "FedProx*", "MFL*", "FedAC-I,-over-eta", "AsyncADMM*")
@pytest.mark.parametrize("rate", RATES, ids=lambda rate: rate.name.replace(" ", "-"))
def test_the_fitted_rate_is_the_claimed_one(rate: Rate) -> None:
    # Where the claim does not hold in our setting, the row says why, and it must go on not to hold.
    found = rate.fit()
    assert rate.holds(found) == (not rate.but), f"{rate.name}: {found:.3f}, stated: {rate.stated()}"


def test_every_method_has_a_rate_or_a_reason() -> None:
    claimed = {name for rate in RATES for name in rate.methods}
    without = [name for names in unclaimed().values() for name in names]
    assert len(without) == len(set(without))
    assert claimed.isdisjoint(without)
    assert claimed.union(without) == {*kinds(), *programs()}
    assert len({rate.name for rate in RATES}) == len(RATES)


def test_the_page_shows_every_row_and_every_rate_as_they_are_stated() -> None:
    text = (Path(__file__).parents[1] / "docs" / "survey.md").read_text(encoding="utf-8")
    rows = [
        (f"{family.replace('_', ' ')}: {row.name}", row.stated()) for family, some in families().items() for row in some
    ]
    for name, stated in rows + [(rate.name, rate.stated()) for rate in RATES]:
        assert f"| {name} | {stated} | " in text


def test_a_fit_finds_the_exponent_that_was_put_in() -> None:
    rounds = np.arange(1.0, 151.0)
    assert order(7.0 * rounds**-2) == pytest.approx(-2.0)
    assert order(np.where(rounds <= 40, 5.0 / rounds, 0.0)) == pytest.approx(
        -1.0
    )  # what is lost in rounding does not count
    assert slope([1, 2, 4], np.exp([-0.5, -1.0, -2.0])) == pytest.approx(-0.5)
    assert evenness((40, 80, 120), 3.0 * 0.9 ** np.array([40, 80, 120])) == pytest.approx(1.0)
    assert evenness((40, 80, 120), 1 / np.array([40.0, 80.0, 120.0])) < 0.6


def test_a_rate_that_is_off_does_not_hold() -> None:
    rate = Rate(name="x", methods=(), claim="O(1/R)", source="", fit=lambda: 0.0, expected=-1.0)
    assert rate.holds(-1.09)
    assert not rate.holds(-0.89)
    assert not rate.holds(-1.11)
    bound = Rate(name="x", methods=(), claim="O(1/R)", source="", fit=lambda: 0.0, expected=-1.0, bound=True)
    assert bound.holds(-5.0)
    assert not bound.holds(-0.89)
    assert (rate.stated(), bound.stated()) == ("O(1/R): -1 ± 0.1", "O(1/R): at most -1 ± 0.1")


@pytest.mark.parametrize(("apart", "bent"), [(True, True), (True, False), (False, False)])
def test_the_problem_of_many_scales(apart: bool, bent: bool) -> None:
    data = wide(12, 1e-3, 3, apart=apart, bent=bent)
    best, least = minimiser(data)
    shards = [data.shard(k) for k in range(3)]
    curvatures, targets = (np.array([np.asarray(getattr(s, of)) for s in shards]) for of in "xy")
    np.testing.assert_allclose(best, 1.0, rtol=1e-9)
    np.testing.assert_allclose(np.diag(curvatures.mean(axis=0)), np.logspace(-3, 0, 12))
    assert least == pytest.approx(-0.5 * np.logspace(-3, 0, 12).sum())
    assert bool(np.ptp(curvatures, axis=0).max() > 0.1) == bent
    assert bool(np.ptp(targets, axis=0).max() > 0.1) == (apart or bent)
    np.testing.assert_array_equal(alike(2).shard(0).y, alike(2).shard(1).y)
