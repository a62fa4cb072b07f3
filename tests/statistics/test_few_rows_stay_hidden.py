"""What an audit read off statistics, and what they say now: bins, quantiles, extremes, lists of values, and pairs of requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import atoll
from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.core.requests.policy import AllowAll, SitePolicy
from atoll.core.time.clock import run
from atoll.fitting import Fit, NaiveBayes
from atoll.reducers import SecureAggregation
from atoll.runs import parse_policy, yaml
from atoll.runtime.worker.policies import policy_of_site
from atoll.runtime.worker.sitedata import load_site_data
from atoll.statistics import Statistics
from atoll.statistics.disclosure import coarsen
from tests.support.patients import described

MARKERS = np.round(np.random.default_rng(5).gamma(2.0, 1.0, 300), 6)
SECURE = {"reducer": SecureAggregation(), "columns": ["marker"]}


def ward(rows: int, first: int, seed: int = 0) -> pd.DataFrame:
    """Patients with an id each, a number of their own, and an age."""
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "patient": [f"P{first + k:05d}" for k in range(rows)],
            "number": first + draw.permutation(rows),
            "age": draw.integers(18, 95, rows),
            "sex": draw.choice(["f", "m"], rows),
            "marker": draw.gamma(2.0, 1.0, rows).round(6),
        }
    )


@pytest.mark.parametrize("more", [{}, SECURE], ids=["by site", "sums"])
def test_edges_that_move_a_little_tell_no_few_rows(more: dict[str, Any]) -> None:
    """Exact counts below 1.00 and below 1.05 differ by a few patients; those that are told do not."""
    site = {"north": {"marker": MARKERS}, "south": {"marker": MARKERS[::-1] + 0.0}}
    exact = [int((edge > MARKERS).sum()) for edge in (1.0, 1.05)]
    assert 0 < exact[1] - exact[0] < 10
    told = []
    for edge in (1.0, 1.05, 1.1, 1.15):
        job = Statistics(min_count=10, bins=1, ranges={"marker": [0, edge]}, **({"columns": ["marker"], **more}))
        found = atoll.simulate(job, site, engine="inline").outcome["marker"].histogram
        told.append(int(found.counts.sum()))
    steps = np.abs(np.diff(told))
    assert ((steps == 0) | (steps >= 10)).all()


@pytest.mark.parametrize("more", [{}, SECURE], ids=["by site", "sums"])
def test_many_quantiles_are_not_the_values(more: dict[str, Any]) -> None:
    """601 shares told 30 of 300 values to 2e-6."""
    shares = [k / 600 for k in range(1, 600)]
    job = Statistics(**{"columns": ["marker"], **more}, min_count=10, quantiles=shares, digits=20)
    site = {"north": {"marker": MARKERS[:150]}, "south": {"marker": MARKERS[150:]}}
    found = atoll.simulate(job, site, engine="inline").outcome["marker"]
    told = np.array([*(found.quantiles or {}).values()])
    grid = np.concatenate([coarsen(MARKERS[:150], 10), coarsen(MARKERS[150:], 10)])
    near = np.abs(told[:, None] - np.unique(grid)).min(axis=1)
    assert (near < 1e-5).mean() > 0.85  # points of the grid, or between two of them
    assert len(np.unique(grid)) <= 2 * 150 / 10
    hits = (np.abs(MARKERS[:, None] - told).min(axis=1) < 2e-6 * MARKERS).sum()
    assert hits <= 2  # by chance alone


def test_extremes_are_hidden_unless_the_policy_declares_them() -> None:
    site = {"north": ward(300, 0), "south": ward(200, 300, 1)}
    for policy, told in (
        (SitePolicy(min_count=10), ()),
        (SitePolicy(min_count=10, extremes=["age"]), ("age",)),
        (SitePolicy(min_count=1), ()),
        (AllowAll(), ()),
    ):
        job = Statistics(columns=["age", "marker"], min_count=10, bins=6, quantiles=[0.5])
        found = atoll.simulate(job, site, engine="inline", policy=policy).outcome
        for name in ("age", "marker"):
            ends = [site[key][name].min() for key in site]
            assert found[name].min == (min(ends) if name in told else None)
            assert (found[name].histogram or pytest.fail("no histogram")).counts.sum() == 500
        assert ("north: min and max of marker: they are values of single rows") in found.withheld
    one = {"north": SitePolicy(min_count=10, extremes=["*"]), "south": SitePolicy(min_count=10)}
    found = atoll.simulate(job, site, engine="inline", policy=one).outcome
    assert (found["age"].min, found.sites["north"]["age"].min) == (None, site["north"].age.min())
    with pytest.raises(ConfigError, match=r"extremes='age'"):
        SitePolicy(extremes="age")  # type: ignore[arg-type]
    assert parse_policy({"extremes": ["a*"]}).extremes == ("a*",)


@pytest.mark.parametrize("least", [1, 10])
def test_values_that_are_nearly_all_different_are_never_listed(least: int) -> None:
    site = {"north": ward(300, 0), "south": ward(220, 300, 1)}
    guesses = {"number": [str(k) for k in range(520)], "patient": [f"P{k:05d}" for k in range(520)]}
    asked: list[dict[str, Any]] = [
        {},
        {"categories": guesses},
        {"by": ["patient"], "columns": ["age"]},
        {"by": ["number"], "columns": ["age"]},
        {"text": ["patient"]},
        {"categories": guesses, "reducer": SecureAggregation(), "columns": ["patient", "number", "age"]},
    ]
    for settings in asked:
        found = described(site, min_count=least, **settings)
        assert not any(found.groups.get(name) for name in ("patient", "number"))
        for name in ("patient", "number", "patient/vocabulary"):
            if name in found.whole:
                values = found[name].values or {}
                assert not any(values.values()), settings
    found = described(site, min_count=least)
    assert found["number"].mean == pytest.approx(259.5)  # moments stand
    assert found["patient"].count == 520
    assert "north: values of patient: they are nearly all different" in found.withheld
    assert set(found["sex"].values or {}) == {"f", "m"}
    with pytest.raises(AtollError, match="no value of 'patient' is known"):
        atoll.simulate(
            Fit(model=NaiveBayes(), columns=["patient"], label="sex", min_count=least), site, engine="inline"
        )


def test_a_pair_of_requests_is_judged_by_rows_whatever_its_shape(tmp_path: Path) -> None:
    """Another column, another statistic, a bin, a listed value, a fit: each reaches a set of rows, and sets are compared."""
    rows = ward(300, 0)
    rows.loc[0, "age"] = 17
    rows["wing"] = np.where(np.arange(300) < 150, "east", "west")
    rows["near"] = np.where((np.arange(300) < 150) | (np.arange(300) == 200), "east", "west")
    site = {"north": rows}

    def ask(folder: str, **settings: Any) -> Any:
        job = Statistics(min_count=10, **settings)
        return atoll.simulate(job, site, engine="inline", results=tmp_path / folder, progress=False).outcome

    adults = [["age", ">", 17]]
    for k, first in enumerate(({"columns": ["marker"]}, {"columns": ["sex"]}, {"columns": ["age"], "bins": 3})):
        ask(f"shape {k}", **first)
        with pytest.raises(PolicyError, match="of the earlier request 'statistics' is fewer than min_count=10"):
            ask(f"shape {k}", columns=["number"], where=adults)
    # A value that was listed, against a condition that leaves out one of its rows.
    ask("listed", columns=["wing"])
    with pytest.raises(PolicyError, match="wing=east"):
        ask("listed", columns=["marker"], where=[["near", "==", "east"]])
    # A bin, against a condition at nearly the same place.
    told = ask("bins", columns=["number"], bins=4)["number"].histogram
    with pytest.raises(PolicyError, match="number from"):
        ask("bins", columns=["age"], where=[["number", "<", float(told.edges[1]) + 1]])
    # Groups of two columns that differ by one patient, in one request.
    with pytest.raises(PolicyError, match="of this request is fewer than min_count=10"):
        ask("groups", columns=["marker"], by=["wing", "near"])
    # A fit is an answer too.
    atoll.simulate(
        Fit(model=NaiveBayes(), columns=["marker"], label="sex", min_count=10),
        site,
        engine="inline",
        results=tmp_path / "fit",
    )
    with pytest.raises(PolicyError, match="of the earlier request 'fit of NaiveBayes'"):
        ask("fit", columns=["age"], where=adults)


def test_rows_outside_all_groups_are_a_cell() -> None:
    rows = ward(100, 0)
    rows.loc[:2, "sex"] = ""
    found = described({"north": rows}, columns=["marker"], by=["sex"], min_count=10)
    assert len(found.groups.get("sex", {})) == 1  # all rows without both groups would be three patients


def test_correlations_of_rows_that_lack_one_value_are_hidden() -> None:
    rows = pd.DataFrame({"a": np.arange(100.0), "b": np.arange(100.0) % 7})
    rows.loc[3, "b"] = np.nan
    _, matrix = described({"north": rows}, correlations=True, min_count=5).correlations or ((), np.zeros((0, 0)))
    assert np.isnan(np.asarray(matrix)[0, 1])  # sums of a over 100 rows and over 99 would tell the one
    rows.loc[:30, "b"] = np.nan
    _, matrix = described({"north": rows}, correlations=True, min_count=5).correlations or ((), np.zeros((0, 0)))
    assert np.isfinite(np.asarray(matrix)[0, 1])


def test_a_request_without_a_minimum_count_takes_its_sites_largest() -> None:
    site = {"north": ward(300, 0), "south": ward(200, 300, 1), "west": ward(60, 500, 2)}
    policy = {
        "north": SitePolicy(min_count=10),
        "south": SitePolicy(min_count=70, tasks=["atoll.statistics.*", "atoll.secure.*"]),
    }
    for more in ({}, {"reducer": SecureAggregation()}):
        found, taken = (
            atoll.simulate(
                Statistics(columns=["age"], min_count=least, **more), site, engine="inline", policy=policy
            ).outcome
            for least in (None, 70)
        )
        assert found.plain() == taken.plain()
        assert any("min_count=70" in line for line in found.withheld) or more
    with pytest.raises(PolicyError, match="min_count=20, but this site requires at least 70"):
        atoll.simulate(Statistics(columns=["age"], min_count=20), site, engine="inline", policy=policy)
    with pytest.raises(ConfigError, match="exact=True tells values of single rows, and min_count=70"):
        atoll.simulate(Statistics(columns=["age"], exact=True, quantiles=[0.5]), site, engine="inline", policy=policy)
    sums_only = SitePolicy(min_count=10, sums_only=True, smallest_cohort=3)
    reducer = SecureAggregation(server="active", least=3)
    job = Statistics(columns=["age"], reducer=reducer)
    assert atoll.simulate(job, site, engine="inline", policy=sums_only).outcome["age"].count == 560


def test_sums_with_a_minimum_count_have_the_moments_of_all_rows() -> None:
    """They are scaled without a range: also far from 0, of nearly equal values, and with one value far out."""
    draw = np.random.default_rng(1)
    frames = {
        name: pd.DataFrame(
            {
                "a": draw.normal(1e6, 3, n),
                "b": draw.normal(0, 1e-5, n),
                "c": np.full(n, 4.0),
                "d": draw.normal(50, 9, n),
            }
        )
        for name, n in {"north": 200, "south": 130, "west": 40}.items()
    }
    frames["north"].loc[0, "d"] = 4000.0
    found = described(
        frames, reducer=SecureAggregation(), columns=list("abcd"), min_count=10, quantiles=[0.5], correlations=True
    )
    pooled = pd.concat(frames.values())
    for name in "abcd":
        np.testing.assert_allclose(found[name].mean, pooled[name].mean(), rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(found[name].std, pooled[name].std(ddof=0), rtol=1e-6, atol=1e-7)
        assert (found[name].min, found[name].max) == (None, None)
    skewness = ((pooled.d - pooled.d.mean()) ** 3).mean() / pooled.d.std(ddof=0) ** 3
    np.testing.assert_allclose(found["d"].skewness, skewness, rtol=1e-6)


def test_values_far_beyond_count_as_the_bound_of_their_site() -> None:
    """The bound is 2^8 times the power of two that ten of its values reach, whatever the server asks."""
    near = np.random.default_rng(2).normal(50, 9, 99)
    site = {"north": {"marker": np.append(near, 1e30)}, "south": {"marker": near}, "west": {"marker": near[:4]}}
    found = atoll.simulate(Statistics(**SECURE, min_count=10), site, engine="inline").outcome["marker"]
    bounded = np.concatenate([near, [2.0**14], near, near[:4]])
    np.testing.assert_allclose((found.mean, found.std), (bounded.mean(), bounded.std()), rtol=1e-6)


def test_a_site_without_a_word_has_a_minimum_count_of_ten(tmp_path: Path) -> None:
    """The quick sibling of the next test, in one process."""
    from tests.support.work_toys import held

    frames = {"a": ward(300, 0), "b": ward(220, 300, 1)}
    for name, rows in frames.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    for more in ({}, {"policy": {"allow": ["statistics"]}}):
        sites = {
            name: lambda name=name, more=more: load_site_data(
                {"path": str(tmp_path / f"{name}.csv"), **more}, name, reads="table"
            )
            for name in frames
        }
        told = held({"job": "statistics", "quantiles": [0.5]}, sites, tmp_path / f"job {len(more)}")["result"]
        assert told["global"]["patient"]["count"] == 520
        assert not any(patient in str(told) for rows in frames.values() for patient in rows.patient)
        assert told["global"]["age"]["min"] is None
        assert any("values of patient: they are nearly all different" in line for line in told["withheld"])
        with pytest.raises(AtollError, match="min_count=9, but this site requires at least 10 rows"):
            held({"job": "statistics", "min_count": 9}, sites, tmp_path / f"other {len(more)}")
    said = policy_of_site({"policy": {"min_count": 3, "extremes": ["age"]}}, "a")
    assert said is not None
    assert (said.min_count, said.extremes) == (3, ("age",))


@pytest.mark.slow
def test_a_site_that_says_nothing_gives_no_patient_away(tmp_path: Path) -> None:
    """Real processes: an unread policy let 520 ids out. The record of answers outlives each job's process, whoever asks."""
    frames = {"site-1": ward(300, 0), "site-2": ward(220, 300, 1)}
    data = {}
    for name, rows in frames.items():
        (tmp_path / f"{name}.csv").write_text(rows.to_csv(index=False), encoding="utf-8")
        settings = {"path": str(tmp_path / f"{name}.csv"), "target": "sex"}
        (tmp_path / f"{name}.yaml").write_text(yaml.dump(settings), encoding="utf-8")
        data[name] = [str(tmp_path / f"{name}.yaml")]
    oldest = int(frames["site-1"].age.max())
    few = int((frames["site-1"].age >= oldest).sum())
    assert 0 < few < 10
    jobs: list[dict[str, Any]] = [
        {"job": "statistics", "bins": 4, "quantiles": [0.5]},
        {"job": "statistics", "min_count": 1},
        {"job": "statistics", "columns": ["sex"], "where": [["age", "<", oldest]]},
        {"job": "fit", "model": {"name": "NaiveBayes"}, "columns": ["patient"], "label": "sex"},
    ]
    told, lower, differing, listing = run(_asked(tmp_path / "poc", data, jobs), virtual=False)
    assert told["state"] == "finished", told["error"]
    said = told["result"]
    text = str(said)
    assert not any(patient in text for rows in frames.values() for patient in rows.patient)
    assert said["global"]["patient"]["count"] == 520
    for name in ("age", "number", "marker"):
        assert said["global"][name]["min"] is None
        assert said["global"][name]["mean"] == pytest.approx(pd.concat(frames.values())[name].mean())
    assert "min_count=1, but this site requires at least 10 rows" in str(lower["error"])
    assert "of the earlier request 'statistics' is fewer than min_count=10 rows" in str(differing["error"])
    assert "no value of 'patient' is known" in str(listing["error"])


