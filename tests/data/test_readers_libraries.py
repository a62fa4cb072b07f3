"""Data sets of other libraries, by their methods, and the sets that scikit-learn bundles."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import atoll.data
from atoll.core.errors import DataError, MissingExtraError
from atoll.data import from_hugging_face, from_torch


class Labels:
    def __init__(self, names):
        self.names = names


class HuggingFace:
    """What a map-style ``datasets.Dataset`` offers: columns by name, a NumPy view of slices."""

    def __init__(self, columns, features=None):
        self._columns = columns
        self.column_names = list(columns)
        self.features = features or {}

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        return {name: values[rows] for name, values in self._columns.items()}


def pictures(n=4):
    columns = {
        "image": np.arange(n * 4, dtype=np.uint8).reshape(n, 2, 2),
        "label": np.arange(n) % 2,
        "speaker": np.array(["ann", "ben"] * (n // 2), dtype=object),
    }
    return HuggingFace(columns, {"label": Labels(["cat", "dog"])})


def test_hugging_face_columns_become_x_and_y():
    data = from_hugging_face(pictures(), x="image", keep=["speaker"], test=pictures(2), name="pets")
    assert data.x.shape == (4, 2, 2)
    assert data.y.tolist() == [0, 1, 0, 1]
    assert data.about.labels == ("cat", "dog")
    assert data.classes == 2
    assert data["speaker"].tolist() == ["ann", "ben", "ann", "ben"]
    assert len(data.test) == 2
    table = HuggingFace({"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])})
    side_by_side = from_hugging_face(table, x=["a", "b"], y=None)
    assert side_by_side.x.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert side_by_side.task == "unlabelled"


def test_hugging_face_mistakes_are_named():
    with pytest.raises(DataError, match="no column 'img'"):
        from_hugging_face(pictures(), x="img")
    with pytest.raises(DataError, match="a list without column_names, features, with_format"):
        from_hugging_face([1, 2], x="image")
    splits = pictures()
    splits.column_names = {"train": ["image"]}
    with pytest.raises(DataError, match="a dictionary of splits"):
        from_hugging_face(splits, x="image")
    ragged = HuggingFace({"image": [np.zeros((2, 2)), np.zeros((3, 2))], "label": np.zeros(2, int)})
    with pytest.raises(DataError, match="'image' have different shapes"):
        from_hugging_face(ragged, x="image")


class Items(list):
    classes = ("cat", "dog")


def test_torch_items_become_columns():
    items = Items([(np.full((2, 2), k, np.float32), k % 2) for k in range(5)])
    data = from_torch(items, test=items[:2])
    assert data.x.shape == (5, 2, 2)
    assert data.y.tolist() == [0, 1, 0, 1, 0]
    assert data.about.labels == ("cat", "dog")
    assert len(data.test) == 2
    named = from_torch([{"x": [1.0, 2.0], "y": 0.5, "site": 3}] * 3)
    assert named.columns == ("x", "y", "site")
    assert named.task == "regression"


def test_real_torch_data_sets_work():
    torch = pytest.importorskip("torch", reason="the check against PyTorch's own data set")
    x = torch.arange(12.0).reshape(4, 3)
    data = from_torch(torch.utils.data.TensorDataset(x, torch.tensor([0, 1, 1, 0])))
    assert np.array_equal(data.x, x.numpy())
    assert data.task == "classification"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no items"),
        (iter([1]), "a list_iterator has no length or no items"),
        ([3], "item 0 is a int"),
        ([(np.zeros(2), 0), (np.zeros(3), 0)], r"item 1 has float64\[3\] for 'x', but item 0 has float64\[2\]"),
        ([(np.zeros(2), 0), (np.zeros(2), 0.5)], r"item 1 has float64\[\] for 'y'"),
        ([{"x": 1.0}, {"z": 1.0}], "item 1 has no such value for 'x'"),
        ([("text", 0)], "item 0 has <U4 for 'x'"),
    ],
)
def test_torch_mistakes_are_named(items, message):
    with pytest.raises(DataError, match=message):
        from_torch(items)


# ---------------------------------------------------------------- bundled

# Rows, features, classes as the publishers state them (UCI pages; Efron et al. 2004; Tenenhaus 1998).
BUNDLED = {
    "digits": (1797, 64, 10, "classification"),
    "iris": (150, 4, 3, "classification"),
    "wine": (178, 13, 3, "classification"),
    "breast_cancer": (569, 30, 2, "binary"),
    "diabetes": (442, 10, None, "regression"),
    "linnerud": (20, 3, None, "regression"),
}


@pytest.mark.parametrize("name", BUNDLED)
def test_the_bundled_sets_have_their_published_sizes(name):
    rows, features, classes, task = BUNDLED[name]
    data = atoll.data.open(name)
    assert len(data) + len(data.test) == rows
    assert len(data) == int(0.8 * rows)
    assert data.x.shape[1:] == (features,)
    assert data.x.dtype == np.float32
    assert (data.task, data.classes) == (task, classes)
    assert data.citation
    whole = atoll.data.open(name, test=0)
    assert whole.test is None
    assert len(whole) == rows
    both = np.concatenate([data.x, data.test.x])
    assert np.array_equal(np.sort(both, axis=0), np.sort(whole.x, axis=0))


def test_digits_are_those_that_scikit_learn_loads(monkeypatch):
    """Scikit-learn's file is read without scikit-learn; where it lies elsewhere, scikit-learn is asked."""
    from sklearn.datasets import load_digits

    raw, digits = load_digits(), atoll.data.digits(test=0)
    assert np.array_equal(digits.x, (raw.data / 16.0).astype(np.float32))
    assert np.array_equal(digits.y, raw.target)
    assert digits.about.labels == tuple(str(name) for name in raw.target_names)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    asked = atoll.data.digits(test=0)
    assert np.array_equal(asked.x, digits.x)
    assert np.array_equal(asked.y, digits.y)
    assert (asked.x.dtype, asked.y.dtype) == (digits.x.dtype, digits.y.dtype)


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_tables_are_those_that_scikit_learn_loads(monkeypatch, name):
    from sklearn import datasets

    raw, read = getattr(datasets, f"load_{name}")(), getattr(atoll.data, name)(test=0)
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    for data in (read, getattr(atoll.data, name)(test=0)):
        assert np.array_equal(data.x, raw.data.astype(np.float32))
        assert np.array_equal(data.y, raw.target)
        assert data.y.dtype == raw.target.dtype
        assert data.about.labels == tuple(str(label) for label in raw.target_names)
        assert data.about.features == tuple(str(feature) for feature in raw.feature_names)


