"""Data sets: validation, lazy views, splits."""

import pickle

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from atoll.core.errors import DataError
from atoll.data import Dataset, concatenate, hash_words, iid, scaled


def toy(n=10, **options):
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    return Dataset({"x": x, "y": np.arange(n) % 3}, name="toy", **options)


def test_it_knows_its_rows_columns_and_task():
    data = toy()
    assert len(data) == 10
    assert data.columns == ("x", "y")
    assert (data.task, data.classes) == ("classification", 3)
    assert data.y.dtype == np.int64
    assert "writer" not in data
    assert data.row_bytes == 2 * 4 + 8
    assert data.nbytes == 160
    assert repr(data) == "Dataset('toy': 10 rows, x float32[2], y int64, classification of 3 classes)"


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        ([0, 1, 2], "classification", 3),
        ([0, 1, 1], "classification", 2),
        ([-1, 1, 1], "binary", 2),
        ([0.5, 1.0, 2.0], "regression", None),
    ],
)
def test_the_task_follows_from_the_labels(y, task, classes):
    data = Dataset({"x": np.zeros((3, 1)), "y": y})
    assert (data.task, data.classes) == (task, classes)


def test_without_labels_it_is_unlabelled():
    assert Dataset({"x": np.zeros((3, 1))}).task == "unlabelled"


def test_multilabel_targets_count_their_labels():
    data = Dataset({"x": np.zeros((2, 1)), "y": [[0, 1, 1], [1, 0, 0]]}, task="multilabel")
    assert data.classes == 3


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {}, "has no columns"),
        ({"x": [[1.0], [2.0]], "y": [0]}, {}, "'x' has 2, 'y' has 1"),
        ({"x": [[1.0], [2.0, 3.0]]}, {}, "'x' is ragged"),
        ({"x": 3.0}, {}, "single value"),
        ({"x": np.array([{}, {}])}, {}, "dtype object"),
        ({"x": [[0.0, 1.0], [2.0, np.nan]]}, {}, "'x' has nan at row 1, feature 1"),
        ({"x": [[0.0], [np.inf]]}, {}, "'x' has inf at row 1"),
        ({"x": [[0.0], [1.0]], "y": [0, 4]}, {"classes": 3}, "label «4» at row 1 is outside 0..2"),
        ({"x": [[0.0], [1.0]], "y": [-2, 1]}, {"task": "classification"}, "label «-2» at row 0"),
        ({"x": [[0.0], [1.0]], "y": [0, 2]}, {"task": "binary"}, "binary labels"),
        ({"x": [[0.0], [1.0]], "y": [0.0, 1.0]}, {"task": "classification"}, "labels of dtype float64"),
        ({"x": [[0.0], [1.0]], "y": [[0], [1]]}, {"task": "classification"}, "shape \\(2, 1\\)"),
        ({"x": [[0.0], [1.0]], "y": [[0, 2], [1, 0]]}, {"task": "multilabel"}, "matrix of 0 and 1"),
        ({"x": [[0.0]], "y": ["a"]}, {"task": "regression"}, "text targets"),
        ({"x": [[0.0]], "y": ["a"]}, {}, r"labels of dtype <U1.*names, y = np\.unique\(y, return_inverse=True\)"),
        ({"x": [[0.0]]}, {"task": "regression"}, "without a column 'y'"),
        ({"x": [[0.0]], "y": [0]}, {"task": "clasification"}, "Did you mean 'classification'"),
    ],
)
def test_bad_columns_are_refused_with_the_place(columns, options, message):
    with pytest.raises(DataError, match=message) as caught:
        Dataset(columns, name="bad", **options)
    assert "bad" in str(caught.value)
    assert caught.value.remedy


def test_huge_finite_values_pass_although_their_sum_overflows():
    assert len(Dataset({"x": np.array([[1.7e308], [1.7e308]])})) == 2


