"""Readers of files: idx, npz, CSV, Parquet, LEAF."""

import gzip
import json
import struct
import sys

import numpy as np
import pytest

from atoll.core.errors import DataError, MissingExtraError
from atoll.data import (
    Dataset,
    DataTable,
    from_arrow,
    from_pandas,
    read_csv,
    read_idx,
    read_idx_pair,
    read_leaf,
    read_npz,
    read_parquet,
)


def idx_bytes(array, code=0x08):
    header = struct.pack(">BBBB", 0, 0, code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


# ---------------------------------------------------------------- idx


@pytest.mark.parametrize(
    ("code", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")]
)
@pytest.mark.parametrize("packed", [False, True])
def test_idx_of_every_type_comes_back(tmp_path, code, dtype, packed):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    raw = idx_bytes(array, code)
    path = tmp_path / "a.idx"
    path.write_bytes(gzip.compress(raw) if packed else raw)
    back = read_idx(path)
    assert np.array_equal(back, array)
    assert back.dtype == np.dtype(dtype).newbyteorder("=")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda raw: raw[:-1], "truncated: 27 bytes, but shape"),
        (lambda raw: raw + b"\0", "too long: 29 bytes"),
        (lambda raw: raw[:9], "truncated in the header: 9 of 16"),
        (lambda raw: b"\1" + raw[1:], "begins with 01 00 08 03"),
        (lambda raw: raw[:2] + b"\7" + raw[3:], "begins with 00 00 07 03"),
        (lambda raw: raw[:3] + b"\0", "begins with 00 00 08 00"),
        (lambda raw: b"", "begins with nothing"),
        (lambda raw: gzip.compress(raw)[:-9], "broken gzip file"),
    ],
)
def test_broken_idx_files_are_refused_by_name(tmp_path, spoil, message):
    path = tmp_path / "broken.idx"
    path.write_bytes(spoil(idx_bytes(np.zeros((2, 2, 3), np.uint8))))
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert caught.value.where == "broken.idx"


def test_images_with_labels(tmp_path):
    images = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "x").write_bytes(idx_bytes(images))
    (tmp_path / "y").write_bytes(idx_bytes(np.array([0, 9, 3, 3, 1], np.uint8)))
    data = read_idx_pair(tmp_path / "x", tmp_path / "y")
    assert data.x.shape == (5, 1, 4, 3)
    assert data.x.dtype == np.float32
    assert np.allclose(data.x[:, 0] * 255, images)
    assert data.y.tolist() == [0, 9, 3, 3, 1]
    assert data.classes == 10
    raw = read_idx_pair(tmp_path / "x", tmp_path / "y", scale=False, flat=True)
    assert raw.x.dtype == np.uint8
    assert np.array_equal(raw.x, images.reshape(5, 12))
    with pytest.raises(DataError, match="label «9» at row 1"):
        read_idx_pair(tmp_path / "x", tmp_path / "y", classes=5)
    (tmp_path / "z").write_bytes(idx_bytes(np.array([0, 9], np.uint8)))
    with pytest.raises(DataError, match=r"images of shape \(5, 4, 3\) with labels of shape \(2,\)"):
        read_idx_pair(tmp_path / "x", tmp_path / "z")
    with pytest.raises(DataError, match="there is no file 'w'"):
        read_idx(tmp_path / "w")


# ---------------------------------------------------------------- npz


def test_npz_images_are_turned_to_channels_first(tmp_path):
    x = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "c.npz", x_train=x, y_train=np.array([[1], [0]], np.uint8), x_test=x, y_test=np.array([0, 1]))
    data = read_npz(tmp_path / "c.npz")
    assert data.name == "c"
    assert data.x.shape == (2, 3, 4, 4)
    assert np.allclose(data.x[1, 2] * 255, x[1, :, :, 2])
    assert data.y.tolist() == [1, 0]
    assert len(data.test) == 2
    assert read_npz(tmp_path / "c.npz", test=None).test is None
    assert read_npz(tmp_path / "c.npz", scale=False, flat=True).x.dtype == np.uint8


def test_npz_tables(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.zeros((3, 2)), b=np.array([0.5, 1.0, 2.0]))
    data = read_npz(tmp_path / "t.npz", train=("a", "b"), test=None, images=False, task="regression")
    assert data.task == "regression"
    with pytest.raises(DataError, match="'a' has shape"):
        read_npz(tmp_path / "t.npz", train=("a", "b"), test=None, images=True)
    with pytest.raises(DataError, match="no array 'x_train'"):
        read_npz(tmp_path / "t.npz")


