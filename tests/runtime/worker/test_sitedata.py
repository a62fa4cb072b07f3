"""What a site may bring, and what it is told when it cannot be used."""

from __future__ import annotations

import gzip
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
import atoll.data
from atoll.core.errors import ConfigError, DataError
from atoll.data.readers.table import from_table
from atoll.runs import parse_data
from atoll.runtime.poc import write_parts
from atoll.runtime.worker import SiteData, load_site_data, site_spec
from atoll.runtime.worker.cards import merge_cards
from atoll.runtime.worker.headers import look_at_headers
from atoll.runtime.worker.words import inside

CSV = "age,dose,outcome\n50,0.5,ill\n60,1.5,well\n70,2.5,well\n"


def write(path: Path, text: str = CSV) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def rows(data: SiteData, i: int = 0) -> tuple[Any, Any]:
    shard = data.population.shard(i)
    return np.asarray(shard["x"]), np.asarray(shard["y"])


def test_a_csv_file_is_one_client_named_after_the_site(tmp_path: Path) -> None:
    spec = site_spec("a.csv", target="outcome", base=write(tmp_path / "a.csv").parent)
    data = load_site_data(spec, "north")
    assert (data.names, data.sizes) == (("north",), (3,))
    x, y = rows(data)
    assert x.tolist() == [[50, 0.5], [60, 1.5], [70, 2.5]]
    assert y.tolist() == [0, 1, 1]
    card = data.card
    assert card is not None
    assert (card.task, card.labels, card.features) == ("classification", ("ill", "well"), ("age", "dose"))
    write(tmp_path / "b.csv", "age;dose;outcome\n50;0,5;1\n60;1,5;3\n")
    more = {"path": str(tmp_path / "b.csv"), "target": "outcome", "delimiter": ";", "decimal": ","}
    data = load_site_data(more, "south")
    assert [values.tolist() for values in rows(data)] == [[[50, 0.5], [60, 1.5]], [0, 1]]
    assert data.card is not None
    assert (data.card.task, data.card.labels) == ("classification", ("1", "3"))
    with pytest.raises(DataError, match="no column 'sxe'"):
        load_site_data({**more, "categories": {"sxe": ["f", "m"]}}, "south")


def test_settings_of_another_kind_are_refused_before_the_site_connects(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    for line, remedy in (
        ("scales: no", "write true or false"),  # YAML 1.2 has no such truth: it is a word, and words count as true
        ("missing_features: no", "write true or false"),
        ("held_out: 20", "give a share between 0 and 1"),
        ("held_out: '0.2'", "give a share between 0 and 1"),
        ("drop: age", r"write a list of columns, \[a, b\]"),
        ("features:", r"write a list of columns, \[a, b\]"),
        ("task: regresion", "Did you mean 'regression'"),
        ("delimiter: ';;'", "give one character"),
        ("encoding: utf-9", "give an encoding that Python knows"),
        ("categories: {outcome: [ill, ill]}", "as a list without repetition"),
        ("categories: {outcome: ill}", "as a list without repetition"),
        ("limits: 30", "write NAME: VALUE below it"),
    ):
        write(tmp_path / "site.yaml", f"path: a.csv\ntarget: outcome\n{line}\n")
        with pytest.raises(DataError, match=f"{line.partition(':')[0]}.*{remedy}"):
            look_at_headers(site_spec(str(tmp_path / "site.yaml")), "north")
    write(tmp_path / "site.yaml", "path: a.csv\ntarget: outcome\nscales: false\n")
    assert load_site_data(site_spec(str(tmp_path / "site.yaml")), "north").scales is False


def test_a_column_that_the_file_or_the_command_leaves_out_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "id,age,dose,outcome\n1,50,0.5,ill\n2,60,1.5,well\n")
    write(tmp_path / "site.yaml", "path: a.csv\ntarget: outcome\ndrop: [id]\n")
    data = load_site_data(site_spec(str(tmp_path / "site.yaml"), drop=["dose"]), "north")
    assert data.card is not None
    assert data.card.features == ("age",)


