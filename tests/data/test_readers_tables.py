"""A table for each client: frames and folders give islands whose codes agree, and what is no feature is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import DataError
from atoll.data import Dataset, from_csv_files, from_csv_folder, from_dataframes, from_pandas, read_csv
from atoll.data.readers.tables import islands_of_tables

NORTH = {"city": np.array(["Oslo", "Bonn"]), "age": np.array([30, 41]), "died": np.array(["no", "no"])}
SOUTH = {"city": np.array(["Rome", "Bonn"]), "age": np.array([55, 62]), "died": np.array(["yes", "no"])}


def frames():
    pandas = pytest.importorskip("pandas")
    return {"north": pandas.DataFrame(NORTH), "south": pandas.DataFrame(SOUTH)}


def written(folder: Path, tables) -> Path:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        rows = zip(*table.values(), strict=True)
        lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


def check(islands) -> None:
    assert list(islands.names) == ["north", "south"]
    assert islands.about.labels == ("no", "yes")
    north, south = islands
    assert north["x"].tolist() == [[1, 30], [0, 41]]  # Bonn, Oslo, Rome
    assert south["x"].tolist() == [[2, 55], [0, 62]]
    assert (north["y"].tolist(), south["y"].tolist()) == ([0, 0], [1, 0])


def test_frames_get_common_codes():
    check(from_dataframes(frames(), target="died"))


def test_a_folder_of_files_gets_common_codes(tmp_path):
    check(from_csv_folder(written(tmp_path, {"north": NORTH, "south": SOUTH}), target="died"))


def test_a_file_may_hold_the_servers_test_rows(tmp_path):
    folder = written(tmp_path, {"north": NORTH, "south": SOUTH, "held_out": NORTH})
    islands = from_csv_folder(folder, target="died", test="held_out.csv")
    assert list(islands.names) == ["north", "south"]
    assert islands.test["x"].tolist() == [[1, 30], [0, 41]]
    with pytest.raises(DataError, match=r"test='held_in.csv'.*Did you mean 'held_out.csv'"):
        from_csv_folder(folder, target="died", test="held_in.csv")


@pytest.mark.parametrize("read", ["folder", "files"])
def test_a_share_of_each_clients_rows_may_be_held_out(tmp_path, read):
    folder = written(tmp_path, {"north": NORTH, "south": SOUTH})
    both = {"folder": folder, "files": [folder / "north.csv", folder / "south.csv"]}
    made = (from_csv_folder if read == "folder" else from_csv_files)(both[read], target="died", test=0.5)
    rows = [sorted([*shard["x"].tolist(), *shard.held_out["x"].tolist()]) for shard in made]
    assert rows == [[[0, 41], [1, 30]], [[0, 62], [2, 55]]]
    assert [len(shard.held_out) for shard in made] == [1, 1]
    assert made.test is None


def test_a_folder_may_hold_the_rows_that_each_client_holds_out(tmp_path):
    apart = {"n_test": SOUTH, "s_test": NORTH | {"city": np.array(["Rome", "Lima"])}}
    folder = written(tmp_path, {"north": NORTH, "south": SOUTH, **apart})
    made = from_csv_folder(folder, target="died", test={"north": "n_test.csv", "south": "s_test.csv"})
    assert list(made.names) == ["north", "south"]
    assert made.about.categories["city"] == ("Bonn", "Lima", "Oslo", "Rome")
    assert [shard["x"].tolist() for shard in made] == [[[2, 30], [0, 41]], [[3, 55], [0, 62]]]
    assert [shard.held_out["x"].tolist() for shard in made] == [[[3, 55], [0, 62]], [[3, 30], [1, 41]]]
    with pytest.raises(DataError, match="give both a table 's_test', or neither"):
        from_csv_folder(folder, target="died", test={"north": "n_test.csv"})
    with pytest.raises(DataError, match=r"test='n_tes.csv'.*Did you mean 'n_test.csv'"):
        from_csv_folder(folder, target="died", test={"north": "n_tes.csv", "south": "s_test.csv"})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_coding_apart_is_coding_together(data):
    """The same rows in one table give the same codes, whatever each client holds."""
    n, parties = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 4))
    words = data.draw(st.lists(st.sampled_from(["ash", "birch", "oak"]), min_size=n, max_size=n))
    labels = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    owner = np.array(data.draw(st.lists(st.integers(0, parties - 1), min_size=n, max_size=n)))
    whole = {"tree": np.array(words), "size": np.arange(n) * 2.5, "y": np.array(labels)}
    tables = {str(k): {name: column[owner == k] for name, column in whole.items()} for k in np.unique(owner)}
    from atoll.data.readers.table import from_table

    listed = {"y": ["0", "1", "2"]}  # two parties may have two classes each that are not the same
    pooled = from_table(whole, target="y", task="classification", categories=listed)
    apart = islands_of_tables(tables, None, "y", "test", 0, task="classification", categories=listed)
    for k, client in zip(np.unique(owner), apart, strict=True):
        assert np.array_equal(client["x"], pooled["x"][owner == k])
        assert np.array_equal(client["y"], pooled["y"][owner == k])


def test_the_task_follows_from_all_tables():
    """One client's target are whole numbers by chance."""
    pandas = pytest.importorskip("pandas")
    one = pandas.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0]})
    islands = from_dataframes({"one": one, "two": one.assign(y=[0.5, 1.5])}, target="y")
    assert islands.task == "regression"