def test_npz_archives_are_read_as_what_they_hold(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.eye(3), y=[0, 2, 1], x_test=np.eye(3)[:1], y_test=[1])
    data = read_npz(tmp_path / "t.npz")
    assert (data.task, data.classes, data.test.classes, len(data.test)) == ("classification", 3, 3, 1)
    np.savez(tmp_path / "r.npz", x_train=np.eye(3), y_train=[0.5, 2.0, 1.0])
    assert (read_npz(tmp_path / "r.npz").task, read_npz(tmp_path / "r.npz").test) == ("regression", None)
    np.savez(tmp_path / "n.npz", X=np.eye(3), Y=[0, 2, 1])
    with pytest.raises(DataError, match=r"no array 'x_train'.*it holds X, Y; name them, as in train="):
        read_npz(tmp_path / "n.npz")


def test_npz_objects_and_rubbish_are_refused(tmp_path):
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    with pytest.raises(DataError, match="not a readable archive of plain arrays"):
        read_npz(tmp_path / "o.npz", train=("x", "y"), test=None)
    (tmp_path / "r.npz").write_bytes(b"PK rubbish")
    with pytest.raises(DataError, match="not a readable archive"):
        read_npz(tmp_path / "r.npz")


# ---------------------------------------------------------------- csv

TABLE = "age,city,owner,grade\n31,Rome,a,good\n45,Oslo,b,bad\n27,Rome,a,good\n"


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_csv_becomes_features_labels_and_kept_columns(tmp_path, name):
    data = read_csv(write(tmp_path, TABLE, name), target="grade", keep=["owner"])
    assert data.name == "t"
    assert data.about.features == ("age", "city")
    assert data.x.tolist() == [[31, 1], [45, 0], [27, 1]]  # Oslo 0, Rome 1: sorted
    assert data.y.tolist() == [1, 0, 1]
    assert data.about.labels == ("bad", "good")
    assert (data.task, data.classes) == ("classification", 2)
    assert data["owner"].tolist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("values", "task", "labels"),
    [
        ("0 2 0", "classification", ("0", "2")),
        ("10 20 9", "classification", ("9", "10", "20")),
        ("-1 1 1", "binary", ()),
        ("0.0 1.5 1.0", "regression", ()),
        ("cat dog ape", "classification", ("ape", "cat", "dog")),
    ],
)
def test_the_target_says_the_task_as_in_every_data_set(tmp_path, values, task, labels):
    path = write(tmp_path, "a,b\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values.split())))
    data = read_csv(path, target="b")
    assert (data.task, data.about.labels) == (task, labels)
    if values != "cat dog ape":  # a data set wants codes
        assert Dataset({"y": np.array(list(map(json.loads, values.split())))}).task == task


def test_amounts_and_classes_are_told_apart_by_asking(tmp_path):
    path = write(tmp_path, "a,b\n" + "".join(f"{i % 2},{i % 11}\n" for i in range(21)))
    with pytest.raises(
        DataError, match=r"'b' has 11 distinct whole numbers in 21 rows: classes or amounts\?.*task='reg"
    ):
        read_csv(path, target="b")
    assert read_csv(path, target="b", task="classification").classes == 11
    many = write(tmp_path, "a,b\n" + "".join(f"{i % 2},{i % 101}\n" for i in range(303)), "many.csv")
    with pytest.raises(DataError, match="'b' has 101 distinct whole numbers in 303 rows"):
        read_csv(many, target="b")
    assert read_csv(many, target="b", task="regression").classes is None
    assert read_csv(path, target=["a", "b"]).y.shape == (21, 2)
    assert read_csv(path, target=None).task == "unlabelled"
    assert read_csv(path, target="b", drop=["a"], task="regression").columns == ("y",)
    with pytest.raises(DataError, match="'grade', the target of a regression, has text such as «good»"):
        read_csv(write(tmp_path, TABLE, "words.csv"), target="grade", task="regression")


def test_categories_fix_the_codes(tmp_path):
    path = write(tmp_path, TABLE)
    kinds = {"city": ["Rome", "Oslo", "Bonn"], "grade": ["good", "bad"]}
    data = read_csv(path, target="grade", drop=["owner"], categories=kinds)
    assert data.x[:, 1].tolist() == [0, 1, 0]
    assert data.y.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="«Oslo» at row 3 is not a category of column 'city'"):
        read_csv(path, target="grade", categories={"city": ["Rome"]})
    with pytest.raises(DataError, match=r"no column 'ctiy'\. Did you mean 'city'\?"):
        read_csv(path, target="grade", categories={"ctiy": ["Rome", "Oslo"]})
    of_numbers = read_csv(write(tmp_path, "a,b\n1,0\n2,2\n"), target="b", categories={"b": ["0", "1", "2"]})
    assert (of_numbers.y.tolist(), of_numbers.classes) == ([0, 2], 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ('"1,5" "2,25" 3', r"'t' has numbers with a comma, such as «1,5».*set decimal=','"),
        ("2024-01-31 2024-02-01 2024-02-02", "'t' has dates or times, such as «2024-01-31».*days since a day"),
        ("31.1.2024 1.2.2024 2.2.24", "'t' has dates or times"),
        ("7:30 12:00 23:59:59", "'t' has dates or times"),
        ("31 45 old", r"'t' has numbers, but «old» at row 4.*categories={'t': \[\.\.\.\]}"),
    ],
)
def test_text_that_is_no_category_is_refused(tmp_path, values, message):
    path = write(tmp_path, "t,y\n" + "".join(f"{v},a\n" for v in values.split()))
    with pytest.raises(DataError, match=message):
        read_csv(path, target="y")
    assert read_csv(path, target="y", keep=["t"], features=())["t"].dtype.kind == "U"
    listed = [v.strip('"') for v in values.split()]
    assert read_csv(path, target="y", categories={"t": listed}).x.tolist() == [[0], [1], [2]]