def test_the_files_of_a_folder_are_joined_and_their_labels_agree(tmp_path: Path) -> None:
    write(tmp_path / "d" / "2.csv", "age,dose,outcome\n1,1,well\n")
    write(tmp_path / "d" / "1.csv", "age,dose,outcome\n2,2,ill\n3,3,dead\n")
    data = load_site_data({"path": str(tmp_path / "d"), "target": "outcome"}, "north")
    x, y = rows(data)
    assert x[:, 0].tolist() == [2, 3, 1]
    assert data.card is not None
    assert [data.card.labels[k] for k in y] == ["ill", "dead", "well"]
    assert data.card.labels == ("dead", "ill", "well")


@pytest.mark.network
def test_tables_count_whatever_the_letters_of_their_kind(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "p.csv")
    write(tmp_path / "Q.CSV")
    (tmp_path / "R.Csv.GZ").write_bytes(gzip.compress(CSV.encode()))
    table = pyarrow.table({"age": [50], "dose": [0.5], "outcome": ["ill"]})
    parquet.write_table(table, tmp_path / "S.PARQUET")
    spec = {"path": str(tmp_path), "target": "outcome"}
    look_at_headers(spec, "north")
    assert load_site_data(spec, "north").sizes == (10,)
    assert load_site_data({**spec, "path": str(tmp_path / "Q.CSV")}, "north").sizes == (3,)


def test_tables_in_subfolders_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "d" / "2023" / "p.csv")
    spec = {"path": str(tmp_path / "d"), "target": "outcome"}
    with pytest.raises(DataError, match=r"no CSV or Parquet file itself; a subfolder does: .*2023.*p\.csv"):
        look_at_headers(spec, "north")
    write(tmp_path / "d" / "q.csv")
    write(tmp_path / "d" / ".cache" / "r.csv")
    look_at_headers(spec, "north")
    assert len(caplog.records) == 1
    assert "tables in subfolders, such as 2023" in caplog.text
    assert load_site_data(spec, "north").sizes == (3,)
    caplog.clear()
    monkeypatch.setattr("atoll.runtime.worker.headers._LOOKED_AT", 0)  # a million images are not worth the look
    look_at_headers(spec, "north")
    assert not caplog.records


@pytest.mark.parametrize(
    ("other", "match"),
    [
        ("age,outcome\n1,ill\n", r"at file '1\.csv' there is a column 'dose', and at file '2\.csv' there is none"),
        ("age,dose,outcome\n1,1,2.5\n", r"the target is a classification task, and at file '2\.csv' a regression task"),
        ("age,dose,outcome\n1,old,ill\n", r"column 'dose' holds text.*in data of site 'north', 2\.csv.*--drop dose"),
        ("age,dose,outcome\n1,1,ill\n1,,ill\n", r"row 3 column 'dose'.*in data of site 'north', table '2\.csv'"),
        ("age,dose,outcome\n1,1\n", r"line 2 has 2 values, but the header has 3.*2\.csv"),
    ],
)
def test_files_that_disagree_are_named_with_the_column(tmp_path: Path, other: str, match: str) -> None:
    write(tmp_path / "1.csv")
    write(tmp_path / "2.csv", other)
    with pytest.raises(DataError, match=match):
        load_site_data({"path": str(tmp_path), "target": "outcome"}, "north")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"the file is empty \(in data of site 'north', a\.csv\)\. Remedy: remove it, or fill it"),
        (
            b"age;dose;outcome\n1;2;ill\n",
            r"the header is one column, «age;dose;outcome».*delimiter: .;. \(a setting in a YAML",
        ),
        (CSV.encode("utf-16"), r"encoding: .?utf-16.? \(a setting in a YAML file that you pass as --data"),
        ("\xdf,outcome\n1,ill\n".encode("latin-1"), r"encoding: .?latin-1.? \(a setting in a YAML file"),
    ],
)
def test_files_of_another_kind_are_refused_with_what_sites_can_set(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    spec = {"path": str(tmp_path / "a.csv"), "target": "outcome"}
    for look in (look_at_headers, load_site_data):
        with pytest.raises(DataError, match=match):
            look(spec, "north")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("tumor size,y\n1,a\n2,b\nx1,a\n", r"'tumor size' holds numbers, and «x1» at row 4.*--drop 'tumor size'\)"),
        ("tumor size,y\nbig,a\nsmall,b\n", r"holds text.*--drop 'tumor size'\), or .*categories: \{'tumor size': "),
        ('size,y\n"1,5",a\n"2,5",b\n', r"column 'size' holds text.*say decimal: ',' in a YAML file"),
        ("size,y\n1,0\n2,1\n3,-1\n", r"-1 among its classes.*declare it: missing: -1"),
        ("size,y\n1,a\n,b\n", r"row 3 column 'size'.*leave the columns out with --drop COLUMN"),
    ],
)
def test_values_that_cannot_be_used_are_named_with_a_way_out(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        load_site_data({"path": str(write(tmp_path / "a.csv", text)), "target": "y"}, "north")


def test_a_table_without_a_target_tells_its_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"--target.*the columns are age, dose, outcome"):
        load_site_data(str(path), "north")
    with pytest.raises(DataError, match=r"no column 'outcom'\. Did you mean 'outcome'"):
        load_site_data({"path": str(path), "target": "outcom"}, "north")