def test_digits_are_scaled_and_may_be_images():
    flat, images = atoll.data.digits(), atoll.data.digits(flat=False)
    assert flat.x.min() == 0.0
    assert flat.x.max() == 1.0
    assert images.x.shape == (1437, 1, 8, 8)
    assert np.array_equal(images.x.reshape(-1, 64), flat.x)
    assert flat.about.labels == tuple("0123456789")
    assert atoll.data.digits(seed=1).y.tolist() != flat.y.tolist()


def test_the_front_pages_example():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=100, alpha=0.3, seed=0)
    assert len(islands) == 100
    assert islands.sizes.sum() == 1437
    assert len(islands.test) == 360


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for load in (atoll.data.digits, atoll.data.iris):
        with pytest.raises(MissingExtraError, match=r'pip install "atoll\[sklearn\]"'):
            load()


@pytest.mark.network
def test_importing_the_room_imports_numpy_only():
    heavy = ["sklearn", "pandas", "matplotlib", "torch", "pyarrow", "scipy", "datasets", "pydantic", "yaml", "rich"]
    code = f"import sys, atoll.data; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_public_is_there_and_documented():
    for name in atoll.data.__all__:
        assert getattr(atoll.data, name).__doc__, name
    assert atoll.data.__all__ == sorted(atoll.data.__all__)
