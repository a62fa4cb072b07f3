"""Statistics: the answer of all rows in one place, through every way of running a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

import atoll
from atoll.core.errors import AtollError, ConfigError, DataError, PolicyError
from atoll.core.requests.policy import SitePolicy
from atoll.data import Dataset, DataTable, Islands
from atoll.runs import RunFolder, execute, parse_config
from atoll.statistics import Statistics
from tests.support.patients import SHARES, described, frames, require_pooled


def test_it_is_the_answer_of_all_rows_in_one_place() -> None:
    found = described(bins=7, quantiles=SHARES, exact=True, correlations=True, by=["sex"], over="day", text=["note"])
    pooled = pd.concat(frames().values())
    require_pooled(found, pooled)
    for site, rows in frames().items():
        x = rows["age"].dropna()
        np.testing.assert_allclose(found.sites[site]["age"].mean, x.mean(), rtol=1e-13)
        assert found.sites[site]["age"].count == len(x)
    for label in ("f", "m"):
        require_pooled_group = pooled[pooled.sex == label]
        assert found.groups["sex"][label].rows == len(require_pooled_group)
        np.testing.assert_allclose(
            found.groups["sex"][label]["age"].mean, require_pooled_group["age"].mean(), rtol=1e-13
        )
    months = pooled.groupby(pooled.day.dt.strftime("%Y-%m"))["age"].std(ddof=0).to_dict()
    assert {label: pytest.approx(part["age"].std) for label, part in found.groups["day"].items()} == months
    names, matrix = found.correlations or ((), None)
    wanted = pooled[["age", "pressure"]].corr()
    np.testing.assert_allclose(pd.DataFrame(matrix, names, names).loc[wanted.index, wanted.columns], wanted, rtol=1e-9)
    assert "sex" not in found.whole  # it divides the rows
    assert found["note/vocabulary"].values == {
        word: int(pooled.note.str.contains(word).sum()) for word in ("feels", "has", "is", "pain", "tired", "well")
    }
    lengths = pooled.note[pooled.note != ""].str.len()
    assert (found["note/characters"].mean, found["note/characters"].missing) == (
        pytest.approx(lengths.mean()),
        int((pooled.note == "").sum()),
    )
    assert found.withheld == []
    assert found.errors == {}


def test_categories_drift_and_a_sketch_of_quantiles() -> None:
    found = described(columns=["age", "sex"], quantiles=SHARES, drift=True)
    pooled = pd.concat(frames().values())
    assert found["sex"].values == {label: int((pooled.sex == label).sum()) for label in ("f", "m")}
    assert found["sex"].missing == int((pooled.sex == "").sum())
    x = pooled["age"].dropna()
    for share in SHARES:
        assert abs((found["age"].quantiles or {})[share] / np.quantile(x, share) - 1) < 2**-8
    assert "within 0.0039" in found.errors["quantiles"]
    assert found.drift["west"]["age"].psi > found.drift["north"]["age"].psi
    assert found.drift["west"]["age"].verdict == "large"
    assert set(found.drift["north"]) == {"age", "sex"}


def test_conditions_choose_rows() -> None:
    pooled = pd.concat(frames().values())
    found = described(where=[["age", ">=", 55], ["sex", "in", ["f"]]])
    require_pooled(found, pooled[(pooled.age >= 55) & (pooled.sex == "f")])


def test_data_sets_images_and_texts_are_tables_too() -> None:
    iris = atoll.data.iid(atoll.data.iris(), parties=3, seed=0)
    found = described(iris)
    names = list(iris.about.features)
    np.testing.assert_allclose(found.array("mean", names), iris.pooled().x.astype(np.float64).mean(axis=0), rtol=1e-12)
    codes, counts = np.unique(iris.pooled().y, return_counts=True)
    assert found["y"].values == {iris.about.labels[code]: n for code, n in zip(codes, counts.tolist(), strict=True)}
    pictures = np.random.default_rng(0).integers(0, 256, (40, 5, 5, 3)).astype(np.uint8)
    parts = {"a": Dataset({"x": pictures[:30], "y": [0, 1] * 15}), "b": Dataset({"x": pictures[30:], "y": [0, 1] * 5})}
    shown = described(Islands.from_datasets(parts), bins=16, min_count=10)
    assert (shown["intensity"].histogram or pytest.fail("no histogram")).counts.sum() == pictures.size
    np.testing.assert_allclose(shown["red"].mean, pictures[..., 0].mean())
    with pytest.raises(DataError, match="has no columns to describe"):
        described({"a": 3, "b": 4})


def test_too_few_rows_are_withheld_with_what_gives_them_away() -> None:
    found = described(min_count=40, bins=7, by=["sex"], columns=["age"], quantiles=[0.5])
    assert list(found.sites["west"]) == []
    assert any(line.startswith("west: all rows: fewer than min_count=40 rows") for line in found.withheld)
    require = pd.concat([frames()["north"], frames()["south"]])
    np.testing.assert_allclose(found["age"].mean, require.age.mean())
    for part in (found.whole, *found.sites.values(), *found.groups["sex"].values()):
        for one in part.values():
            counts = one.histogram.counts if one.histogram else np.zeros(1)
            assert ((counts == 0) | (counts >= 40)).all()
    assert "which stand for at least 40 rows of a site each" in found.errors["quantiles"]
    rank = scipy.stats.percentileofscore(require.age.dropna(), (found["age"].quantiles or {})[0.5]) / 100
    assert abs(rank - 0.5) * len(require) <= 2 * 80  # within an interval of each of two sites
    assert (found["age"].min, found["age"].max) == (None, None)
    assert "north: min and max of age: they are values of single rows" in found.withheld


def test_two_requests_that_differ_by_few_rows_are_refused(tmp_path: Path) -> None:
    rows = {name: DataTable.of(one) for name, one in frames().items()}
    least = float(np.sort(rows["north"]["age"][~np.isnan(rows["north"]["age"])])[-3])
    first = Statistics(columns=["pressure"], min_count=5, request="all patients")
    atoll.simulate(first, rows, engine="inline", results=tmp_path)
    again = Statistics(columns=["pressure", "age"], min_count=5, bins=4, request="again")
    atoll.simulate(again, rows, engine="inline", results=tmp_path)
    holes = int(np.isnan(rows["north"]["age"]).sum())
    assert holes >= 5  # so that those without an age are enough
    young = Statistics(columns=["pressure"], where=[["age", "<", least]], min_count=5)
    atoll.simulate(young, rows, engine="inline", results=tmp_path / "others")  # nothing was answered there
    youngest = Statistics(columns=["pressure"], where=[["age", "<", least + 0.001]], min_count=5, request="young")
    with pytest.raises(
        PolicyError,
        match=r"the difference between the rows where age < .* and the rows where age < .*'statistics'.*min_count=5",
    ):
        atoll.simulate(youngest, rows, engine="inline", results=tmp_path / "others")
    shown = Statistics(columns=["age"], where=[["age", "<", least + 0.001]], min_count=5)
    with pytest.raises(PolicyError, match="of the earlier request 'statistics' is fewer than min_count=5"):
        atoll.simulate(shown, rows, engine="inline", results=tmp_path / "others")  # another column of the same rows


def test_a_refused_request_is_in_no_record_and_a_failed_one_is(tmp_path: Path) -> None:
    rows = {name: DataTable.of(one) for name, one in frames().items()}
    broken = {**rows, "west": DataTable({"age": ["old"] * 40})}
    with pytest.raises(DataError, match="column 'age' is a category at west and a number at north"):
        described(broken, columns=["age"], min_count=5)
    with pytest.raises(DataError, match="column 'age' is a category at west"):
        atoll.simulate(Statistics(columns=["age"], min_count=5), broken, engine="inline", results=tmp_path)
    most = float(np.nanmax(rows["north"]["age"]))
    with pytest.raises(
        PolicyError, match="of the earlier request 'statistics'"
    ):  # north had replied before the job failed
        atoll.simulate(
            Statistics(
                columns=["age"], where=[["pressure", "<", float(np.sort(rows["north"]["pressure"])[-2])]], min_count=5
            ),
            rows,
            engine="inline",
            results=tmp_path,
        )
    assert most > 0


def test_a_policy_of_a_site_wins() -> None:
    ten = SitePolicy(min_count=10)
    with pytest.raises(PolicyError, match="min_count=1, but this site requires at least 10 rows"):
        atoll.simulate(Statistics(min_count=1), frames(), engine="inline", policy={"south": ten})
    atoll.simulate(Statistics(min_count=10), frames(), engine="inline", policy={"south": ten})
    with pytest.raises(ConfigError, match="min_count=0"):
        SitePolicy(min_count=0)


def test_a_configuration_gives_a_folder_and_a_report(tmp_path: Path) -> None:
    data = {"source": "iris", "partition": {"name": "iid", "parties": 4, "seed": 1}}
    folder = RunFolder(tmp_path / "run")
    settings = {"job": "statistics", "data": data, "min_count": 5, "bins": 3, "quantiles": [0.5]}
    result = execute(parse_config(settings), folder)
    said = json.loads((folder.path / "statistics.json").read_text())
    assert said == folder.manifest()["result"] == result.outcome.plain()
    assert [row["contact"] for row in folder.metrics()] == ["moments", "histograms"]
    assert folder.config().made() == Statistics(min_count=5, bins=3, quantiles=(0.5,))
    assert folder.report_file.exists()


@pytest.mark.parametrize("engine", ["batched", "processes", "socket"])
def test_every_engine_finds_the_same(engine: str) -> None:
    job = Statistics(bins=3, quantiles=[0.5], columns=["age", "sex"])
    found = atoll.simulate(job, frames(), engine=engine, workers=2).outcome
    assert found.plain() == described(bins=3, quantiles=[0.5], columns=["age", "sex"]).plain()


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"min_count": 0}, ConfigError, "min_count=0"),
        ({"quantiles": [1.5]}, ConfigError, r"quantiles=\[1.5\]"),
        ({"epsilon": -1.0}, ConfigError, "epsilon=-1.0"),
        ({"epsilon": 1.0, "correlations": True}, ConfigError, "correlations=True with epsilon"),
        ({"exact": True, "min_count": 5}, ConfigError, "exact=True tells values of single rows"),
        ({"ranges": {"age": [3, 1]}}, ConfigError, "ranges="),
        ({"quantiles": [0.0], "extremes": False}, ConfigError, "quantiles=.* with extremes=False"),
        ({"columns": "age"}, ConfigError, "columns='age'"),
        ({"columns": ["agee"]}, DataError, "no column 'agee'. Did you mean 'age'"),
        ({"by": ["agee"]}, DataError, "no column 'agee'"),
        ({"over": "age"}, DataError, "column 'age' does not hold moments"),
        ({"period": "decade"}, ConfigError, "period='decade'"),
        ({"where": [["age", "~", 3]]}, ConfigError, "where="),
        ({"where": [["age", ">", "old"]]}, DataError, "holds numbers, and the condition compares it with 'old'"),
        ({"by": ["sex"], "epsilon": 1.0}, ConfigError, "groups of 'sex' where single replies are not seen"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], error: type[AtollError], match: str) -> None:
    with pytest.raises(error, match=match):
        described(**settings)


def test_ends_are_told_only_where_they_may() -> None:
    found = described(bins=4, extremes=False, ranges={"age": [0, 100]}, columns=["age"])
    assert (found["age"].min, found["age"].max) == (None, None)
    assert (found["age"].histogram or pytest.fail("no histogram")).edges.tolist() == [0, 25, 50, 75, 100]


def test_sites_find_what_the_simulation_finds(tmp_path: Path) -> None:
    from tests.support.work_toys import held, sites_of

    draw = np.random.default_rng(3)
    parts = {
        name: Dataset(
            {"x": draw.normal(1e6, 2.0, (size, 3)), "y": draw.normal(size=size)},
            task="regression",
            features=["p", "q", "r"],
        )
        for name, size in {"a": 7, "b": 40, "c": 1}.items()
    }
    declared = SitePolicy(extremes=("*",))
    sites = {name: lambda load=load: replace(load(), policy=declared) for name, load in sites_of(parts).items()}
    told = held({"job": "statistics"}, sites, tmp_path)
    assert told["status"] == "finished"
    assert told["result"]["global"] == described(parts).plain()["global"]
    again = held({"job": "statistics"}, sites, tmp_path, resume=True)
    assert (again["result"], again["rounds"]) == (told["result"], 1)


def test_sites_read_their_files_as_they_are(tmp_path: Path) -> None:
    from atoll.runtime.worker.sitedata import load_site_data
    from tests.support.work_toys import held

    for name, rows in frames().items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    policy = {"min_count": 10}
    specs = {name: {"path": str(tmp_path / f"{name}.csv"), "drop": ["note"], "policy": policy} for name in frames()}
    sites = {name: (lambda name=name: load_site_data(specs[name], name, reads="table")) for name in specs}
    job = {"job": "statistics", "min_count": 10, "bins": 4, "by": ["sex"], "over": "day"}
    told = held(job, sites, tmp_path / "job")
    assert told["status"] == "finished"
    assert "note" not in told["result"]["global"]
    pooled = pd.concat(frames().values())
    assert told["result"]["global"]["age"]["mean"] == pytest.approx(pooled.age.mean(), rel=1e-12)
    assert (tmp_path / "job" / "statistics.json").exists() or list((tmp_path / "job").rglob("statistics.json"))
    with pytest.raises(AtollError, match="min_count=5, but this site requires at least 10 rows"):
        held({**job, "min_count": 5}, sites, tmp_path / "other")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [("age", "AGE", True), ("pressure", "presure", True), ("smoking status", "smoking_status", True), ("lab1", "lab2", False), ("systolic", "diastolic", False), ("age", "dose", False)],
)  # fmt: skip
def test_a_column_under_two_names_is_said(one: str, other: str, said: bool) -> None:
    north = pd.DataFrame({"key": ["a", "b"] * 20, one: np.arange(40) % 7 + 0.5})
    south, east = (north.iloc[::-1].rename(columns={one: name}) for name in (other, one))
    result = atoll.simulate(
        Statistics(), {"north": north, "south": south, "east": east}, engine="inline", progress=False
    )
    lines = [line for line in result.notices if "two names" in line and "column" in line]
    assert len(lines) == said
    assert all(repr(one) in line and repr(other) in line for line in lines)
    both = {
        site: pd.DataFrame({one: table.iloc[:, 1], other: 1.0}) for site, table in (("north", north), ("south", south))
    }
    assert not [line for line in atoll.simulate(Statistics(), both, engine="inline", progress=False).notices if "is at" in line]  # fmt: skip