def test_values_of_a_text_column_are_declared_not_guessed(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "sex,age,outcome\nf,1,0\nm,2,1\n")
    write(tmp_path / "a.yaml", "path: a.csv\ntarget: outcome\ntask: classification\ncategories: {sex: [m, f]}\n")
    data = load_site_data(str(tmp_path / "a.yaml"), "north")
    assert rows(data)[0].tolist() == [[1, 1], [0, 2]]
    assert data.card is not None
    assert data.card.categories == {"sex": ("m", "f")}
    dropped = load_site_data({"path": str(tmp_path / "a.csv"), "target": "outcome", "drop": ["sex"]}, "north")
    assert rows(dropped)[0].tolist() == [[1], [2]]


def test_labels_that_a_simulation_lacks_are_missing_at_its_sites_too(tmp_path: Path) -> None:
    few = atoll.data.unlabel(atoll.data.iid(atoll.data.iris(), parties=2, seed=0), keep=9, seed=0)
    for name, file in write_parts(few, tmp_path).items():
        made = load_site_data(str(file), name).population.shard(0)
        np.testing.assert_array_equal(made["labelled"], few.shard(name)["labelled"])
        np.testing.assert_array_equal(made["y"], few.shard(name)["y"])


def test_features_are_missing_where_the_site_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ward,age,none,outcome\n,1,,0\neast,,,1\n")
    (tmp_path / "a.yaml").write_text(
        "path: a.csv\ntarget: outcome\ncategories: {ward: [west, east]}\nmissing_features: true\n"
    )
    data = load_site_data(str(tmp_path / "a.yaml"), "north")
    np.testing.assert_array_equal(rows(data)[0], [[np.nan, 1, np.nan], [1, np.nan, np.nan]])
    assert data.card is not None
    assert data.card.missing_features
    given = {"path": str(path), "target": "outcome", "drop": ["ward", "none"]}
    with pytest.raises(DataError, match="1 missing value") as error:
        load_site_data(given, "north")
    assert "missing_features: True (a setting in a YAML file" in str(error.value)
    assert rows(load_site_data({**given, "missing_features": True}, "north"))[0].shape == (2, 1)
    spec = site_spec(str(path), target="outcome", drop=["ward"], missing_features=True)
    assert spec["missing_features"] is True
    holes = atoll.data.Islands.from_datasets(
        {"north": atoll.data.Dataset({"x": [[np.nan], [1.0]], "y": [0, 1]}, missing_features=True)}
    )
    (file,) = write_parts(holes, tmp_path).values()
    np.testing.assert_array_equal(rows(load_site_data(str(file), "north"))[0], [[np.nan], [1]])


