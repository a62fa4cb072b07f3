"""Statistics from sums that hide every site's own: the same numbers, in fixed point; and with noise, within what the noise allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import DataError, PolicyError
from atoll.core.event import Ledger
from atoll.core.requests.policy import SitePolicy
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.privacy import Budget, Demand, spent
from atoll.reducers import Enclave, Encrypted, SecureAggregation, TwoServers
from atoll.simulation import run_in
from atoll.statistics import Statistics
from tests.support.patients import SHARES, described, frames, require_pooled

MASKED = {"reducer": SecureAggregation(), "columns": ["age", "pressure", "sex"], "categories": {"sex": ["f", "m"]}}


@pytest.fixture(scope="module")
def pooled() -> pd.DataFrame:
    return pd.concat(frames().values())


def test_secure_sums_give_the_answer_of_all_rows(pooled: pd.DataFrame) -> None:
    found = described(**MASKED, bins=7, quantiles=SHARES, exact=True, correlations=True, by=["sex"])
    require_pooled(found, pooled)
    assert [float(edge) for edge in found["age"].histogram.edges[[0, -1]]] == [pooled.age.min(), pooled.age.max()]
    assert found["sex"].values == {label: int((pooled.sex == label).sum()) for label in ("f", "m")}
    assert found["sex"].missing == int((pooled.sex == "").sum())
    require_pooled(found.groups["sex"]["f"], pooled[pooled.sex == "f"])
    names, matrix = found.correlations or ((), None)
    np.testing.assert_allclose(matrix, pooled[list(names)].corr(), rtol=1e-7, atol=1e-10)
    assert found.sites == {}
    assert any("the server sees only sums (SecureAggregation)" in line for line in found.withheld)


@pytest.mark.parametrize("more", [{}, {"reducer": SecureAggregation()}, {"reducer": SecureAggregation(), "min_count": 5}], ids=["by site", "by sums", "of few rows"])  # fmt: skip
def test_labels_of_correlations_are_those_of_columns_with_one_number_a_row(more: dict[str, Any]) -> None:
    """A column of vectors, which stands between them, does not correlate, and leaves no label behind."""
    draw = np.random.default_rng(3)
    base = draw.normal(size=(3, 2, 40))
    sites = {f"s{k}": {"v": draw.normal(size=(40, 4)), "a": base[0, k], "w": draw.normal(size=(40, 2)), "b": base[0, k] + 0.2 * base[1, k], "c": base[2, k]} for k in range(2)}  # fmt: skip
    job = Statistics(correlations=True, **more)
    names, matrix = atoll.simulate(job, sites, engine="inline", progress=False).outcome.correlations or ((), None)
    expected = pd.DataFrame({name: np.concatenate([one[name] for one in sites.values()]) for name in "abc"}).corr()
    assert list(names) == ["a", "b", "c"]
    np.testing.assert_allclose(matrix, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("reducer", [TwoServers(), Enclave(), Encrypted()], ids=lambda one: type(one).__name__)
def test_a_reducer_brings_the_party_that_it_needs(pooled: pd.DataFrame, reducer: Any) -> None:
    """A second server, an enclave or a key holder takes part by itself, and the numbers are those of all rows."""
    found = described(**{**MASKED, "columns": ["age"], "categories": {}, "reducer": reducer}, bins=3)
    assert found["age"].count == pooled.age.count()
    assert found["age"].mean == pytest.approx(pooled.age.mean())


def test_a_secure_quantile_is_near_without_further_contacts(pooled: pd.DataFrame) -> None:
    found = described(**MASKED, quantiles=SHARES)
    for name in ("age", "pressure"):
        exact = np.quantile(pooled[name].dropna(), SHARES)
        np.testing.assert_allclose(list((found[name].quantiles or {}).values()), exact, rtol=2**-13)


def test_columns_are_agreed_and_groups_of_few_rows_withheld() -> None:
    found = described(reducer=SecureAggregation(), min_count=200, by=["sex"], categories={"sex": ["f", "m", "d"]})
    assert "age" in found.whole
    assert found.groups == {}  # those of f would follow from all rows and those of m
    assert any("all rows where sex=m: fewer than min_count=200 rows" in line for line in found.withheld)
    assert any(line.startswith("values of note: they are not agreed") for line in found.withheld)
    other = {**frames(), "west": frames()["west"].drop(columns=["age"])}
    with pytest.raises(DataError, match=r"the columns of west are .*, and of north age"):
        described(other, reducer=SecureAggregation())


def test_sites_that_give_sums_only_take_part() -> None:
    reducer = SecureAggregation(server="active", least=3)
    policy = SitePolicy(sums_only=True, smallest_cohort=3, min_count=10)
    job = Statistics(reducer=reducer, columns=["age"], min_count=10, bins=3)
    found = atoll.simulate(job, frames(), engine="inline", policy=policy).outcome
    assert found["age"].count > 250
    with pytest.raises(PolicyError, match="this site gives sums only"):
        atoll.simulate(Statistics(columns=["age"], min_count=10), frames(), engine="inline", policy=policy)


PRIVATE = {"epsilon": 4.0, "columns": ["age", "sex"], "categories": {"sex": ["f", "m"]}, "min_count": 5}


@pytest.mark.parametrize("reducer", [None, SecureAggregation()])
def test_noise_is_as_large_as_it_says_and_charged(reducer: Any, pooled: pd.DataFrame) -> None:
    job = Statistics(
        **PRIVATE, ranges={"age": [0, 100]}, bins=5, quantiles=[0.5], **({"reducer": reducer} if reducer else {})
    )
    world = World(atoll.data.federated.as_population(frames()), ENGINES["inline"](1), secret_seed=3)
    found, _ = run_in(world, job.prepare(None).program)
    clipped = pooled.age.dropna().clip(0, 100)
    std = found.privacy["noise of a count, std a site"] * np.sqrt(3)
    assert found.privacy["epsilon"] == 4.0
    assert found.privacy["epsilon of a release"] == pytest.approx(4.0 / 5)
    assert abs(found["age"].count - len(clipped)) < 5 * std
    assert abs(found["age"].sum - clipped.sum()) < 5 * 50 * std + 50 * 5 * std
    assert abs(found["sex"].values["f"] - (pooled.sex == "f").sum()) < 5 * std
    assert np.abs(found["age"].histogram.counts - np.histogram(clipped, 5, (0, 100))[0]).max() < 5 * std
    assert (found["age"].min, found["age"].max) == (None, None)
    assert bool(found.sites) == (reducer is None)
    assert isinstance(world.ledger, Ledger)
    costs = spent([line for line in world.ledger if line["kind"] != "seeded-secret"], 1e-9)
    assert costs == {name: pytest.approx(4.0) for name in frames()}
    assert {line["unit"] for line in world.ledger if line["kind"] == "laplace"} == {"example"}


def test_a_range_is_found_privately(pooled: pd.DataFrame) -> None:
    found = described(**{**PRIVATE, "epsilon": 40.0}, bins=8)
    edges = found["age"].histogram.edges
    x = pooled.age.dropna()
    assert edges[0] <= np.quantile(x, 0.05)
    assert edges[-1] >= np.quantile(x, 0.95)
    assert found.contacts == 2
    assert abs(found["age"].mean - x.mean()) < 3
    with pytest.raises(DataError, match="the range of 'age' is lost in the noise"):
        described(**{**PRIVATE, "epsilon": 0.01})


def test_a_party_that_demands_privacy_takes_private_statistics_alone() -> None:
    demand = Demand(unit="example", budget=Budget(epsilon=1.5, delta=1e-6, method="exact"))
    policy = {"south": SitePolicy(privacy=demand, min_count=20)}
    ranges = {"age": [0, 100]}

    def run(**settings: Any) -> Any:
        return atoll.simulate(Statistics(**settings, ranges=ranges), frames(), engine="inline", policy=policy).outcome

    assert run(**{**PRIVATE, "epsilon": 1.0}).privacy["epsilon"] == 1.0
    with pytest.raises(PolicyError, match="budget"):
        run(**PRIVATE)
    with pytest.raises(PolicyError, match="statistics of columns without noise"):
        run(columns=["age"], min_count=20)