def test_decimal_commas_are_read_when_said(tmp_path):
    path = write(tmp_path, "a;y\n1,5;2\n-2,25;?\n3;4,5\n")
    data = read_csv(path, target="a", drop=["y"], delimiter=";", decimal=",")
    assert data.y.tolist() == [1.5, -2.25, 3.0]
    with pytest.raises(DataError, match=r"the header is one column, «a;y».*set delimiter=';'"):
        read_csv(path, target="y")
    with pytest.raises(DataError, match=r"decimal=';'"):
        read_csv(path, target="y", decimal=";")
    with pytest.raises(DataError, match="is a folder"):
        read_csv(tmp_path, target="y")


@pytest.mark.parametrize("hole", ["", "NA", "nan", "?", "NULL"])
def test_missing_values_are_named_by_line_and_column(tmp_path, hole):
    path = write(tmp_path, f"age,city,grade\n31,Rome,good\n{hole},Oslo,bad\n27,{hole},good\n")
    with pytest.raises(DataError, match=r"2 missing value\(s\): row 3 column 'age', row 4 column 'city'"):
        read_csv(path, target="grade")
    assert len(read_csv(path, target="grade", drop=["age", "city"])) == 3


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, r"the file is empty \(in .*Remedy: remove it, or fill it"),
        ("\n \n", {}, "the file is empty"),
        ("a,y\n1,2\n1,-1\n3,0\n", {"target": "y"}, "-1 among its classes: a class, or no label.*missing=-1"),
        ("a,y\n1,2\n,3\n", {"target": "y"}, "row 3 column 'a'.*leave the columns out with drop="),
        ("a,y\n1,2.5\n2,low\n", {"target": "y", "task": "regression"}, "has text such as «low» at row 3"),
        ("a,a\n1,2\n", {}, "two columns are called"),
        ("a,b\n", {}, "no rows below the header"),
        ("a,b\n\n\n", {}, "no rows below the header"),
        ("a,b\n?,1\n,2\n", {}, "row 2 column 'a', row 3 column 'a'"),
        ("a,b\n1,2\n3\n", {}, "line 3 has 1 values, but the header has 2"),
        ("a,b\n1,2\n", {"target": "c"}, "no column 'c'"),
        ("age,b\n1,2\n", {"target": "b", "drop": ["agee"]}, "Did you mean 'age'"),
    ],
)
def test_malformed_tables_are_refused(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        read_csv(write(tmp_path, text), **({"target": None} | options))


def test_other_delimiters_and_encodings(tmp_path):
    path = tmp_path / "l.csv"
    path.write_bytes("\ufeffstadt;y\nKöln;1\n".encode("utf-8"))
    assert read_csv(path, target="y", keep=["stadt"], delimiter=";")["stadt"].tolist() == ["Köln"]
    path.write_bytes("stadt;y\nKöln;1\n".encode("latin-1"))
    with pytest.raises(DataError, match="not utf-8 text"):
        read_csv(path, target="y", delimiter=";")
    assert read_csv(path, target="y", keep=["stadt"], delimiter=";", encoding="latin-1")["stadt"][0] == "Köln"


# ---------------------------------------------------------------- arrow


def test_parquet_is_read_like_csv(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    table = arrow.table(
        {
            "age": [31, 45, 27],
            "city": arrow.array(["Rome", "Oslo", "Rome"]).dictionary_encode(),
            "owner": ["a", "b", "a"],
            "grade": ["good", "bad", "good"],
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    a = read_parquet(tmp_path / "t.parquet", target="grade", keep=["owner"])
    b = read_csv(write(tmp_path, TABLE), target="grade", keep=["owner"])
    assert np.array_equal(a.x, b.x)
    assert np.array_equal(a.y, b.y)
    assert a["owner"].tolist() == b["owner"].tolist()
    assert a.about == b.about
    holes = arrow.table({"n": [1, None, 3], "s": ["u", None, "v"]})
    with pytest.raises(DataError, match="row 1 column 'n', row 1 column 's'"):
        from_arrow(holes, target=None)
    with pytest.raises(DataError, match=r"a dict.*pass a pyarrow\.Table"):
        from_arrow({"n": [1]}, target=None)
    flags = arrow.table({"n": [1, 2], "b": [True, False]})
    assert from_arrow(flags, target="b").about.labels == ("False", "True")
    nested = arrow.table({"n": [[1], [2]]})
    with pytest.raises(DataError, match="column 'n' has dtype object"):
        from_arrow(nested, target=None)
    (tmp_path / "r.parquet").write_bytes(b"rubbish")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_parquet(tmp_path / "r.parquet", target=None)


def test_a_data_frame_is_read_like_csv(tmp_path):
    pandas = pytest.importorskip("pandas", reason="a frame of pandas")
    frame = pandas.read_csv(write(tmp_path, TABLE)).astype({"city": "category", "age": "Int64"}).iloc[::-1]
    a, b = from_pandas(frame, target="grade", keep=["owner"]), read_csv(write(tmp_path, TABLE), target="grade")
    assert np.array_equal(a.x, b.x[::-1, :2])
    assert np.array_equal(a.y, b.y[::-1])
    assert a.about.labels == b.about.labels
    holes = pandas.DataFrame({"n": [1.0, None], "m": pandas.array([None, 2], "Int64"), "s": ["u", None]})
    with pytest.raises(DataError, match="row 0 column 'm', row 1 column 'n', row 1 column 's'"):
        from_pandas(holes, target=None)
    with pytest.raises(DataError, match=r"column 't' has dates or times"):
        from_pandas(pandas.DataFrame({"t": pandas.date_range("2024", periods=2)}), target=None)
    with pytest.raises(DataError, match="column 'o' has dtype object"):
        from_pandas(pandas.DataFrame({"o": [[1], "a"]}), target=None)
    with pytest.raises(DataError, match="the columns are a, a"):
        from_pandas(pandas.DataFrame([[1, 2]], columns=["a", "a"]), target=None)
    with pytest.raises(DataError, match="a list"):
        from_pandas([1], target=None)
    with pytest.raises(DataError, match=r"the columns are a DataFrame.*from_pandas\(frame, target="):
        Dataset(frame)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtraError, match=r'pip install "atoll\[arrow\]"'):
        read_parquet(tmp_path / "t.parquet", target=None)


# ---------------------------------------------------------------- LEAF


def leaf(users):
    return {
        "users": list(users),
        "num_samples": [len(u["y"]) for u in users.values()],
        "user_data": users,
    }


ANN = {"x": [[0.0, 1.0], [2.0, 3.0]], "y": [1, 0]}
BEN = {"x": [[4.0, 5.0]], "y": [2]}


def test_leaf_files_become_their_users(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "train" / "1.json").write_text(json.dumps(leaf({"ann": ANN})))
    (tmp_path / "train" / "2.json").write_text(json.dumps(leaf({"ben": BEN})))
    (tmp_path / "test" / "1.json").write_text(json.dumps(leaf({"ann": BEN, "ben": BEN})))
    islands = read_leaf(tmp_path / "train", tmp_path / "test", name="toy")
    assert list(islands.names) == ["ann", "ben"]
    assert islands.sizes.tolist() == [2, 1]
    assert islands.classes == 3
    assert islands.shard("ann").x.tolist() == ANN["x"]
    assert islands.shard("ben").y.tolist() == [2]
    assert len(islands.test) == 2
    assert read_leaf(tmp_path / "train" / "1.json").test is None


def test_leaf_text_labels_are_coded_over_all_users(tmp_path):
    users = {"ann": {"x": ["to b", "be o"], "y": ["e", "r"]}, "ben": {"x": ["not "], "y": ["t"]}}
    (tmp_path / "s.json").write_text(json.dumps(leaf(users)))
    islands = read_leaf(tmp_path / "s.json")
    assert islands.about.labels == ("e", "r", "t")
    assert islands.shard("ben").y.tolist() == [2]
    assert islands.shard("ann")["x"].tolist() == ["to b", "be o"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("num_samples"), "no num_samples"),
        (lambda d: d.update(num_samples=[3]), "2 x and 2 y, but num_samples says 3"),
        (lambda d: d.update(num_samples=[2, 1]), "1 users with 2 num_samples"),
        (lambda d: d.update(user_data={}), "no x and y in user_data"),
        (lambda d: d["user_data"]["ann"].update(x=[[0.0], [1.0, 2.0]]), "rows of different shapes"),
    ],
)
def test_malformed_leaf_files_are_refused(tmp_path, change, message):
    held = json.loads(json.dumps(leaf({"ann": ANN})))
    change(held)
    (tmp_path / "bad.json").write_text(json.dumps(held))
    with pytest.raises(DataError, match=message) as caught:
        read_leaf(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)


def test_leaf_folders_and_doubles(tmp_path):
    with pytest.raises(DataError, match="no LEAF files"):
        read_leaf(tmp_path)
    for k in (1, 2):
        (tmp_path / f"{k}.json").write_text(json.dumps(leaf({"ann": ANN})))
    with pytest.raises(DataError, match="user 'ann' appears twice"):
        read_leaf(tmp_path)
    (tmp_path / "1.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_leaf(tmp_path)


MESSY = {
    "Excel's separator": "sep=;\nage;sex\n40;m\n50;f\n",
    "blank lines": "\n\nage,sex\n\n40,m\n50,f\n\n\n",
    "Excel's empty lines": "age,sex\n40,m\n,\n50,f\n , \n,\n",
    "separators behind": "age,sex,,\n40,m,,\n50,f,,\n",
    "old Mac": "age,sex\r40,m\r50,f\r",
    "blanks beside": " age , sex \n40 ,m\u00a0\n 50, f\n",
}


@pytest.mark.parametrize("case", MESSY)
def test_what_programs_add_to_a_table_is_no_row_and_no_column(tmp_path, case):
    (tmp_path / "rows.csv").write_bytes(MESSY[case].encode())
    table = DataTable.read(tmp_path / "rows.csv")
    assert {name: table[name].tolist() for name in table.columns} == {"age": [40, 50], "sex": ["m", "f"]}


def test_a_missing_value_of_excel_is_missing_and_a_missing_row_is_not(tmp_path):
    (tmp_path / "rows.csv").write_text("age,sex\n40,#N/A\n,f\nn/a,m\n")
    table = DataTable.read(tmp_path / "rows.csv")
    assert [table.missing(name).tolist() for name in table.columns] == [[False, True, True], [True, False, False]]


OTHER_FILES = {
    "rows.xlsx": (b"PK\x03\x04rest", "an Excel workbook or another archive, not a CSV file.*save its sheet as CSV"),
    "rows.xls": (b"\xd0\xcf\x11\xe0rest", "an Excel workbook, not a CSV file"),
    "rows.data": (b"PAR1rest", r"a Parquet file, not a CSV file.*ends in .parquet"),
    "title.csv": (b"Export of 2026\n\nage,sex\n40,m\n", "line 3 has 2 values, but the header has 1.*remove lines above the header"),
    "twice.csv": (b"age,age\n40,m\n", "two columns are called «age»"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_that_is_no_table_of_text_says_what_it_is(tmp_path, name):
    content, said = OTHER_FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        DataTable.read(tmp_path / name)