def test_arrays_of_an_archive(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 2, 1, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, test_x=x[:2], test_y=y[:2], labels=["a", "b", "c"], features=["p", "q", "r"])
    data = load_site_data(str(tmp_path / "a.npz"), "north")
    assert rows(data)[1].tolist() == [0, 2, 1, 1]
    assert data.card is not None
    assert (data.card.classes, data.card.labels, data.card.features) == (3, ("a", "b", "c"), ("p", "q", "r"))
    for marks in (
        {"y": [0, -1, 1, -1]},
        {"y": [0, np.nan, 1, np.nan]},
        {"y": y, "labelled": [True, False, True, False]},
    ):
        np.savez(tmp_path / "holes.npz", x=x, **marks)
        some = load_site_data({"path": str(tmp_path / "holes.npz"), "missing": -1}, "north")
        assert rows(some)[1].tolist() == [0, 0, 1, 0]
        assert some.population.shard(0)["labelled"].tolist() == [True, False, True, False]
        assert some.card is not None
        assert (some.card.labelled, some.card.classes) == ("part", 2)
    np.savez(tmp_path / "b.npz", inputs=x)
    with pytest.raises(DataError, match=r"no array 'x'.*b\.npz.*it holds inputs"):
        load_site_data(str(tmp_path / "b.npz"), "north")
    np.savez(tmp_path / "c.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="not a readable archive of plain arrays"):
        load_site_data(str(tmp_path / "c.npz"), "north")


def test_two_arrays_in_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "y.npy", np.array([[0.5], [1.5], [2.5]]))
    spec = site_spec("x.npy, y.npy", base=tmp_path)
    x, y = rows(load_site_data(spec, "north"))
    assert x.dtype == np.float32
    assert y.tolist() == [0.5, 1.5, 2.5]
    with pytest.raises(DataError, match=r"1 \.npy file\(s\).*x\.npy,y\.npy"):
        load_site_data(str(tmp_path / "x.npy"), "north")
    with pytest.raises(DataError, match="give both files"):
        load_site_data(str(tmp_path), "north")


def test_a_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": [1.0, 2.0], "b": ["u", "v"], "t": ["no", "yes"]}), tmp_path / "a.parquet")
    data = load_site_data({"path": str(tmp_path / "a.parquet"), "target": "t", "drop": ["b"]}, "north")
    assert rows(data)[0].tolist() == [[1.0], [2.0]]
    with pytest.raises(DataError, match=r"column 'b' holds text"):
        load_site_data({"path": str(tmp_path / "a.parquet"), "target": "t"}, "north")


def test_a_source_that_is_divided_gives_clients_of_the_site(tmp_path: Path) -> None:
    write(tmp_path / "s.yaml", "source: iris\npartition: {name: iid, parties: 3}\n")
    data = load_site_data(str(tmp_path / "s.yaml"), "north")
    assert data.names == ("north/client-0", "north/client-1", "north/client-2")
    assert data.sizes == (40, 40, 40)
    write(tmp_path / "w.yaml", "source: {name: read_csv, path: rows.csv, target: outcome}\n")
    write(tmp_path / "rows.csv")
    assert load_site_data(str(tmp_path / "w.yaml"), "north").names == ("north",)


def test_a_factory_of_the_sites_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "own_site_rows.py",
        "import numpy as np\n"
        "def columns(n=2):\n    return {'x': np.ones((n, 2)), 'y': np.zeros(n, int)}\n"
        "class Records(list):\n    pass\n"
        "def records():\n    return Records([1, 2, 3])\n",
    )
    spec = site_spec("own_site_rows:columns", base=tmp_path)
    assert load_site_data({**spec, "arguments": {"n": 5}}, "north").sizes == (5,)
    learnt = load_site_data({**spec, "arguments": {"n": 5}, "task": "regression"}, "north", one_form=True)
    assert (learnt.sizes, learnt.card and learnt.card.task) == ((5,), "regression")
    own = load_site_data({**spec, "factory": "own_site_rows:records"}, "north")
    assert (own.names, own.sizes, own.card) == (("north",), (3,), None)
    assert own.population.shard(0) == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"'own_site_rows:nothing' cannot be imported.*in data of site 'north'"):
        load_site_data({**spec, "factory": "own_site_rows:nothing"}, "north")