def test_columns_cannot_be_written_to_and_the_callers_array_still_can():
    x = np.zeros((2, 1))
    data = Dataset({"x": x, "y": [0, 1]})
    with pytest.raises(ValueError, match="read-only"):
        data.x[0] = 1.0
    x[0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        data.take([0])["x"][0] = 1.0


def test_it_is_no_iterable():
    with pytest.raises(TypeError, match="not iterable"):
        iter(toy())


def test_an_unknown_column_is_suggested():
    with pytest.raises(DataError, match="Did you mean 'y'"):
        toy()["yy"]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_views_of_views_select_what_numpy_selects(data):
    expected = np.arange(20)
    view = Dataset({"x": expected.copy(), "y": np.zeros(20, int)})
    for _ in range(data.draw(st.integers(1, 4))):
        n = len(expected)
        if data.draw(st.booleans()):
            a, b = data.draw(st.integers(-25, 25)), data.draw(st.integers(-25, 25))
            step = data.draw(st.sampled_from([None, 1, 2, -1]))
            rows = slice(a, b, step)
        elif n:
            rows = data.draw(st.lists(st.integers(0, n - 1), max_size=8))
        else:
            rows = []
        expected = expected[rows] if isinstance(rows, slice) else expected[np.array(rows, int)]
        view = view.take(rows)
        assert len(view) == len(expected)
    assert view["x"].tolist() == expected.tolist()


def test_a_mask_selects_rows():
    assert toy().take(np.arange(10) > 7)["y"].tolist() == [2, 0]


@pytest.mark.parametrize("rows", [[10], [-1], [0.5], [[1]], [True, False]])
def test_rows_that_do_not_exist_are_refused(rows):
    with pytest.raises(DataError, match=r"outside 0\.\.9|rows of shape"):
        toy().take(rows)


def test_taking_rows_copies_nothing_until_looked_at():
    data = toy(1000)
    view = data.take(slice(10, 20))
    assert np.shares_memory(view.x, data.x)
    assert data.take([1, 2])._cache == {}


@given(st.integers(2, 200), st.floats(0.05, 0.95), st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_split_conserves_the_rows(n, fraction, seed):
    data = Dataset({"x": np.arange(n)})
    train_rows = int((1 - fraction) * n + 1e-9)
    if not 0 < train_rows < n:
        with pytest.raises(DataError, match="to train and"):
            data.split(fraction, seed)
        return
    train, test = data.split(fraction, seed)
    assert len(train) == train_rows
    assert sorted([*train.x, *test.x]) == list(range(n))
    assert train.x.tolist() == data.split(fraction, seed)[0].x.tolist()


def test_a_split_without_a_seed_keeps_the_order():
    train, test = toy().split(0.3, None)
    assert train["y"].tolist() == toy()["y"][:7].tolist()
    assert test["y"].tolist() == toy()["y"][7:].tolist()


def test_other_seeds_split_otherwise():
    data = Dataset({"x": np.arange(100)})
    assert data.split(0.5, 0)[0].x.tolist() != data.split(0.5, 1)[0].x.tolist()


def test_rows_that_are_taken_keep_the_test_rows_and_those_of_clients_have_none():
    data = toy(12, test=toy(4))
    for some in (data.take([3, 1]), data.take(slice(0, 6)), data.take(np.arange(12) % 2 == 0), data.split(0.5, 0)[0]):
        assert some.test is data.test
    assert data.split(0.5, 0)[1].test is None
    assert data.split(0.5, None)[1].test is None
    assert iid(data.take(slice(0, 8)), parties=2, seed=0).test is data.test
    assert iid(data, parties=2, seed=0).shard(0).dataset().test is None


def test_joined_rows_keep_the_test_rows_of_all_parts():
    data = toy(12, test=toy(4))
    assert concatenate([data.take(slice(0, 6)), data.take(slice(6, 12))]).test is data.test  # one test set, once
    both = concatenate([toy(3, test=toy(2)), toy(3), toy(3, test=toy(5))])
    assert both.test.y.tolist() == [0, 1, 0, 1, 2, 0, 1]
    one, other = (
        Dataset({"x": np.zeros((2, 1)), "y": [0, 1]}, labels=names, test=Dataset({"x": np.zeros((1, 1)), "y": [1]}, labels=names))
        for names in (("a", "b"), ("b", "c"))
    )  # fmt: skip
    joined = concatenate([one, other])
    assert (joined.about.labels, joined.test.y.tolist()) == (("a", "b", "c"), [1, 2])


def test_columns_can_be_added():
    data = toy().with_columns({"writer": np.arange(10)}, name="written")
    assert data.columns == ("x", "y", "writer")
    assert data.name == "written"
    assert data.classes == 3


def test_joining_puts_rows_one_after_the_other():
    joined = concatenate([toy(3), toy(4)])
    assert joined.y.tolist() == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(DataError, match=r"'x' is float32\[2\] in part 0 and float64\[3\] in part 1"):
        concatenate([toy(), Dataset({"x": np.zeros((2, 3)), "y": [0, 1]})])
    with pytest.raises(DataError, match=r"'x' is float32.* in part 0 and missing in part 1"):
        concatenate([toy(), Dataset({"z": np.zeros((2, 2), np.float32), "y": [0, 1]})])
    with pytest.raises(DataError, match="no data sets"):
        concatenate([])


def test_it_travels_to_another_process():
    view = pickle.loads(pickle.dumps(toy().take([1, 3])))
    assert view.x.tolist() == [[2.0, 3.0], [6.0, 7.0]]


def test_scaling_uses_the_training_rows_ranges():
    train = Dataset({"x": [[0.0, 5.0], [10.0, 5.0]], "y": [1.0, 3.0]})
    data = train.with_test(Dataset({"x": [[20.0, 6.0]], "y": [5.0]}))
    small = scaled(data, "minmax", target=True)
    assert small.x.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert small.test.x.tolist() == [[2.0, 1.0]]
    assert small.y.tolist() == [0.0, 1.0]
    standard = scaled(data)
    assert np.allclose(standard.x, [[-1, 0], [1, 0]])
    assert standard.y.tolist() == [1.0, 3.0]


def test_scaling_what_cannot_be_scaled_is_refused():
    with pytest.raises(DataError, match="scaling 'max'"):
        scaled(toy(), "max")
    with pytest.raises(DataError, match="target of a classification"):
        scaled(toy(), target=True)
    with pytest.raises(DataError, match="dtype <U1"):
        scaled(Dataset({"x": ["a", "b"]}))


def test_words_become_numbers_without_a_vocabulary():
    data = Dataset({"text": ["The cat's HAT", "the", ""], "y": [0, 1, 1]})
    coded = hash_words(data.with_test(data.take([1])), length=4, buckets=50)
    assert coded.x.shape == (3, 4)
    assert coded.x[0, 0] == coded.x[1, 0] == coded.test.x[0, 0] > 0
    assert coded.x[0, 3] == 0
    assert coded.x[2].tolist() == [0, 0, 0, 0]
    assert coded.x.max() <= 50
    # CRC-32 of "the" is 0x3c456de6 (zlib): golden.
    assert hash_words(data, buckets=1000).x[1, 0] == 1 + 0x3C456DE6 % 1000
    with pytest.raises(DataError, match="column 'y' of dtype int64"):
        hash_words(data, column="y")


@pytest.mark.parametrize("mode", ["r", "c"])
def test_columns_in_mapped_files_are_checked_in_stretches(tmp_path, monkeypatch, mode):
    monkeypatch.setattr("atoll.data._checks._STRETCH", 64)
    values = np.arange(400, dtype=np.float32).reshape(100, 4)
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
    if mode == "c":
        mapped[7, 1] = -5.0  # a change in memory only must outlive the check
    data = Dataset({"x": mapped.reshape(-1, 2, 2)})
    assert data["x"][7, 0, 1] == (-5.0 if mode == "c" else 29.0)
    np.testing.assert_array_equal(data["x"].reshape(100, 4)[8:], values[8:])
    values[93, 2] = np.nan
    np.save(tmp_path / "bad.npy", values)
    with pytest.raises(DataError, match=r"column 'x' has nan at row 93, feature 2"):
        Dataset({"x": np.load(tmp_path / "bad.npy", mmap_mode=mode)})