async def _asked(place: Path, data: dict[str, list[str]], jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Jobs at a server and sites as processes, one after another."""
    from atoll.runtime.admin import Admin
    from atoll.runtime.poc import Poc

    found = []
    async with Poc(place, data) as poc, Admin(poc.kit("admin"), poc.address) as admin:
        for k, tree in enumerate(jobs):
            file = place / f"job-{k}.yaml"
            file.write_text(yaml.dump({"sites": list(data), **tree}), encoding="utf-8")
            made = await admin.submit(file)
            ended = await admin.wait(made["job"])
            where = await admin.result(made["job"], place / f"result-{k}") if ended["state"] == "finished" else []
            (manifest,) = [path for path in where if path.name == "manifest.json"] or [None]
            found.append({**ended, "result": json.loads(manifest.read_text())["result"] if manifest else None})
    return found


def known_people(rows: int, first: int, offset: float = 0.0) -> pd.DataFrame:
    """Pay that nobody should know, and what others know of people: ages, who is in intensive care, an old unit of the same (all but one are equal), and a total of two columns that is wrong once."""
    draw = np.random.default_rng(first)
    made = pd.DataFrame({"pay": draw.normal(3000, 400, rows).round(2), "age": draw.integers(20, 70, rows) / 10})
    made["icu"] = offset + (np.arange(rows) == 3) * (1e-6 if offset else 1.0)
    made["dead"] = np.arange(rows) // 2 % 2
    made["sum"] = (made["age"] + made["dead"] + 0.3 * (np.arange(rows) == 7)).round(1)
    return made


@pytest.mark.parametrize("more", [{}, {"reducer": SecureAggregation(), "columns": ["pay", "age", "icu", "dead", "sum"]}], ids=["by site", "sums"])  # fmt: skip
@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_correlations_with_what_others_know_isolate_nobody(more: dict[str, Any], offset: float) -> None:
    """``sum pay`` and ``sum pay icu`` are the pay of the only one in intensive care; ``sum pay (sum - age - dead)`` that of the one whose total is wrong."""
    site = {"north": known_people(60, 0, offset), "south": known_people(50, 1, offset)}
    told = dict(zip(("few", "all"), (described(site, correlations=True, min_count=least, **more) for least in (5, 1)), strict=True))  # fmt: skip
    names, matrix = told["few"].correlations or ((), np.zeros((0, 0)))
    shown = {(a, b) for a, row in zip(names, matrix, strict=True) for b, r in zip(names, row, strict=True) if np.isfinite(r) and a < b}  # fmt: skip
    assert shown == {("age", "pay"), ("dead", "pay"), ("age", "dead"), ("age", "sum"), ("dead", "sum")}
    pooled = pd.concat(site.values()).corr()
    for a, b in shown:
        assert matrix[list(names).index(a), list(names).index(b)] == pytest.approx(pooled.loc[a, b], abs=1e-6)
    assert sum("the correlation of pay and icu" in line for line in told["few"].withheld) == (1 if more else 2)
    assert np.isfinite((told["all"].correlations or ((), np.zeros((0, 0))))[1]).all()


@pytest.mark.parametrize("more", [{}, {"reducer": SecureAggregation()}], ids=["by site", "sums"])
def test_correlations_of_several_requests_are_combined(more: dict[str, Any], tmp_path: Path) -> None:
    """Each request tells what it may; that of the wrong total comes when the two columns that it adds are told already."""
    site = {"north": known_people(60, 0), "south": known_people(50, 1)}
    shown = []
    for columns in (["pay", "age"], ["pay", "dead"], ["pay", "sum"]):
        job = Statistics(columns=columns, correlations=True, min_count=5, request=" and ".join(columns), **more)
        found = atoll.simulate(job, site, engine="inline", results=tmp_path).outcome
        shown.append(bool(np.isfinite(found.correlations[1][0, 1])))
    assert shown == [True, True, False]


def test_a_server_that_asks_for_pairs_to_which_a_party_objects_gets_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.statistics import by_sums

    plain = by_sums._Sums._contact

    async def asking(self: Any, name: str, task: Any, message: Any) -> Any:
        if len(message.get("pairs", ())):
            message = {**message, "pairs": np.ones_like(message["pairs"])}
        return await plain(self, name, task, message)

    monkeypatch.setattr(by_sums._Sums, "_contact", asking)
    with pytest.raises(AtollError, match="sums of products of pay, icu and earlier answers together show fewer than min_count=5 rows"):  # fmt: skip
        described({"north": known_people(60, 0), "south": known_people(50, 1)}, reducer=SecureAggregation(), columns=["pay", "icu"], correlations=True, min_count=5)  # fmt: skip