TABLES = """
import numpy as np

class Tables(dict):
    pass

MADE = []

def tables():
    MADE.append(Tables(visits=Tables(cost=np.ones(3)), people=Tables(age=np.ones(2))))
    return MADE[-1]

def columns():
    MADE.append(Tables(x=np.ones((4, 2)), age=np.ones(4)))
    return MADE[-1]

def wards():
    return {"ward-1": [1, 2], "ward-2": [3]}

def sets():
    from atoll.data import Dataset
    return [Dataset({"x": np.ones((n, 2)), "y": np.zeros(n, int)}) for n in (2, 3)]
"""


@pytest.mark.parametrize("name", ["tables", "columns"])
def test_the_data_of_a_site_are_the_very_object_that_its_factory_returns(tmp_path: Path, name: str) -> None:
    write(tmp_path / f"{name}_of_mine.py", TABLES)
    loaded = load_site_data(site_spec(f"{name}_of_mine:{name}", base=tmp_path), "north")
    made = sys.modules[f"{name}_of_mine"].MADE  # type: ignore[attr-defined]
    assert len(made) == 1
    assert loaded.population.shard(0) is made[0]
    assert (loaded.names, loaded.sizes, loaded.card) == (("north",), (0 if name == "tables" else 4,), None)

    @atoll.task
    def same(island: Any, message: Any) -> dict[str, Any]:
        return {"same": atoll.Sum(float(island.data is made[0]))}

    async def program(fed: Any) -> float:
        return float((await fed.sum(fed.parties, same))["same"])

    assert atoll.simulate(program, {"north": made[0]}, engine="inline", tasks=[same]) == 1.0


def test_a_training_says_what_it_wants_of_a_dict_of_tables(tmp_path: Path) -> None:
    write(tmp_path / "refused_tables.py", TABLES)
    spec = site_spec("refused_tables:tables", base=tmp_path)
    with pytest.raises(
        DataError,
        match=r"a dict of visits \(Tables\), people \(Tables\); this job trains on .*in data of site 'north'\)",
    ) as found:
        load_site_data(spec, "north", one_form=True)
    assert "atoll.data.Dataset({'x': features, 'y': labels})" in str(found.value.remedy)
    training = atoll.Training(model=atoll.models.linear(2, 2), algorithm=atoll.FedAvg(lr=0.1), rounds=1)
    with pytest.raises(DataError, match=r"a dict of visits \(dict\); this job trains on .*in the data of 'north'\)"):
        atoll.simulate(training, {"north": {"visits": {"cost": np.ones(3)}}})
    arrays = {name: {"x": np.eye(2), "y": np.array([0, 1])} for name in ("north", "south")}
    sets = {name: atoll.data.Dataset(one) for name, one in arrays.items()}
    first, again = (atoll.simulate(training, data, engine="inline").outcome.params for data in (arrays, sets))
    assert {name: value.tolist() for name, value in first.items()} == {n: v.tolist() for n, v in again.items()}