def test_what_tables_lack_is_named(tmp_path):
    made = frames()
    made["south"] = made["south"].drop(columns="age")
    with pytest.raises(DataError, match=r"no column 'age' \(in table 'south'\)"):
        from_dataframes(made, target="died")
    with pytest.raises(DataError, match=r"frames is a list.*client's name"):
        from_dataframes(list(made.values()), target="died")
    with pytest.raises(DataError, match="there are no tables"):
        from_dataframes({}, target="died")
    with pytest.raises(DataError, match="there is no such folder"):
        from_csv_folder(tmp_path / "nowhere", target="died")
    with pytest.raises(DataError, match="there is no CSV file"):
        from_csv_folder(tmp_path, target="died")
    holed = written(tmp_path, {"north": {**NORTH, "age": np.array(["30", ""])}, "south": SOUTH})
    with pytest.raises(DataError, match=r"row 3 column 'age' \(in table 'north'\)"):
        from_csv_folder(holed, target="died")


KEYS = {
    "Unnamed: 0": np.arange(25),
    "row": np.arange(1, 26),
    "patient_id": np.arange(25) * 7 + 1000,
    "name": np.array([f"person {chr(97 + i)}" for i in range(25)]),
}


@pytest.mark.parametrize("column", KEYS)
def test_a_column_that_names_its_rows_is_no_feature(column):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({column: KEYS[column], "age": np.arange(25) % 9, "y": np.arange(25) % 2})
    with pytest.raises(DataError, match=rf"column '{column}'.*would become a feature.*drop="):
        from_pandas(frame, target="y")
    assert from_pandas(frame, target="y", drop=[column]).about.features == ("age",)
    assert from_pandas(frame, target="y", features=[column, "age"])["x"].shape == (25, 2)


def test_a_count_is_a_feature(tmp_path):
    """Whole numbers that never repeat under an ordinary name are amounts, and a short table is nobody's key."""
    lines = ["price,y", *(f"{17 * i + 3},{i % 2}" for i in range(30))]
    (tmp_path / "prices.csv").write_text("\n".join(lines))
    assert read_csv(tmp_path / "prices.csv", target="y")["x"].shape == (30, 1)


def test_classes_as_fractions_are_no_regression():
    x = np.zeros((4, 2))
    with pytest.raises(DataError, match=r"the targets are 0 and 1, as fractions.*task='regression'"):
        Dataset({"x": x, "y": np.array([0.0, 1.0, 1.0, 0.0])})
    assert Dataset({"x": x, "y": np.array([0.0, 1.0, 1.0, 0.0])}, task="regression").task == "regression"
    assert Dataset({"x": x, "y": np.zeros(4)}).task == "regression"


def test_classes_as_rows_of_one_are_no_regression():
    """Oracle: the identity matrix, whose rows are the definition of one-hot codes; `argmax` gives the codes back."""
    codes = np.array([2, 0, 1, 1])
    rows, x = np.eye(3, dtype=np.float32)[codes], np.zeros((4, 2))
    with pytest.raises(DataError, match=r"a single 1, as fractions.*argmax\(1\).*task='regression'"):
        Dataset({"x": x, "y": rows})
    assert Dataset({"x": x, "y": rows.argmax(1)}).classes == 3
    assert Dataset({"x": x, "y": rows}, task="regression").task == "regression"
    # Two amounts, shares that sum to one, and a single row, which may be so by chance, are values.
    for values in (rows + rows[::-1], rows * 0.5 + 1 / 6, rows[:1]):
        assert Dataset({"x": x[: len(values)], "y": values}).task == "regression"