def test_a_source_returns_what_simulate_takes(tmp_path: Path) -> None:
    write(tmp_path / "sources_of_mine.py", TABLES)
    write(tmp_path / "s.yaml", "source: sources_of_mine:wards\n")
    loaded = load_site_data(str(tmp_path / "s.yaml"), "north")
    assert (loaded.names, loaded.sizes) == (("north/ward-1", "north/ward-2"), (2, 1))
    assert loaded.population.shard(1) == [3]
    write(tmp_path / "d.yaml", "source: sources_of_mine:sets\n")
    assert load_site_data(str(tmp_path / "d.yaml"), "north").sizes == (2, 3)
    with inside(str(tmp_path)):
        config = parse_data({"source": "sources_of_mine:wards"})
        assert list(config.islands().names) == ["ward-1", "ward-2"]
        assert parse_data({"source": "sources_of_mine:sets"}).islands().sizes.tolist() == [2, 3]
        spoiled = parse_data({"source": "sources_of_mine:wards", "corruptions": [{"name": "noise", "share": 0.5}]})
        with pytest.raises(ConfigError, match="has data of a kind of its own, and corruptions needs data sets"):
            spoiled.islands()


def test_a_connection_is_opened_once_in_each_thread_that_uses_it(tmp_path: Path) -> None:
    write(tmp_path / "connects.py", "import sqlite3\ndef connect():\n    return sqlite3.connect(':memory:')\n")
    loaded = load_site_data(site_spec("connects:connect", base=tmp_path), "north")
    assert (loaded.names, loaded.sizes, loaded.card) == (("north",), (0,), None)
    here = [loaded.population.shard(0) for _ in range(2)]
    with ThreadPoolExecutor(1) as other:
        there = [other.submit(loaded.population.shard, 0).result() for _ in range(2)]
        assert other.submit(there[0].execute, "select 1").result() is not None
        with pytest.raises(sqlite3.ProgrammingError, match="created in a thread"):
            here[0].execute("select 1").fetchone() and other.submit(here[0].execute, "select 1").result()
        other.submit(there[0].close).result()
    here[0].close()
    assert here[0] is here[1] is not there[0] is there[1]


def test_what_is_not_there_or_not_meant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file or folder .*rows\.csv"):
        site_spec("rows.csv", base=tmp_path)
    with pytest.raises(DataError, match=r"'taget' is not a setting of a site's data\. Did you mean 'target'"):
        load_site_data({"path": "a.csv", "taget": "y"}, "north")
    with pytest.raises(DataError, match="none of path, source, factory and database given"):
        load_site_data({"target": "y"}, "north")
    with pytest.raises(DataError, match=r"a file of kind '\.txt'"):
        load_site_data(str(write(tmp_path / "a.txt")), "north")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="the folder holds no CSV or Parquet file"):
        load_site_data({"path": str(tmp_path / "empty"), "target": "y"}, "north")


@pytest.mark.network
@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"target": "outcom"}, r"no column 'outcom'\. Did you mean 'outcome'\? \(in data of site 'north', a\.csv\)"),
        ({}, r"the target column is not set.*the columns are age, dose, outcome"),
        ({"target": "outcome", "drop": ["Age"]}, r"no column 'Age'\. Did you mean 'age'"),
        ({"target": "outcome", "path": "a.txt"}, r"a file of kind '\.txt'"),
        ({"path": "bare.npz"}, r"no array 'x'.*it holds features, labels"),
        (
            {"path": "w.yaml"},
            r"'taget' is not a setting of a site's data\. Did you mean 'target'\? \(in data of site 'north'\)",
        ),
        ({"path": "v.yaml"}, r"no column 'outcom'.*data of site 'north', a\.csv"),
        ({"path": "b.csv", "target": "outcome"}, r"its header cannot be read.*encoding: latin-1 \(a setting in a YAML"),
        ({"path": "d.parquet", "target": "outcom"}, r"no column 'outcom'\. Did you mean 'outcome'\? .*d\.parquet"),
        ({"path": "e.parquet", "target": "outcome"}, r"not a readable Parquet file.*e\.parquet"),
    ],
)
def test_a_site_looks_at_headers_before_it_connects(tmp_path: Path, said: dict[str, Any], match: str) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "a.csv")
    write(tmp_path / "a.txt")
    write(tmp_path / "w.yaml", "path: a.csv\ntaget: outcome\n")
    write(tmp_path / "v.yaml", "path: a.csv\ntarget: outcom\n")
    (tmp_path / "b.csv").write_bytes("stra\xdfe;outcome\n".encode("latin-1"))
    parquet.write_table(pyarrow.table({"age": [1, 2], "outcome": ["ill", "well"]}), tmp_path / "d.parquet")
    write(tmp_path / "e.parquet")
    np.savez(tmp_path / "bare.npz", features=np.eye(2), labels=np.ones(2))
    given = {**said, "path": str(tmp_path / said.get("path", "a.csv"))}
    with pytest.raises(DataError, match=match):
        look_at_headers(given, "north")
    said_later = (
        match if "header" not in match else "not utf-8 text"
    )  # what is refused at once is refused when a job comes
    with pytest.raises(DataError, match=said_later):
        load_site_data(given, "north")
    (tmp_path / "b.csv").unlink()
    for parquet_file in ("d.parquet", "e.parquet"):
        (tmp_path / parquet_file).unlink()
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfage,dose,outcome\n1,2,ill\n"))
    look_at_headers({"path": str(tmp_path), "target": "outcome"}, "north")
    look_at_headers({"factory": "nobody:knows"}, "north")


@pytest.mark.parametrize("method", ["open", "iterdir", "exists"])
def test_data_that_this_user_may_not_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    write(tmp_path / "a.csv")

    def refused(path: Path, *args: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))  # modes do not bind root

    monkeypatch.setattr(Path, method, refused)
    with pytest.raises(DataError, match=r"cannot be read: Permission denied .*site 'north', .*let the user that runs"):
        look_at_headers({"path": str(tmp_path), "target": "outcome"}, "north")


def test_columns_of_keys_stay_text(tmp_path):
    """As the job names them, or the site: "007" is not 7, and in a data set they are no features."""
    (tmp_path / "shop.csv").write_text("id,x,y\n007,1.5,0\n7,2.5,1\n")
    words = str(tmp_path / "shop.csv")
    for spec, text in ((site_spec(words), ["id"]), (site_spec(words, id=["id"]), [])):
        table = load_site_data(spec, "shop", reads="table", text=text).population.shard(0)
        assert table["id"].tolist() == ["007", "7"]
    unnamed = load_site_data(site_spec(words), "shop", reads="table").population.shard(0)
    assert unnamed["id"].tolist() == ["007", "7"], "a number with a leading zero is a code"
    made = load_site_data(site_spec(words, target="y", id=["id"]), "shop").population.shard(0)
    assert made.x.tolist() == [[1.5], [2.5]]
    look_at_headers(site_spec(words, id=["id"]), "shop")  # keys need no target
    with pytest.raises(DataError, match="the target column is not set"):
        load_site_data(site_spec(words, id=["id"]), "shop")  # but a data set does
    with pytest.raises(DataError, match="no column 'idd'"):
        look_at_headers(site_spec(words, id=["idd"]), "shop")
    with pytest.raises(DataError, match="no column 'key'"):
        load_site_data(site_spec(words), "shop", reads="table", text=["key"])


def own_codes(words: list[str]) -> atoll.data.Dataset:
    table = {"smoker": np.array(words), "age": np.arange(len(words)) + 50.5, "y": np.arange(len(words)) % 2}
    return from_table(table, target="y")


def test_text_that_a_sites_own_code_reads_has_one_coding_at_all_sites() -> None:
    made = {
        name: load_site_data({"factory": f"{__name__}:own_codes", "arguments": {"words": words}}, name).card
        for name, words in {"a": ["never", "former"], "b": ["never", "ex"], "c": ["former", "never"]}.items()
    }
    cards = {name: card for name, card in made.items() if card is not None}
    assert merge_cards({"a": cards["a"], "c": cards["c"]}).categories == {"smoker": ("former", "never")}
    with pytest.raises(DataError, match="column 'smoker' has the values former, never, and at b the values ex, never"):
        merge_cards({"a": cards["a"], "b": cards["b"]})
